"""Run NVIDIA's link tests on a node: five runs, of which the medians are kept.

::

    p2pBandwidthLatencyTest --p2p_read    -> p2p_text.py         -> pair matrices
    nvbandwidth -j -t ...                 -> nvbandwidth_json.py -> pair matrices
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.nvbandwidth_json import TESTS, parse_nvbandwidth
from ddlbench.interconnect.p2p_text import parse_p2p
from ddlbench.interconnect.pair_matrix import median_of_runs

# One run repeats each copy five times and still varies by 5 to 10 % (cuda-samples issue 449).
RUNS = 5
_RUN_TIMEOUT_S = 600


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


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
