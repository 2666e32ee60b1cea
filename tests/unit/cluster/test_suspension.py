"""How long SLURM suspended a job, from what scontrol says."""

from __future__ import annotations

from datetime import datetime

import pytest

from ddlbench.slurm.jobs import suspended_s

ANSWER = (
    "JobId=270 JobName=cells UserId=ada(1001) GroupId=ada(1001) MCS_label=N/A Priority=1 Nice=0 "
    "Account=(null) QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:05:00 TimeLimit=UNLIMITED "
    "TimeMin=N/A SubmitTime=2026-10-11T11:08:10 EligibleTime=2026-10-11T11:08:10 "
    "AccrueTime=2026-10-11T11:08:10 StartTime=2026-10-11T11:08:17 EndTime=Unknown Deadline=N/A "
    "SuspendTime={resumed} SecsPreSuspend={ran} LastSchedEval=2026-10-11T11:08:17 Scheduler=Main "
    "Partition=main AllocNode:Sid=head:2556938 ReqNodeList=(null) ExcNodeList=(null) NodeList=n1"
)


def at(text):
    return datetime.fromisoformat(text).timestamp()


def test_a_job_that_was_never_suspended():
    assert suspended_s(ANSWER.format(resumed="None", ran=0)) == 0


def test_a_job_that_was_suspended_once():
    """Started 11:08:17, ran for a minute, was resumed at 11:09:32."""
    answer = ANSWER.format(resumed="2026-10-11T11:09:32", ran=60)
    assert suspended_s(answer) == 15
    assert suspended_s(answer, at("2026-10-11T11:08:50")) == 15


def test_two_suspensions_add_up():
    """It ran for 60 s, stood for 15 s, ran for 30 s, stood for 20 s."""
    assert suspended_s(ANSWER.format(resumed="2026-10-11T11:10:22", ran=90)) == 35


def test_what_was_before_does_not_count():
    answer = ANSWER.format(resumed="2026-10-11T11:09:32", ran=60)
    assert suspended_s(answer, at("2026-10-11T11:09:33")) == 0
    assert suspended_s(answer, at("2026-10-11T11:09:27")) == 5  # began within the suspension


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "slurm_load_jobs error: Invalid job id specified",
        ANSWER.format(resumed="yesterday", ran=60),
        ANSWER.format(resumed="2026-10-11T11:09:32", ran="N/A"),
    ],
)
def test_what_cannot_be_read_says_nothing(answer):
    assert suspended_s(answer) == 0


def test_a_job_of_several_lines_reads_alike():
    answer = ANSWER.format(resumed="2026-10-11T11:09:32", ran=60)
    assert suspended_s(answer.replace(" ", "\n   ")) == 15
