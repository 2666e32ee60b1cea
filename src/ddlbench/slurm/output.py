"""What the output of a job or of its steps says of a failure: the line that tells most, the nodes.

::

    srun --label       0: module: command not found        task 0 wrote this
                       srun: error: n2: task 0: Exited with exit code 127
    slurmstepd         slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT ... DUE TO TIME LIMIT ***
"""

from __future__ import annotations

import re

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
