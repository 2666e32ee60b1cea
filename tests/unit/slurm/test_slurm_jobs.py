"""States of jobs, and why they wait, on the words of squeue and sacct."""

from __future__ import annotations

import pytest

from ddlbench.slurm import jobs
from ddlbench.slurm.jobs import NO_ANSWER, JobState, SlurmError, pending_in_words, states


class Slurm:
    """What each command answers; None for silence."""

    def __init__(self) -> None:
        self.squeue: str | SlurmError | None = None
        self.sacct: str | SlurmError | None = None
        self.scontrol: str | SlurmError | None = None
        self.commands: list[list[str]] = []

    def ask(self, command: list[str], patience_s: float = 0.0) -> str:
        self.commands.append(command)
        answer = getattr(self, command[0])
        if isinstance(answer, str):
            return answer
        raise answer or SlurmError("no answer")


@pytest.fixture
def slurm(monkeypatch):
    slurm = Slurm()
    monkeypatch.setattr(jobs, "ask", slurm.ask)
    return slurm


@pytest.mark.parametrize(
    ("squeue", "sacct", "state"),
    [
        ("1|RUNNING|n1|gpu|None", None, "RUNNING"),
        ("1|COMPLETED|n1|gpu|None", "1|RUNNING|n1", "COMPLETED"),
        ("", "1|TIMEOUT|n1", "TIMEOUT"),
        ("", "1|CANCELLED by 1000|n1", "CANCELLED"),
        ("", "1|OUT_OF_MEMORY|n1", "OUT_OF_MEMORY"),
        ("", "", None),
        ("", None, None),
        ("", "1|RUNNING|n1", None),  # the accounting lags: the controller has no such job
        ("", "1|PENDING|None assigned", None),
        (None, "1|COMPLETED|n1", "COMPLETED"),
        (None, "1|RUNNING|n1", NO_ANSWER),  # as long ago as the accounting heard of it
        (None, "", NO_ANSWER),
        (None, None, NO_ANSWER),
    ],
)
def test_no_answer_is_not_a_forgotten_job(squeue, sacct, state, slurm):
    slurm.squeue, slurm.sacct = squeue, sacct
    assert jobs.state("1") == state


def test_a_single_unknown_job_is_refused_and_that_is_an_answer(slurm):
    words = "slurm_load_jobs error: Invalid job id specified"
    slurm.squeue, slurm.sacct = SlurmError(words, words), ""
    assert jobs.state("1") is None
    words = "slurm_load_jobs error: Unable to contact slurm controller"
    slurm.squeue = SlurmError(words, words)
    assert jobs.state("1") == NO_ANSWER


def test_many_jobs_need_one_squeue_and_one_sacct_for_those_that_it_forgot(slurm):
    slurm.squeue = "1|RUNNING|n[1-2]|gpu|None\n2|PENDING||a,b|PartitionTimeLimit"
    slurm.sacct = "3|FAILED|n4"
    assert states(["1", "2", "3", "4", "1"]) == {
        "1": JobState("RUNNING", "", "n[1-2]", "gpu"),
        "2": JobState("PENDING", "PartitionTimeLimit", "", "a,b"),
        "3": JobState("FAILED", "", "n4"),
        "4": JobState(None),
    }
    _, starts = states(["2"])["2"].why_pending()
    assert starts  # the other partition may take it
    squeue, sacct = slurm.commands[:2]
    assert squeue[-1] == "1,2,3,4"
    assert sacct[-1] == "3,4"
    assert "--states=all" in squeue  # else it hides jobs that have just ended


def test_slurm_is_not_bothered_for_no_job(slurm):
    assert states([]) == {}
    assert slurm.commands == []


def test_a_reason_may_hold_a_bar_and_a_node_may_be_unknown(slurm):
    slurm.squeue = "1|PENDING||gpu|Nodes required: a|b"
    slurm.sacct = "2|CANCELLED|None assigned"
    known = states(["1", "2"])
    assert known["1"].reason == "Nodes required: a|b"
    assert known["2"] == JobState("CANCELLED")


@pytest.mark.parametrize(
    ("state", "lives"),
    [
        *((word, True) for word in ("PENDING", "RUNNING", "COMPLETING", "POWER_UP", NO_ANSWER)),
        *((word, False) for word in ("COMPLETED", "PREEMPTED", "NODE_FAIL", "CANCELLED", None)),
    ],
)
def test_which_jobs_may_live(state, lives):
    assert JobState(state).may_live == lives


def test_hosts_of_a_job_are_written_out(slurm):
    slurm.squeue, slurm.scontrol = "1|RUNNING|n[1-2]|gpu|None", "n1\nn2"
    assert jobs.hosts("1") == ["n1", "n2"]
    assert jobs.hosts(None) == []
    slurm.squeue = None
    assert jobs.hosts("1") == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes are busy"),
        ("Priority", "jobs before it start first"),
        ("(Priority)", "Priority: jobs before it start first"),
        ("Licenses", "its licences are in use"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "down, drained or reserved"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "take fewer nodes"),
        ("PartitionDown", "the partition is down"),
        ("JobHeldUser", "release it with scontrol release"),
        ("launch failed requeued held", "SLURM holds it"),
        ("job requeued in held state", "release it with scontrol release"),
        ("JobHoldMaxRequeue", "release it with scontrol release"),
        ("AssocGrpCpuLimit", "when other jobs end"),
        ("QOSMaxJobsPerUserLimit", "when other jobs end"),
        ("QOSMaxCpuPerUserLimit", "when other jobs end"),
        ("AssocGrpCPURunMinutesLimit", "when other jobs end"),
        ("AssocGrpCPUMinutesLimit", "its budget of time is used up"),
        ("QOSGrpBillingMinutes", "its budget of time is used up"),
        ("SomethingNew", "SomethingNew"),
        ("", "SLURM has not looked at it yet"),
        ("None", "SLURM has not looked at it yet"),
    ],
)
def test_a_job_that_may_start_waits(reason, words):
    sentence, starts = pending_in_words(reason)
    assert starts
    assert words in sentence


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("PartitionTimeLimit", "cell_timeout_s"),
        ("PartitionNodeLimit", "slurm.partition"),
        ("BadConstraints", "slurm.constraint"),
        ("InvalidQOS", "slurm.qos"),
        ("InvalidAccount", "slurm.account"),
        ("AccountNotAllowed", "slurm.account"),
        ("DependencyNeverSatisfied", "slurm.extra"),
        ("QOSMaxNodePerJobLimit", "ask for less"),
        ("QOSMaxCpuPerNode", "ask for less"),
        ("QOSMinGRES", "ask for more"),
        ("QOSMinCpuNotSatisfied", "ask for more"),
        ("AssocMaxWallDurationPerJobLimit", "ask for less"),
        ("QOSMaxWallDurationPerJobLimit", "ask for less"),
    ],
)
def test_a_job_that_can_never_start_says_what_to_change(reason, remedy):
    sentence, starts = pending_in_words(reason)
    assert not starts
    assert sentence.startswith(f"{reason}: ")
    assert remedy in sentence
