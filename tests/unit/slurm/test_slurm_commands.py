"""SLURM's commands: what the user's shell may not decide, and what becomes of a refusal."""

from __future__ import annotations

import os

import pytest

from ddlbench.slurm.jobs import (
    SlurmError,
    ask,
    drop_user_defaults,
    missing_commands,
    refusal,
    user_defaults,
)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a program that stands before all others in PATH."""

    def write(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return write


@pytest.mark.parametrize(
    "name",
    [
        "SQUEUE_PARTITION",
        "SQUEUE_FORMAT",
        "SACCT_FORMAT",
        "SINFO_PARTITION",
        "SCANCEL_INTERACTIVE",
        "SBATCH_ACCOUNT",
        "SBATCH_WAIT",
        "SRUN_CPUS_PER_TASK",
        "SLURM_TIME_FORMAT",
        "SLURM_EXCLUSIVE",
        "SLURM_LABELIO",
    ],
)
def test_what_a_shell_sets_for_interactive_use_is_dropped(name):
    assert user_defaults({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name", ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SLURM_PROCID", "SLURMD_NODENAME"]
)
def test_which_slurm_it_is_and_which_job_runs_here_is_kept(name):
    assert user_defaults({name: "x", "PATH": "/bin", "HOME": "/"}) == {}


def test_dropped_defaults_are_gone_and_handed_back(monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert drop_user_defaults()["SBATCH_PARTITION"] == "short"
    assert "SBATCH_PARTITION" not in os.environ
    assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
    assert drop_user_defaults() == {}


def test_a_command_does_not_see_the_defaults(program, monkeypatch):
    program("squeue", 'echo "<$SQUEUE_PARTITION> <$SLURM_CLUSTERS>"')
    monkeypatch.setenv("SQUEUE_PARTITION", "short")
    monkeypatch.setenv("SLURM_CLUSTERS", "big")
    assert ask(["squeue"]) == "<> <big>"
    assert os.environ["SQUEUE_PARTITION"] == "short"  # only the command goes without


def test_a_command_that_refuses_is_quoted(program):
    program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        ask(["squeue"])
    assert caught.value.words == "slurm_load_jobs error: Invalid job id specified"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("exit 3", "squeue ended with 3"), ("kill -9 $$", "squeue ended with -9")],
)
def test_a_command_that_ends_without_a_word_is_told_by_its_status(script, sentence, program):
    program("squeue", script)
    with pytest.raises(SlurmError, match=sentence):
        ask(["squeue"])


def test_a_command_that_does_not_answer_has_no_words(program):
    program("squeue", "exec sleep 600")
    with pytest.raises(SlurmError, match=r"squeue did not answer within 0\.1 s") as caught:
        ask(["squeue"], patience_s=0.1)
    assert caught.value.words == ""


def test_a_command_that_is_not_here_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="sinfo is not in PATH"):
        ask(["sinfo"])
    assert missing_commands() == ["sbatch", "squeue", "scancel"]


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("sbatch: error: invalid partition specified: x\n", "invalid partition specified: x"),
        ("allocation failure: Invalid qos specification\n", "Invalid qos specification"),
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n",
            "QOSMaxSubmitJobPerUserLimit: "
            "Batch job submission failed: Job violates accounting/QOS policy",
        ),
        ("sbatch: error: a\n\nsbatch: error: b\nsbatch: error: b\n", "a: b"),
        (
            "sbatch: error: no project\nsbatch: error: Submission failed: Unspecified error",
            "no project",
        ),
        ("", ""),
    ],
)
def test_a_refusal_is_one_line_without_the_name_of_the_command(stderr, words):
    assert refusal(stderr) == words
