"""A job whose shell has closed the standard streams."""

from __future__ import annotations

import subprocess
import sys

JOB = """
import os, sys
from ddlbench.workflow.run import logged
with logged(sys.argv[1]):
    assert os.dup(0) > 2
    print("nobody reads it")
    print("nor this", file=sys.stderr)
"""


def test_no_other_file_gets_the_number_of_a_closed_stream(tmp_path):
    log = tmp_path / "job.log"
    shell = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", shell, sys.executable, JOB, str(log)], check=False)
    assert (done.returncode, "Traceback" in log.read_text()) == (0, False)
