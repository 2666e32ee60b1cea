"""A Python that has imported what Snakemake's runs and `ddlbench` need; a fork runs each command.

To import Snakemake takes longer than all that it does in most tests::

    test -- this module   imports once
              |-- fork -> snakemake ...     as `python -m snakemake ...` would be
              '-- fork -> ddlbench ...
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

_IMPORTED = (
    *("snakemake.cli", "snakemake.report.html_reporter", "snakemake_logger_plugin_ddlbench"),
    *("ddlbench.workflow.run", "ddlbench.report.registry", "ddlbench.report.run_screen"),
    "snakemake_executor_plugin_slurm",
)


class ImportedPython:
    """Runs modules in forks of a process that has imported what they need.

    Args:
        folder: where they run.
        environment: of all of them.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "imported_python"],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], output: Path, errors: Path, limit_s: float) -> int:
        """Run ``python -m`` with ``arguments``, and return its exit status.

        Raises:
            TimeoutError: it did not end within the limit, and was killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([*arguments, str(output), str(errors)]), file=self._process.stdin)
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            here = psutil.Process(self._process.pid)
            for process in (here, *here.children(recursive=True)):
                process.kill()
            raise TimeoutError(f"{arguments} did not end within {limit_s:g} s")
        return int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def _serve() -> list[str]:
    """Fork for each line of input; in a fork this returns what to run."""
    for line in sys.stdin:
        *arguments, output, errors = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for number, path in enumerate((os.devnull, output, errors)):
                with Path(path).open("r+b" if number == 0 else "wb") as file:
                    os.dup2(file.fileno(), number)
            return arguments
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return []


def _run(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run a module as ``python -m``; leave at once, as a timer of Snakemake lasts a second."""
    sys.argv = [module, *arguments]
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # and so without copies of pages in the forks
    if arguments := _serve():
        _run(arguments[0], arguments[1:])


if __name__ == "__main__":
    main()
