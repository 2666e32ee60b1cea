"""Find, build and run NVIDIA's link tests on a node.

::

    site: p2p_binary  ->  PATH  ->  samples of CUDA <= 11.5  ->  nvcc on site: cuda_samples
          -> p2pBandwidthLatencyTest, five runs, medians
    else site: nvbandwidth  ->  PATH
          -> nvbandwidth -j, five runs, medians
    else  the built-in copies (node_pairs.py)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect.nvbandwidth_json import TESTS, parse_nvbandwidth
from ddlbench.interconnect.p2p_text import parse_p2p
from ddlbench.interconnect.pair_matrix import median_of_runs

_NAME = "p2pBandwidthLatencyTest"
# One run repeats each copy five times and still varies by 5 to 10 % (cuda-samples issue 449).
RUNS = 5
_RUN_TIMEOUT_S = 600
_BUILD_TIMEOUT_S = 300
_OLD_SAMPLES = Path("/usr/local/cuda/samples/1_Utilities") / _NAME / _NAME
# Source of the test and headers it includes, relative to a checkout, newest layout first.
_LAYOUTS = (
    (f"cpp/5_Domain_Specific/{_NAME}", ("cpp/Common", "Common")),
    (f"Samples/5_Domain_Specific/{_NAME}", ("Common",)),
    (f"Samples/{_NAME}", ("Common",)),
    (f"1_Utilities/{_NAME}", ("common/inc",)),
)


def find_or_build_p2p(interconnect: dict[str, Any]) -> Path | None:
    """The test's binary; None if there is neither one nor source to build it from.

    Raises:
        ConfigError: the site names a wrong binary or checkout, or nvcc fails.
    """
    installed = _installed(interconnect, "p2p_binary", _NAME)
    if installed is not None:
        return installed
    if os.access(_OLD_SAMPLES, os.X_OK):
        return _OLD_SAMPLES
    checkout = interconnect.get("cuda_samples")
    return _build(_expanded(checkout)) if checkout else None


def find_nvbandwidth(interconnect: dict[str, Any]) -> Path | None:
    """The binary of nvbandwidth, or None.

    Raises:
        ConfigError: the site names a wrong binary.
    """
    return _installed(interconnect, "nvbandwidth", "nvbandwidth")


def _installed(interconnect: dict[str, Any], key: str, name: str) -> Path | None:
    """The program that the site names under ``key``, else ``name`` in PATH."""
    if interconnect.get(key):
        binary = _expanded(interconnect[key])
        if not (binary.is_file() and os.access(binary, os.X_OK)):
            raise ConfigError(
                f"interconnect.{key}: {binary} on {socket.gethostname()} is no program; "
                "give its path on the nodes"
            )
        return binary
    path = shutil.which(name)
    return Path(path) if path else None


def run_p2p(binary: Path, runs: int = RUNS) -> list[dict[str, Any]]:
    """Pair matrices of p2pBandwidthLatencyTest with reads: medians over ``runs`` runs.

    Raises:
        ConfigError: a run fails; the message gives the reason.
    """
    return _repeated(binary, ["--p2p_read"], parse_p2p, runs)


def run_nvbandwidth(binary: Path, runs: int = RUNS) -> list[dict[str, Any]]:
    """Pair matrices of nvbandwidth; as :func:`run_p2p`."""
    return _repeated(binary, ["-j", "-t", *TESTS], parse_nvbandwidth, runs)


def _repeated(
    binary: Path, options: list[str], parse: Callable[[str, str], dict[str, Any]], runs: int
) -> list[dict[str, Any]]:
    matrices = []
    for number in range(1, runs + 1):
        where = f"{binary.name} on {socket.gethostname()} (run {number} of {runs})"
        try:
            done = subprocess.run(
                [str(binary), *options],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RUN_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{where}: not done after {_RUN_TIMEOUT_S} s") from None
        except OSError as error:
            raise ConfigError(f"{where}: cannot be started: {error.strerror}") from None
        print(done.stdout, done.stderr, sep="", flush=True)
        if done.returncode and not done.stdout.strip():
            reason = _last_line(done.stderr) or f"exit status {done.returncode}"
            raise ConfigError(f"{where}: failed: {reason}")
        parsed = parse(done.stdout, where)
        for remark in parsed.get("remarks", ()):
            print(f"{where}: {remark}", flush=True)
        matrices.append(parsed["pairs"])
        if done.returncode:
            raise ConfigError(f"{where}: failed after its output: {_last_line(done.stderr)}")
    return median_of_runs(matrices)


def _build(checkout: Path) -> Path:
    """Compile the test from a checkout into the user's cache, under a digest of its source."""
    source, headers = _source(checkout)
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        raise ConfigError(
            f"{source} cannot be built on {socket.gethostname()}: no nvcc in PATH; load CUDA's "
            "module (site key 'setup') or give interconnect.p2p_binary"
        )
    version = _run_compiler([nvcc, "--version"]).stdout
    digest = hashlib.blake2b(
        source.read_bytes() + str(headers.resolve()).encode() + version.encode(), digest_size=8
    ).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddlbench"
    binary = cache / f"{_NAME}-{digest}"
    if binary.is_file():
        return binary
    cache.mkdir(parents=True, exist_ok=True)
    # Several nodes may build at once: the last one wins, and all find a complete binary. Without
    # -arch nvcc includes code that the driver compiles for any GPU.
    beside = cache / f".{binary.name}.{socket.gethostname()}.{os.getpid()}"
    try:
        built = _run_compiler([nvcc, "-O3", "-I", str(headers), str(source), "-o", str(beside)])
        if built.returncode:
            error = _first_error(built.stderr + built.stdout)
            raise ConfigError(f"{nvcc} cannot build {source}: {error}")
        beside.replace(binary)
    finally:
        beside.unlink(missing_ok=True)
    return binary


def _source(checkout: Path) -> tuple[Path, Path]:
    """The test's source file, and the folder of its headers."""
    for folder, includes in _LAYOUTS:
        source = checkout / folder / f"{_NAME}.cu"
        if not source.is_file():
            continue
        for include in includes:
            if (checkout / include / "helper_cuda.h").is_file():
                return source, checkout / include
        raise ConfigError(
            f"{checkout}: {source.name} is there, but not {' or '.join(includes)}/helper_cuda.h; "
            "set interconnect.cuda_samples to a whole checkout"
        )
    raise ConfigError(
        f"{checkout}: no {_NAME}.cu where cuda-samples has it ({_LAYOUTS[1][0]}, ...); "
        "set interconnect.cuda_samples to the top of a checkout"
    )


def _run_compiler(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]} does not run: {error}") from None


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error" in line.lower()]
    return lines[0] if lines else _last_line(text)
