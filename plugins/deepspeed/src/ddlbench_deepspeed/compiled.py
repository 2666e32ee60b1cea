"""The operation that DeepSpeed compiles before its first message on a CPU.

DeepSpeed loads an all-reduce through shared memory with its communication, though training sends
through gloo. torch compiles it with the node's C++ compiler, once an environment::

    <environment>/torch-extensions/deepspeed_shm_comm/*.so
    rank 0   | lock | compile ..... | load | unlock |
    rank 1          | wait ........................ | lock | load | unlock |

This is done before training, so no step waits for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddlbench.strategies.executor import Unsupported

FOLDER = "TORCH_EXTENSIONS_DIR"  # torch's variable
_NAME = "deepspeed_shm_comm"  # of DeepSpeed's ShareMemCommBuilder


def compile_operation(builder: Any) -> None:
    """Compile and load the operation; a rank waits while another of its node does so.

    Args:
        builder: DeepSpeed's builder of the operation, which has a method ``load``.

    Raises:
        Unsupported: there is no compiler, or it fails, or the folder cannot be written.
    """
    reason = why_not_compiled()
    if reason is not None:
        raise Unsupported(reason, code="no_compiler")
    folder = Path(os.environ.setdefault(FOLDER, f"{sys.prefix}/torch-extensions"))
    # ninja is a package of the environment, whose commands need not be in PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        with _alone(folder):
            # We are alone, so who left torch's own lock was killed, and torch would wait for ever.
            (folder / _NAME / "lock").unlink(missing_ok=True)
            builder.load(verbose=False)
    except (OSError, RuntimeError, ImportError) as error:
        first = str(error).strip().partition("\n")[0]
        raise Unsupported(
            f"DeepSpeed's operation {_NAME} could not be compiled in {folder}: {first}",
            code="no_compiler",
        ) from error


def why_not_compiled() -> str | None:
    """The sentence for a node without a C++ compiler (``CXX``, or c++); None if it has one."""
    compiler = (os.environ.get("CXX") or "c++").split()[0]
    if shutil.which(compiler) is not None:
        return None
    return (
        f"DeepSpeed compiles an operation on this node, which has no C++ compiler ({compiler}); "
        "install g++ or load its module in the site's setup"
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
