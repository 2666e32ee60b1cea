"""``python tests/cluster/testbed``; in the repository's root also with ``-m``."""

import sys
from importlib import import_module
from pathlib import Path

if __package__:
    cli = import_module(".cli", __package__)
else:
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    cli = import_module("testbed.cli")

sys.exit(cli.main())
