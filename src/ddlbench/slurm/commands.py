"""Run SLURM's commands, so that the site decides what they answer and not the user's shell.

A login shell may hold defaults for interactive use, such as ``SQUEUE_PARTITION`` or
``SLURM_TIME_FORMAT``. A program that reads the answer would see fewer jobs, or other columns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from textwrap import shorten

from ddlbench.common.errors import ConfigError

_PREFIXES = (
    "SACCT_",
    "SACCTMGR_",
    "SALLOC_",
    "SBATCH_",
    "SCANCEL_",
    "SCONTROL_",
    "SINFO_",
    "SPRIO_",
    "SQUEUE_",
    "SREPORT_",
    "SRUN_",
    "SSHARE_",
    "SSTAT_",
)
# Of the variables that begin with SLURM_, those that srun and the listings read as options. Others
# tell which SLURM it is (SLURM_CONF, SLURM_CLUSTERS) or describe the job that a process runs in.
_OPTIONS = frozenset(
    f"SLURM_{name}"
    for name in (
        *("BITSTR_LEN", "TIME_FORMAT", "TOPO_LEN", "DEBUG", "DEBUG_FLAGS", "DISTRIBUTION"),
        *("EXIT_ERROR", "EXIT_IMMEDIATE", "EXCLUSIVE", "EXPORT_ENV", "HINT", "IMMEDIATE"),
        *("CPU_BIND", "CPU_BIND_TYPE", "CPU_BIND_LIST", "MEM_BIND", "GPU_BIND", "KILL_BAD_EXIT"),
        *("LABELIO", "UNBUFFEREDIO", "OVERLAP", "OVERCOMMIT", "THREADS", "CORE_SPEC", "WAIT"),
        *("STDINMODE", "STDOUTMODE", "STDERRMODE", "WORKING_DIR", "EPILOG", "PROLOG", "NO_KILL"),
    )
)
_PATIENCE_S = 30.0
_LONGEST_REFUSAL = 400
NEEDED_COMMANDS = ("sbatch", "squeue", "scancel")


class SlurmError(ConfigError):
    """A command of SLURM is not here, does not answer, or refuses.

    Args:
        message: the sentence for people.
        words: what the command wrote; empty if it does not answer.
    """

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words


def user_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what SLURM's commands answer or submit."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIXES) or name in _OPTIONS
    }


def drop_user_defaults() -> dict[str, str]:
    """Remove them from this process, for all that it starts; returns what was removed."""
    dropped = user_defaults(os.environ)
    for name in dropped:
        del os.environ[name]
    return dropped


def clean_environment() -> dict[str, str]:
    """This process's environment without the user's defaults."""
    dropped = user_defaults(os.environ)
    return {name: value for name, value in os.environ.items() if name not in dropped}


def missing_commands() -> list[str]:
    """Commands of SLURM that a run needs and that PATH does not lead to."""
    return [name for name in NEEDED_COMMANDS if shutil.which(name) is None]


def ask(command: Sequence[str], *, patience_s: float = _PATIENCE_S) -> str:
    """What a command of SLURM prints.

    Raises:
        SlurmError: there is no such command here, it refuses, or it does not answer in time.
    """
    name = command[0]
    if shutil.which(name) is None:
        raise SlurmError(f"{name} is not in PATH")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env=clean_environment(),
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{name} did not answer within {patience_s:g} s") from None
    except OSError as error:
        raise SlurmError(f"{name} cannot be started: {error}") from None
    if done.returncode != 0:
        words = refusal(done.stderr) or f"{name} ended with {done.returncode}"
        raise SlurmError(words, words)
    return done.stdout.strip()


def refusal(stderr: str) -> str:
    """What a command wrote on its standard error, in one line and without its name.

    A site's filter explains a refusal in lines of its own; what SLURM adds to them says nothing.
    """
    lines: list[str] = []
    for line in stderr.splitlines():
        program, colon, rest = line.strip().partition(": ")
        text = rest if colon and program.isalpha() and program.islower() else line.strip()
        for front in ("error: ", "fatal: ", "allocation failure: "):
            text = text.removeprefix(front).strip()
        if text and text not in lines:
            lines.append(text)
    kept = [line for line in lines if not line.endswith("Unspecified error")] or lines
    return shorten(": ".join(kept), _LONGEST_REFUSAL, placeholder=" ...")
