"""What a process runs in: the provenance of a result, and a short folder for sockets.

Provenance is versions, host, processors, libraries and environment variables.

Python's `multiprocessing` puts its sockets into a folder below TMPDIR. Linux takes at most 107
bytes for the path of a socket (`sun_path`, unix(7)); some clusters give a job a longer TMPDIR.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from ddlbench.common.owner import slurm_job_id
from ddlbench.experiment.site import Accelerator

# Ranks may run in a container, with other packages than the supervisor.
_OF_RANKS = ("ddlbench", "torch", "torchvision", "torchgpipe", "horovod", "deepspeed", "numpy")
_OF_THE_WORKFLOW = ("snakemake", "snakemake-executor-plugin-slurm")
_LIBRARIES = ("driver", "cuda", "nccl", "rocm", "rccl")
# Only these variables are recorded: they change how fast, or where, a run computes.
_PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "CUDA_", "NCCL_", "GLOO_", "HOROVOD_", "TORCH_", "CUBLAS_"),
    *("TORCHELASTIC_", "HIP_", "HSA_", "ROCR_", "RCCL_", "MIOPEN_"),
)


def driver_provenance(seed: int) -> dict[str, Any]:
    """What the supervisor knows without running anything: source, packages, kernel and time."""
    # Only changed code makes it dirty. What is measured is in the result.
    code = [
        f":(top){name}" for name in ("src", "plugins", "workflow", "rules", "Snakefile", "envs")
    ]
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
        "packages": _packages(*_OF_RANKS, *_OF_THE_WORKFLOW),
        "python": platform.python_version(),
        "slurm_job_id": slurm_job_id(),
        "kernel": platform.release(),
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "clock_resolution_s": time.get_clock_info("perf_counter").resolution,
        "seed": seed,
    }


def rank_provenance() -> dict[str, Any]:
    """What only a rank knows: its processor, GPUs, Python, packages, libraries and environment."""
    import torch  # noqa: PLC0415 - the supervisor has none

    from ddlbench.runtime.gpus import model_of, software_of_gpus  # noqa: PLC0415 - likewise

    # Named as the processor, an emulated one is never compared with a real one.
    emulated = Accelerator.of_this_process()
    values: dict[str, Any] = {
        "host": socket.gethostname(),
        "cpu_model": _cpu_model() if emulated is None else emulated.remark,
        "cpu_count": os.cpu_count(),
        "packages": _packages(*_OF_RANKS),
        "python": platform.python_version(),
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)
        },
        "gpu_models": [],
        **dict.fromkeys(_LIBRARIES),
    }
    if torch.cuda.is_available():
        values.update(
            gpu_models=[model_of(index) for index in range(torch.cuda.device_count())],
            **software_of_gpus(),
        )
    return values


def provenance_of_run(seed: int, of_a_rank: Mapping[str, Any]) -> dict[str, Any]:
    """What the supervisor knows, and in its place what a rank knows better.

    Args:
        seed: of the run.
        of_a_rank: its :func:`rank_provenance`; empty if no rank has reported.
    """
    values = driver_provenance(seed)
    if "packages" in of_a_rank:
        known = values["packages"].items()
        workflow = {name: version for name, version in known if name in _OF_THE_WORKFLOW}
        return {**values, **of_a_rank, "packages": {**of_a_rank["packages"], **workflow}}
    return {**values, **of_a_rank}


def ranks_differ(provenances: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Numbers of cores, and software, that ranks of one cell had otherwise than the others.

    The report compares their processors, which a result keeps rank by rank.
    """
    cores = sorted(
        {provenance["cpu_count"] for provenance in provenances if provenance.get("cpu_count")}
    )
    software: dict[str, set[str]] = {}
    for provenance in provenances:
        parts = {
            "Python": provenance.get("python"),
            **provenance.get("packages", {}),
            **{name: provenance.get(name) for name in _LIBRARIES},
        }
        for name, version_ in parts.items():
            if version_ is not None:
                software.setdefault(name, set()).add(version_)
    apart = [f"{name} {' and '.join(sorted(v))}" for name, v in software.items() if len(v) > 1]
    counts = ", ".join(map(str, cores)) if len(cores) > 1 else ""
    differing = {"cpu_count": counts, "versions": ", ".join(apart)}
    return {name: text for name, text in differing.items() if text}


def _packages(*names: str) -> dict[str, str]:
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parents[3]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or sys.platform


_LONGEST_SOCKET = 107
_BELOW = len("/pymp-12345678/listener-12345678")
LONGEST_TMPDIR = _LONGEST_SOCKET - _BELOW
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_made: list[str] = []


def use_short_socket_folder() -> None:
    """Put the sockets of this process and its children elsewhere if TMPDIR is too long for them.

    Call it before the first helper process starts. Other temporary files stay in TMPDIR. The folder
    is removed when the process ends, or by :func:`end_process`.
    """
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) <= LONGEST_TMPDIR:
        return
    for place in _SHORT_PLACES:
        tempfile.tempdir = place
        try:
            with suppress(OSError):  # it is not there, or not ours to write: the next one
                _made.append(util.get_temp_dir())
                return
        finally:
            tempfile.tempdir = before


def end_process(status: int) -> NoReturn:
    """End this process without exit handlers, some of which wait for ranks that are gone.

    Python's teardown alone takes half a second of CPU time once torch is loaded. What was printed
    is written before, also what C libraries such as NCCL have buffered.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
    os._exit(status)


def tmpdir_hint(text: str) -> str:
    """What to add to an error that a too long TMPDIR explains; empty for any other."""
    if "AF_UNIX path too long" not in text:
        return ""
    return (
        f"; TMPDIR ({tempfile.gettempdir()}) is too long for a socket below it: set it to a path "
        f"of at most {LONGEST_TMPDIR} letters, for example TMPDIR=/tmp"
    )
