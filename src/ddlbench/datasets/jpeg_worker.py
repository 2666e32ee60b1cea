"""A process that writes class folders: reads a job a line, answers a record a line.

Started by :mod:`ddlbench.datasets.jpeg_pool`; ends when its input does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ddlbench.datasets.imagefolder import ClassFolders
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DatasetSpec

__all__ = ["main"]


def main() -> None:
    """Serve jobs from standard input."""
    setup = json.loads(sys.stdin.readline())
    content = Content(DatasetSpec(**setup["spec"]), setup["seed"])
    folders = ClassFolders(content, Path(setup["root"]), setup["images"])
    _answer({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        split, label = json.loads(line)
        try:
            _answer(folders.write(split, label))
        except OSError as error:
            path = None if error.filename is None else str(error.filename)
            _answer({"errno": error.errno, "error": error.strerror, "path": path})


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
