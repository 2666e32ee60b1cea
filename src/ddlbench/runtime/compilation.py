"""A network is compiled before warm-up, if its cell says so.

::

    prepare | step, compiles | step | step | state as before | warm-up | measured
            |<-------- three trial steps -------->|
    compile_s = seconds of the trial steps - 3 * those of the last

The caches of torch.compile are empty: they lie in the folder of the run, which the ranks share. So
every run compiles anew, and ``compile_s`` is that of a first start. What the trial steps trained is
undone, as a checkpoint undoes a rehearsal.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from ddlbench.common.errors import first_line
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason, Status
from ddlbench.runtime.checkpoint.rank import random_state, set_random_state
from ddlbench.runtime.rank_report import CompileCost, classify
from ddlbench.runtime.watchdog import Reporter
from ddlbench.strategies.executor import Context, Executor, Unsupported

TRIAL_STEPS = 3
_COMPILERS = ("gcc", "clang", "cc")  # that Triton looks for


def ready_to_compile(device_kind: str, run_dir: Path) -> None:
    """Have torch.compile keep what it makes in the folder of this run.

    Raises:
        Unsupported: there is no compiler for such a device.
    """
    if (reason := why_no_compiler(device_kind)) is not None:
        raise Unsupported(reason)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(run_dir / "compiled")
    os.environ["TRITON_CACHE_DIR"] = str(run_dir / "compiled" / "triton")


def why_no_compiler(device_kind: str) -> Reason | None:
    """Why this machine cannot compile for such a device; None if it can."""
    if device_kind == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415 - slow to import
        from torch._inductor.exc import InvalidCxxCompiler  # noqa: PLC0415 - slow to import

        try:
            get_cpp_compiler()
        except (InvalidCxxCompiler, RuntimeError, OSError) as error:
            return Reason(
                "cannot_compile",
                "torch.compile needs a C++ compiler on CPUs (g++, or CXX names one): "
                f"{first_line(error)}",
            )
        return None
    if importlib.util.find_spec("triton") is None:
        return Reason("cannot_compile", "torch.compile needs the package triton on GPUs")
    if not (os.environ.get("CC") or any(map(shutil.which, _COMPILERS))):
        return Reason("cannot_compile", "torch.compile needs a C compiler on GPUs (gcc, or CC)")
    return None


def compile_ahead(
    executor: Executor, context: Context, cell: Cell, *, sign: bool = False
) -> CompileCost | None:
    """Train some steps, in the first of which torch compiles, and undo them; all ranks together.

    None for a cell that is not compiled. With ``sign`` the watchdog gets a sign of life.

    Raises:
        Unsupported: torch cannot compile this network.
    """
    if not cell.compile:
        return None
    progress = context.progress

    def alive(_done: int) -> None:
        if sign:
            Reporter.phase("compiling")

    alive(0)
    context.progress = alive
    try:
        return _trial(executor, context.devices)
    finally:
        context.progress = progress


def _trial(executor: Executor, devices: Sequence[torch.device]) -> CompileCost:
    state = copy.deepcopy(executor.checkpoint_state())
    random = random_state(devices)
    try:
        steps_s = executor.run(0, TRIAL_STEPS).step_s
    except Exception as error:
        if classify(error)[0] != Status.FAILED or not _of_compiler(error):
            raise
        why = f"{type(error).__name__}: {first_line(error)[:200]}"
        raise Unsupported(
            f"torch.compile cannot compile this network ({why})", code="cannot_compile"
        ) from error
    executor.load_checkpoint_state(state)
    set_random_state(random, devices)
    graphs = compiled_graphs()
    if not graphs:
        raise Unsupported(
            "torch.compile found nothing to compile in this network", code="cannot_compile"
        )
    return CompileCost(max(0.0, sum(steps_s) - len(steps_s) * steps_s[-1]), graphs)


def compiled_graphs() -> int:
    """How many graphs torch has compiled in this process."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - slow to import

    return int(counters["stats"]["unique_graphs"])


def _of_compiler(error: Exception) -> bool:
    """Whether an error is one of torch.compile, rather than of the step that it compiles."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415 - slow to import
    from torch._inductor.exc import OperatorIssue  # noqa: PLC0415 - slow to import

    return isinstance(error, TorchDynamoException | OperatorIssue)
