"""What a job's output tells of a failure, on lines of srun, slurmstepd and Snakemake."""

from __future__ import annotations

import pytest

from ddlbench.slurm.jobs import (
    telling_line,
    why_nodes_failed,
    words_of_tasks,
)

SRUN = """\
0: Loading CUDA/12.4
1: /bin/bash: line 1: module: command not found
srun: error: n2: task 1: Exited with exit code 127
srun: Terminating StepId=12.0
0: slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=12.0
"""


def test_each_task_is_quoted_with_its_last_telling_line():
    assert words_of_tasks(SRUN) == {
        0: "Loading CUDA/12.4",
        1: "/bin/bash: line 1: module: command not found",
    }


def test_a_node_is_named_with_what_its_task_wrote_and_those_that_srun_ended_are_not():
    assert why_nodes_failed(SRUN) == "n2: /bin/bash: line 1: module: command not found"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("srun: error: n[1-2]: tasks 0-1: Killed\n", "n[1-2]: Killed"),
        (
            "srun: error: n[1,3]: tasks 0,2: Exited with exit code 1\n0: no disk\n",
            "n[1,3]: no disk",
        ),
        ("srun: error: n1: task 0: Killed\nsrun: error: n1: task 0: Killed\n", "n1: Killed"),
        ("srun: error: Unable to create step for job 12: Job is finished\n", ""),
        ("all went well\n", ""),
        ("", ""),
    ],
)
def test_nodes_stand_in_slurms_short_form(text, sentence):
    assert why_nodes_failed(text) == sentence


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "ImportError: no torch\n"
            "slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
            "srun: error: n1: task 0: Exited with exit code 1\n"
            "srun: Terminating StepId=9.0\n",
            "ImportError: no torch",
        ),
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***\n",
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***",
        ),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 12.0\n"
            "srun: error: n1: task 0: Out Of Memory\n",
            "slurmstepd: error: Detected 1 oom-kill event(s) in step 12.0",
        ),
        (
            "Building DAG of jobs...\nUsing shell: /bin/bash\nddlbench: the disk is full\n"
            "[Thu Nov 26 08:27:00 2026]\nError in rule cell:\n    jobid: 0\n    log: cell.log\n"
            "Removing output files of failed job cell since they might be corrupted\n"
            "Shutting down, this might take some time.\nExiting because a job execution failed\n",
            "ddlbench: the disk is full",
        ),
        # It is all that there is.
        ("srun: error: n1: task 0: Killed\n", "srun: error: n1: task 0: Killed"),
        ("\n\n", ""),
        ("", ""),
    ],
)
def test_the_line_that_gives_the_reason_stands_before_its_aftermath(text, line):
    assert telling_line(text) == line
