"""Other people's SLURM sites: what is wrong is shown at once, nothing waits for ever.

One bed that is set as such sites are: a partition whose jobs take nodes from others, limits on
accounts, no job arrays, and a controller that soon forgets jobs, so that sacct is read too.
With ``DDLBENCH_SHIPPED_PAUSES=1`` the runs keep the pauses of the shipped profile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cluster_faults import FaultyRun, experiment, wait_for
from testbed import Options, TestBed, missing

BED = Options(
    nodes=4,
    devices=2,
    accounting=True,
    slurm_conf=(
        "MaxArraySize=1",
        "MinJobAge=2",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=CANCEL",
        "AccountingStorageEnforce=associations,limits,qos",
        "PartitionName=high Nodes=n1,n2,n3,n4 PriorityTier=10 State=UP",
    ),
)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing(BED)), reason=f"no test bed here: {missing(BED)}"),
]


@pytest.fixture(scope="module")
def bed():
    with TestBed(BED) as bed:
        yield bed


@pytest.fixture
def site(bed, tmp_path):
    """A project of this site; all nodes are in use again afterwards."""
    yield FaultyRun(tmp_path, bed)
    for command in ("resume", "idle"):
        update(f"nodename={','.join(bed.nodes)}", f"state={command}")
    subprocess.run(["scancel", "--user=root"], check=False)
    bed.wait_idle()


def update(*what: str) -> None:
    subprocess.run(["scontrol", "update", *what], check=False, capture_output=True)


def drain(*nodes: str) -> None:
    update(f"nodename={','.join(nodes)}", "state=drain", "reason=test")


def limit_jobs(number: int) -> None:
    command = [
        "sacctmgr",
        "--immediate",
        "modify",
        "user",
        "root",
        "set",
        f"MaxSubmitJobs={number}",
    ]
    subprocess.run(command, check=True, capture_output=True)


def plain(*networks: str, geometry: str = "2x1", **settings) -> dict:
    wanted = experiment("plain", **settings)
    names = [f"cluster_network:{name}" for name in networks or ("plain",)]
    wanted["matrix"] |= {"network": names, "geometry": [geometry]}
    return wanted


def test_five_mistakes_are_named_before_any_job(site):
    site.project.configure(plain())
    site.project.change_slurm(account="nosuch", partition="nowhere", extra="--mem=2000")
    site.project.change_site(scratch="/nowhere/at/all", setup=["module load CUDA/99"])
    named = ("account: nosuch", "'nowhere'", "'--mem=2000'", "/nowhere/at/all", "module: command")
    plan = site.project.ddlbench("plan")
    assert plan.returncode == 1
    assert all(word in plan.stdout for word in named), plan.stdout
    run = site.project.watch("cells")
    seconds = max(run.shows(word) for word in named)
    assert run.end() == 1
    assert "Traceback" not in run.text
    assert "submitted:" not in run.text
    site.report("five mistakes in the site's file", "not run", "-", shown_after_s=seconds)


def test_a_login_shell_without_slurm_is_told_so(site, tmp_path):
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("bash", "env", "sh", "which"):
        (commands / name).symlink_to(shutil.which(name))
    path = f"{Path(sys.executable).parent}:{commands}"
    run = site.project.watch("cells", PATH=path)
    seconds = run.shows("sbatch and squeue and scancel are not in PATH")
    assert run.end() == 1
    site.report("SLURM's commands are not in PATH", "not run", "-", shown_after_s=seconds)


def test_words_of_sbatch_are_on_the_screen_and_in_the_status(site, tmp_path):
    """What only the submission shows; a group's refusal breaks the plugin's own handler."""
    refusing = tmp_path / "commands"
    refusing.mkdir()
    (refusing / "sbatch").write_text(
        '#!/bin/bash\ncase "$*" in *--test-only*) exit 0;; esac\n'
        'echo "sbatch: error: Batch job submission failed: Invalid qos specification" >&2; exit 1\n'
    )
    (refusing / "sbatch").chmod(0o755)
    path = f"{refusing}:{site.project.environment()['PATH']}"
    site.project.configure(plain())
    run = site.project.watch("cells", PATH=path)
    seconds = run.shows("Invalid qos specification; change slurm.qos")
    assert run.end() == 1
    assert "Trying to restart" not in run.text  # it could never pass
    assert "Invalid qos" in site.project.ddlbench("status").stdout
    failure = site.failure()
    assert (failure["cause"], failure["reason_code"]) == ("infrastructure", "not_submitted")
    site.report("sbatch refuses a job", "failed", "-", shown_after_s=seconds)


def test_a_limit_on_jobs_is_waited_for(site):
    site.project.configure(plain("plain", "plain2"))
    limit_jobs(1)
    try:
        run = site.project.watch("cells", "--retries", "0")
        seconds = run.shows("MaxSubmitJobLimit")
        assert run.end(240) == 0, run.text
    finally:
        limit_jobs(-1)
    results = site.project.results().values()
    assert [result["status"] for result in results] == ["ok"] * 2
    site.report("at most one job in the queue, two cells", "-", "ok", shown_after_s=seconds)


def test_job_arrays_are_refused_in_one_sentence(site):
    run = site.project.watch("cells", "--slurm-array-jobs", "all")
    run.shows("--slurm-array-jobs: leave the option out")
    assert run.end() == 1


def test_a_preempted_cell_is_tried_again(site):
    run = site.project.watch("cells")
    job = wait_for(site.training)
    wait_for(lambda: len(site.workers(job)) == 2)
    site.broken()
    now = time.monotonic()
    nodes = ["--nodelist=n1,n2", "--nodes=2", "--ntasks=2", "--exclusive", "--output=/dev/null"]
    subprocess.run(
        ["sbatch", "--partition=high", *nodes, "--wrap=sleep 6"], check=True, capture_output=True
    )
    site.wait_until_gone(job)
    seconds = run.shows(f"SLURM preempted job {job}", since_s=now)
    site.hurry()
    assert run.end(180) == 0, run.text
    assert site.result()["status"] == "ok"
    site.report(
        "preempted by another partition", "failed, tried again", "ok", shown_after_s=seconds
    )


def test_defaults_of_the_shell_change_nothing(site):
    shell = {
        **{"SQUEUE_PARTITION": "high", "SQUEUE_USERS": "nobody", "SACCT_FORMAT": "user"},
        **{"SLURM_TIME_FORMAT": "relative", "SINFO_PARTITION": "high", "SBATCH_WAIT": "1"},
        **{"SBATCH_PARTITION": "high", "SBATCH_TIMELIMIT": "1", "SCANCEL_INTERACTIVE": "1"},
    }
    first = site.project.watch("cells", **shell)
    job = wait_for(site.training)
    wait_for(lambda: len(site.workers(job)) == 2)
    os.killpg(first.process.pid, signal.SIGKILL)
    second = site.project.watch("cells", **shell)
    wait_for(site.waits)
    site.hurry()
    assert second.end(180) == 0, second.text
    assert set(site.jobs()) == {str(job)}  # the second run's job waits, and adopts
    site.report("defaults of the shell for squeue, sbatch ...", "trains on", "ok: result adopted")


def test_a_suspended_cell_is_marked(site):
    run = site.project.watch("cells")
    job = wait_for(site.training)
    wait_for(lambda: list(site.folder.glob("results/**/.run-*/progress.json")))
    for action in ("suspend", "resume"):
        subprocess.run(["scontrol", action, str(job)], check=True)
        time.sleep(5 if action == "suspend" else 0)
    assert run.end(180) == 0, run.text
    timing = site.result()["timing"]
    assert timing["disturbed"]
    assert timing["suspended_s"] >= 3
    assert timing["median_samples_per_s"] > 1.3 * timing["samples_per_s"]
    assert "no ratio" in run.text
    assert "disturbed" in site.project.ddlbench("status").stdout
    site.report("job suspended for 5 s", "ok, marked, no speed-up", "ok, marked")


def test_a_folder_that_nodes_do_not_see_is_named(bed, tmp_path):
    folder = Path("/scratch") / tmp_path.name
    folder.mkdir(parents=True)
    try:
        site = FaultyRun(folder, bed)
        site.project.configure(plain())
        assert "lies in the site's scratch" in site.project.ddlbench("plan").stdout
        run = site.project.watch("cells", "--retries", "0")
        seconds = run.shows("its node may not see this folder")
        assert run.end() == 1
        assert "may not see this folder" in site.project.ddlbench("status").stdout
        site.report("the project lies on node-local storage", "failed", "-", shown_after_s=seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_node_whose_set_up_fails_is_named_with_its_words(site):
    site.project.configure(plain())
    site.project.change_site(setup=['[ "$(hostname)" != n2 ] || { echo no CUDA/99 here; false; }'])
    run = site.project.watch("cells", "--retries", "0")
    seconds = run.shows("n2: no CUDA/99 here")
    assert run.end() == 1
    assert "n2: no CUDA/99 here" in site.failure()["reason"]
    site.report("setup fails on one node", "failed, node and words", "-", shown_after_s=seconds)


def test_a_node_that_never_gets_ready_ends_the_staging(site):
    site.project.configure(plain())
    site.project.change_site(setup=['[ "$(hostname)" != n2 ] || sleep 600'], stage_timeout_s=8)
    run = site.project.watch("cells", "--retries", "0")
    seconds = run.shows("nothing from n2")
    assert run.end() == 1
    site.report("setup hangs on one node (limit 8 s)", "failed", "-", shown_after_s=seconds)


def test_a_job_that_waits_says_why_and_one_that_cannot_start_ends(site):
    site.project.configure(plain(geometry="4x1"))
    drain("n3")
    run = site.project.watch("cells", "--retries", "0")
    run.shows("nodes now: 3 can be used")
    run.shows("submitted:")
    # SLURM has two words for it: "ReqNodeNotAvail, UnavailableNodes:n3" and a sentence.
    reasons = ("UnavailableNodes:n3", "DRAINED")
    wait_for(lambda: any(word in site.project.ddlbench("status").stdout for word in reasons))
    now = time.monotonic()
    update("partitionname=gpu", "maxtime=1")
    try:
        seconds = run.shows("SLURM would never start job", since_s=now)
        assert run.end() == 1
    finally:
        update("partitionname=gpu", "maxtime=infinite")
    assert site.failure()["reason_code"] == "never_starts"
    site.report("the partition's time is cut under a job", "failed", "-", shown_after_s=seconds)


def test_ctrl_c_twice_cancels_and_ends_quietly(site):
    site.project.configure(plain(geometry="4x1"))
    drain("n3")
    run = site.project.watch("cells")
    run.shows("submitted:")
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    run.end()
    assert "Traceback" not in run.text
    queue = subprocess.run(["squeue", "--noheader"], check=True, capture_output=True, text=True)
    assert not queue.stdout.strip()
    site.report("Ctrl-C twice while a job waits", "not run, no job left", "-")


def test_two_nodes_of_one_host_name_and_one_with_capitals(site, bed):
    wanted = plain()
    wanted["matrix"]["strategy"] = ["ddp", "horovod"]
    site.project.configure(wanted)
    drain("n3", "n4")
    bed.run("n2", "hostname", "N1.Cluster-A.example.org")
    bed.run("n1", "hostname", "N1.Cluster-A.example.org")
    try:
        run = site.project.watch("cells", "--retries", "0")
        assert run.end(180) == 0, run.text
    finally:
        for node in ("n1", "n2"):
            bed.run(node, "hostname", node)
    assert [result["status"] for result in site.project.results().values()] == ["ok", "ok"]
    site.report("two nodes of one host name, with capitals", "-", "ok")
