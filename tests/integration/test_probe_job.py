"""The doctor's job is asked for and started as a cell's is; SLURM is made up, all else runs."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddlbench.cluster import doctor, probe_job
from ddlbench.cluster.probe_job import batch_command
from ddlbench.cluster.query import parse_partitions
from ddlbench.experiment.site import load_site

CONFIG = Path(__file__).parents[2] / "config"
SINFO = "main|1|8|16000|(null)|1-00:00:00|up|(null)\n"
# A job is a process; it pends as often as the file `pending` has lines.
SBATCH = """
for word; do
  case $word in
    --wrap=*) wrap=${word#--wrap=} ;;
    --output=*) output=${word#--output=} ;;
  esac
done
printf '%s\\n' "$@" > HERE/asked
if [ -e HERE/refused ]; then cat HERE/refused >&2; exit 1; fi
if [ ! -e HERE/pending ]; then
  bash -c "$wrap" > "$output" 2>&1 < /dev/null &
  echo $! > HERE/job
fi
echo 17
"""
SQUEUE = """
case "$*" in *%r*) echo Priority; exit ;; esac
if [ -e HERE/cancelled ]; then echo CANCELLED
elif [ -e HERE/pending ]; then echo PENDING
elif kill -0 "$(cat HERE/job)" 2> /dev/null; then echo RUNNING
else echo COMPLETED; fi
"""
SRUN = """
printf '%s\\n' "$@" > HERE/step
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
# exec --nv IMAGE python3 ...: the words after the image's Python, with ours.
APPTAINER = 'printf "%s\\n" "$@" > HERE/contained; shift 4; exec PYTHON "$@"'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project of our own, and a SLURM of one node that is this machine."""
    (tmp_path / "Snakefile").write_text("")
    shutil.copytree(CONFIG / "schemas", tmp_path / "config" / "schemas")
    (tmp_path / "config" / "sites").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "squeue": SQUEUE,
        "srun": SRUN,
        "scancel": 'touch HERE/cancelled; echo "$@" > HERE/cancelled',
        "apptainer": APPTAINER,
    }.items():
        program = programs / name
        own = text.replace("HERE", str(tmp_path)).replace("PYTHON", sys.executable)
        program.write_text(f"#!/bin/bash\n{own}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(CONFIG.parent / "src"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "partitions", lambda: parse_partitions(SINFO, "main"))
    monkeypatch.setattr(probe_job, "_POLL_S", 0.05)
    return tmp_path


def site(here, **keys):
    values = {
        "device": "cpu",
        "launcher": "slurm",
        "nodes": 1,
        "devices_per_node": 2,
        "cpus_per_device": 4,
        "scratch": str(here / "scratch"),
        **keys,
    }
    values["slurm"] = {"gres": "", "partition": "main", **keys.get("slurm", {})}
    (here / "config" / "sites" / "mine.yaml").write_text(yaml.safe_dump(values))
    return load_site("mine")


def words(path):
    return path.read_text().splitlines()


def test_a_good_site(here):
    said = []
    findings = doctor.examine(site(here), 1, say=said.append)
    assert all(finding.ok for finding in findings), findings
    assert [f.what.split(": ")[-1] for f in findings] == [
        "partition", "job", "torch", "scratch", "network",
    ]  # fmt: skip
    assert said[0] == "waiting for a job on 1 node(s), number 17; `squeue --job 17` shows it"
    assert not (here / "cancelled").exists()
    assert not list((here / "results").iterdir())


def test_set_up_commands_container_and_options_are_those_of_cells(here):
    mine = site(
        here,
        setup=[f"echo ran > {here}/set_up"],
        container={"image": str(here / "image.sif")},
        slurm={"extra": "--reservation=lab --comment='two words'", "srun": ["--cpu-bind=cores"]},
    )
    findings = doctor.examine(mine, 1)
    assert all(finding.ok for finding in findings), findings
    assert words(here / "set_up") == ["ran"]
    assert words(here / "contained")[:4] == ["exec", "--nv", str(here / "image.sif"), "python3"]
    asked = words(here / "asked")
    assert {"--reservation=lab", "--comment=two words", "--exclusive"} <= set(asked)
    assert words(here / "step")[:5] == [
        "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=8", "--cpu-bind=cores",
    ]  # fmt: skip


def test_what_is_asked_for_is_what_the_largest_cell_of_these_nodes_asks_for(here):
    mine = load_site(str(CONFIG / "sites" / "slurm-example.yaml"), as_example=True)
    command = batch_command(mine, "example", 2, here)
    assert {
        "--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=6", "--mem=180000", "--gres=gpu:4",
        "--account=REPLACE_ME", "--partition=REPLACE_ME", "--exclusive", "--time=10",
    } <= set(command)  # fmt: skip
    assert not [word for word in command if word.startswith(("--qos", "--constraint"))]
    short = batch_command(replace(mine, cell_timeout_s=60, stage_timeout_s=60), "x", 2, here)
    assert "--time=7" in short


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"setup": ["no-such-module load CUDA"]}, "no-such-module: command not found"),
        ({"container": {"image": "$NOT_THERE/image.sif"}}, "$NOT_THERE is not set there"),
        ({"scratch": "$NOT_THERE"}, "scratch: '$NOT_THERE' is no path on"),
        ({"interface": "no0"}, "no network interface 'no0'"),
    ],
)
def test_what_is_wrong_on_a_node_is_told(keys, sentence, here, monkeypatch):
    monkeypatch.delenv("NOT_THERE", raising=False)
    wrong = [f for f in doctor.examine(site(here, **keys), 1) if not f.ok]
    assert len(wrong) == 1
    assert sentence in wrong[0].says
    assert not (here / "$NOT_THERE").exists()


def test_a_job_that_slurm_refuses_is_told_in_its_words(here):
    (here / "refused").write_text("sbatch: error: Batch job submission failed: Invalid account\n")
    findings = doctor.examine(site(here), 1)
    assert "Invalid account" in findings[-1].says


def test_a_job_that_does_not_start_is_cancelled_and_says_what_it_waited_for(here):
    (here / "pending").touch()
    said = []
    findings = doctor.examine(site(here), 1, patience_s=0.3, say=said.append)
    assert "job 17 did not start within" in findings[-1].says
    assert "(Priority)" in findings[-1].says
    assert any("it waits: Priority; `squeue --start --job 17`" in line for line in said)
    assert len(said) == 2  # not a line every look
    assert words(here / "cancelled") == ["17"]


def test_the_reason_stands_before_what_srun_adds():
    text = (
        "bash: line 1: module: command not found\n"
        "srun: error: n1: task 0: Exited with exit code 127\n"
        "srun: Terminating StepId=17.0\n"
    )
    assert probe_job._reason(text) == "bash: line 1: module: command not found"
    assert probe_job._reason("srun: error: n1: task 0: Killed\n").endswith("Killed")
    assert probe_job._reason("") == ""
