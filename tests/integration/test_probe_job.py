"""The doctor's job is asked for and started as a cell's is; SLURM is made up, all else runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ddlbench.cluster import doctor
from ddlbench.cluster.doctor import batch_command
from ddlbench.experiment.site import load_site

CONFIG = Path(__file__).parents[2] / "config"
SINFO = "main|1|8|16000|(null)|1-00:00:00|up|(null)\n"
# A job is a process; it pends while the file `pending` is there.
SBATCH = """
for word; do
  case $word in
    --wrap=*) wrap=${word#--wrap=} ;;
    --output=*) output=${word#--output=} ;;
    --test-only) if [ -e HERE/refused ]; then cat HERE/refused >&2; exit 1; fi; exit 0 ;;
  esac
done
printf '%s\\n' "$@" > HERE/asked
if [ -e HERE/refused_later ]; then cat HERE/refused_later >&2; exit 1; fi
if [ ! -e HERE/pending ]; then
  bash -c "$wrap" > "$output" 2>&1 < /dev/null &
  echo $! > HERE/job
fi
echo 17
"""
SQUEUE = """
if [ -e HERE/cancelled ]; then echo "17|CANCELLED||None"
elif [ -e HERE/pending ]; then echo "17|PENDING||gpu|$(cat HERE/pending)"
elif kill -0 "$(cat HERE/job)" 2> /dev/null; then echo "17|RUNNING|n1|gpu|None"
else echo "17|COMPLETED|n1|None"; fi
"""
SINFO_COMMAND = """
case "$*" in
  *%P*) echo "main*" ;;
  *%F*) echo "0/1/0/1" ;;
  *) echo "SINFO" ;;
esac
"""
SRUN = """
printf '%s\\n' "$@" > HERE/step
while [ "${1#--}" != "$1" ]; do shift; done
"$@" 2>&1 | sed 's/^/0: /'
status=${PIPESTATUS[0]}
if [ "$status" != 0 ]; then echo "srun: error: n1: task 0: Exited with exit code $status" >&2; fi
exit "$status"
"""
# exec --nv IMAGE python3 ...: the words after the image's Python, with ours.
APPTAINER = 'printf "%s\\n" "$@" > HERE/contained; shift 4; exec PYTHON "$@"'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project of our own, and a SLURM of one node that is this machine."""
    (tmp_path / "Snakefile").write_text("")
    (tmp_path / "config" / "sites").mkdir(parents=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "squeue": SQUEUE,
        "sinfo": SINFO_COMMAND.replace("SINFO", SINFO.strip()),
        "sacct": "exit 1",
        "sacctmgr": "exit 1",
        "srun": SRUN,
        "scancel": 'touch HERE/cancelled; echo "$@" > HERE/cancelled',
        "apptainer": APPTAINER,
    }.items():
        program = programs / name
        script = text.replace("HERE", str(tmp_path)).replace("PYTHON", sys.executable)
        program.write_text(f"#!/bin/bash\n{script}")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(CONFIG.parent / "src"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_POLL_S", 0.05)
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
    messages = []
    findings = doctor.examine(site(here), 1, say=messages.append)
    assert all(finding.ok for finding in findings), findings
    # Where the tests run decides whether their folder is a doubt.
    assert [f.what.split(": ")[-1] for f in findings if not f.doubtful] == [
        "partition", "job", "torch", "scratch", "network",
    ]  # fmt: skip
    assert messages[0] == "waiting for a job on 1 node, number 17; `squeue --job 17` shows it"
    assert not (here / "cancelled").exists()
    assert not list((here / "results").iterdir())


def test_set_up_commands_container_and_options_are_those_of_cells(here):
    mine = site(
        here,
        setup=[f"echo ran > {here}/set_up"],
        container={"image": str(here / "image.sif")},
        slurm={"extra": "--reservation=lab --wckey='two words'", "srun": ["--cpu-bind=cores"]},
    )
    findings = doctor.examine(mine, 1)
    assert all(finding.ok for finding in findings), findings
    assert words(here / "set_up") == ["ran"]
    assert words(here / "contained")[:4] == ["exec", "--nv", str(here / "image.sif"), "python3"]
    options = words(here / "asked")
    assert {"--reservation=lab", "--wckey=two words", "--exclusive"} <= set(options)
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


def test_a_job_that_slurm_refuses_is_not_sent(here):
    words = "sbatch: error: Batch job submission failed: Invalid account or account/partition\n"
    (here / "refused").write_text(words)
    findings = doctor.examine(site(here, slurm={"account": "lab"}), 1)
    (wrong,) = [finding for finding in findings if not finding.ok]
    assert wrong.what == "account"
    assert "Invalid account" in wrong.says
    assert not (here / "asked").exists()


def test_what_slurm_refuses_at_last_is_told_in_its_words(here):
    (here / "refused_later").write_text("sbatch: error: the site's filter does not like it\n")
    findings = doctor.examine(site(here), 1)
    assert "the site's filter does not like it" in findings[-1].says


def test_a_job_that_does_not_start_is_cancelled_and_says_what_it_waited_for(here):
    (here / "pending").write_text("Priority")
    lines = []
    findings = doctor.examine(site(here), 1, patience_s=0.3, say=lines.append)
    assert "job 17 did not start within" in findings[-1].says
    assert "(Priority: jobs before it start first)" in findings[-1].says
    assert any("it waits: Priority: jobs before" in line for line in lines)
    assert len(lines) == 2  # not a line every look
    assert words(here / "cancelled") == ["17"]


def test_a_job_that_can_never_start_is_cancelled_at_once(here):
    (here / "pending").write_text("PartitionTimeLimit")
    findings = doctor.examine(site(here), 1, patience_s=3600)
    assert "SLURM would never start the job: PartitionTimeLimit" in findings[-1].says
    assert words(here / "cancelled") == ["17"]
