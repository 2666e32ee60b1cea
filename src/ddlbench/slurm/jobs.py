"""Jobs as SLURM's commands show them: their state, why they wait, and what their output tells.

The state of a job is by squeue and sacct::

    squeue          sacct             state
    a state         (not used)        squeue's
    no such job     a final state     sacct's
    no such job     anything else     None: the job is over, its final state unknown
    no answer       a final state     sacct's
    no answer       anything else     NO_ANSWER: for example, slurmctld restarts; the job may run

The output of a job or of its steps has a line that tells most of a failure, and names nodes::

    srun --label       0: module: command not found        task 0 wrote this
                       srun: error: n2: task 0: Exited with exit code 127
    slurmstepd         slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT ... DUE TO TIME LIMIT ***

SLURM's commands run so that the site decides what they answer and not the user's shell, which may
hold defaults for interactive use, such as ``SQUEUE_PARTITION`` or ``SLURM_TIME_FORMAT``.

How long a job was suspended follows from ``scontrol --oneliner show job ID``::

    StartTime       SuspendTime   (suspended)        SuspendTime   (resumed)
        | runs            |                              |  runs
        |<----------- SecsPreSuspend, without ---------->|
        |            what the job was suspended          |

``SuspendTime`` is when the job was last suspended or resumed, ``None`` if it never was.
``SecsPreSuspend`` is how long it had run until then, over all its stretches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from textwrap import shorten

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import read_yaml

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
        output: what it wrote on its standard output all the same.
    """

    def __init__(self, message: str, words: str = "", output: str = "") -> None:
        super().__init__(message)
        self.words, self.output = words, output


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
        raise SlurmError(words, words, done.stdout)
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


ENDED_FOR_MEMORY = "OUT_OF_MEMORY"
ENDED_FOR_TIME = "TIMEOUT"
NO_ANSWER = "no answer"
# Any other word is of a job that lives: newer SLURMs have further ones, such as POWER_UP_NODE.
ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("REVOKED", "LAUNCH_FAILED", ENDED_FOR_MEMORY, ENDED_FOR_TIME),
    }
)
_QUEUE_PATIENCE_S = 10.0
_FORGOTTEN = "Invalid job id"  # squeue's error for a job that slurmctld no longer knows

WORDS = read_yaml(Path(__file__).with_name("words.yaml"))
"""What words of SLURM mean."""


@dataclass(frozen=True)
class JobState:
    """What SLURM says of a job.

    Args:
        state: one word, such as ``RUNNING``; None if SLURM does not know the job any more.
        reason: why it waits, or why it ended; empty if SLURM gives none.
        nodes: it runs on, in SLURM's short form; empty before it starts.
        partition: that it waits for; several, with commas, if any of them may take it.
    """

    state: str | None
    reason: str = ""
    nodes: str = ""
    partition: str = ""

    def why_pending(self) -> tuple[str, bool]:
        sentence, starts = pending_in_words(self.reason)
        # Of several partitions SLURM tells the reason of one.
        return sentence, starts or "," in self.partition

    @property
    def may_live(self) -> bool:
        return may_live(self.state)


def may_live(state: str | None) -> bool:
    """Whether a job in this state may still wait, run or be about to end."""
    return state is not None and state not in ENDED


def state(job_id: str) -> str | None:
    """The job's state in one word, without "by <uid>"; see the table above."""
    return states([job_id])[job_id].state


def states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """The state of every job, from one squeue; sacct tells of those that squeue has forgotten."""
    wanted = list(dict.fromkeys(job_ids))
    if not wanted:
        return {}
    queue = _queue(wanted)
    known = queue or {}
    missing = [job for job in wanted if job not in known]
    recorded = _accounting(missing) if missing else {}
    for job in missing:
        last = recorded.get(job, JobState(None))
        if last.state is None or last.may_live:
            # The accounting may lag: a job that the controller does not know does not run.
            last = JobState(NO_ANSWER if queue is None else None)
        known[job] = last
    return known


def hosts(job_id: str | None) -> list[str]:
    """Names of the nodes of a job; empty if SLURM does not tell."""
    if job_id is None:
        return []
    try:
        nodes = states([job_id])[job_id].nodes
        return ask(["scontrol", "show", "hostnames", nodes]).split() if nodes else []
    except SlurmError:
        return []


def description(job_id: str | None) -> str | None:
    """What ``scontrol --oneliner show job`` says; None outside of a job or without an answer."""
    if job_id is None:
        return None
    try:
        return ask(["scontrol", "--oneliner", "show", "job", job_id])
    except SlurmError:
        return None


def pending_in_words(reason: str) -> tuple[str, bool]:
    """A sentence on why a job waits, and whether it can start by itself."""
    if not reason or reason == "None":
        return "SLURM has not looked at it yet", True
    bare = reason.strip("()")
    for table, starts in ((WORDS["never"], False), (WORDS["waits"], True)):
        for word, sentence in table.items():
            if bare.startswith(word):
                return f"{bare}: {sentence}", starts
    for pattern, sentence, starts in WORDS["limits"]:
        if re.fullmatch(pattern, bare):
            return f"{bare}: {sentence}", starts
    return bare, True


def _queue(job_ids: list[str]) -> dict[str, JobState] | None:
    """Squeue's jobs; None if it does not answer."""
    # Waiting tasks of an array are one line without --array.
    command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N|%P|%r"]
    try:
        text = ask([*command, "--jobs", ",".join(job_ids)], patience_s=_QUEUE_PATIENCE_S)
    except SlurmError as error:
        # squeue refuses a single unknown job and leaves out one of several.
        return {} if _FORGOTTEN in error.words else None
    return _jobs_in(text)


def _accounting(job_ids: list[str]) -> dict[str, JobState]:
    """Sacct's jobs; those that it does not know are left out."""
    command = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State,NodeList"]
    try:
        listed = ask([*command, "--jobs", ",".join(job_ids)], patience_s=_QUEUE_PATIENCE_S)
        return _jobs_in(listed)
    except SlurmError:
        return {}


def _jobs_in(text: str) -> dict[str, JobState]:
    """Parse lines ``id|state|nodes|partition|reason``; the last two may be missing."""
    jobs = {}
    for line in text.splitlines():
        job, *values = (part.strip() for part in line.split("|", 4))
        if not values or not values[0]:
            continue
        word = values[0].split()[0].rstrip("+")  # "CANCELLED by 1000"
        nodes, partition, reason = [*values[1:], "", "", ""][:3]
        jobs[job] = JobState(
            state=word,
            reason="" if reason == "None" else reason,
            nodes="" if "None" in nodes else nodes,
            partition=partition,
        )
    return jobs


_FIELD = re.compile(r"\b(StartTime|SuspendTime|SecsPreSuspend)=(\S+)")


def suspended_s(text: str, since_s: float = 0.0) -> float:
    """Seconds for which a running job was suspended, if it was resumed after ``since_s``; else 0.

    Args:
        text: answer of scontrol about one job, with times as SLURM writes them by default: local
            ones, in whole seconds.
        since_s: seconds since 1970; at most the time from then to the last resumption counts.
    """
    fields = dict(_FIELD.findall(text))
    try:
        start_s = datetime.fromisoformat(fields["StartTime"]).timestamp()
        resumed_s = datetime.fromisoformat(fields["SuspendTime"]).timestamp()
        ran_s = float(fields["SecsPreSuspend"])
    except (KeyError, ValueError):  # never suspended, or no answer
        return 0.0
    return max(0.0, min(resumed_s - start_s - ran_s, resumed_s - since_s))


# Lines that follow from a failure, or surround it; the reason stands in others.
_AFTERMATH = re.compile(
    r"srun: (error: .*: tasks? |Terminating|Force Terminated|launch/slurm|Job step aborted)|"
    r"slurmstepd: error: \*\*\* STEP|"
    r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} .*\]$|"  # Snakemake's time of an event
    r"(Building DAG of jobs|Using shell|Provided |Rules claiming|Select jobs|Execute \d|Job stats|"
    r"Storing output|Complete log|Exiting because|WorkflowError:$|At least one job|"
    r"Removing output files|Shutting down|Error in (rule|group)|RuleException|Not everything ran|"
    r"ddlbench: waiting|shared_storage_local_copies|remote_exec|host: |Finished job|"
    r"\d+ of \d+ steps)|"
    r"(\s+(jobid|input|output|log|shell|conda-env|message|resources|threads)\b.*)$"
)
_EXIT = re.compile(
    r"srun: error: (?P<nodes>[^\s:]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)", re.MULTILINE
)
_LABEL = re.compile(r"\s*(?P<task>\d+): (?P<text>.*)")


def telling_line(text: str) -> str:
    """The last line of an output that gives a reason; empty without output."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not _AFTERMATH.match(line)]
    return (reasons or lines or [""])[-1].strip()


def words_of_tasks(text: str) -> dict[int, str]:
    """The last telling line of each task in the output of ``srun --label``."""
    lines: dict[int, list[str]] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            lines.setdefault(int(label["task"]), []).append(label["text"])
    return {task: telling_line("\n".join(of_task)) for task, of_task in lines.items()}


_NO_SUCH_JOB = re.compile(r"Expired or invalid job|Invalid job id", re.IGNORECASE)


def job_is_forgotten(text: str) -> bool:
    """Whether srun's output says that the controller does not know the job in which it runs."""
    return _NO_SUCH_JOB.search(text) is not None


def why_nodes_failed(text: str) -> str:
    """A sentence part on nodes whose task failed: ``n2: module: command not found``; else empty."""
    words = words_of_tasks(text)
    ends = list(_EXIT.finditer(text))
    # When one task fails, srun terminates the others.
    first_to_end = [end for end in ends if end["how"].strip() != "Terminated"]
    parts = []
    for match in first_to_end or ends:
        first = re.match(r"\d+", match["tasks"])
        written = words.get(int(first[0]), "") if first else ""
        parts.append(f"{match['nodes']}: {written or match['how'].strip()}")
    return "; ".join(dict.fromkeys(parts))
