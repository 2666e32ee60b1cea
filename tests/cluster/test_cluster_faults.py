"""What becomes of a cell when something breaks: faults put into real runs on a real SLURM.

Every test breaks one run, lets the workflow run again, and adds a row to the fault table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cases.fault_table import ROWS, Row
from cluster_project import Project
from testbed import Options, TestBed, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"no test bed here: {missing()}"),
]

NETWORKS = Path(__file__).with_name("fault_networks.py")


def experiment(network: str = "slow", **settings: object) -> dict:
    return {
        "experiment": "faults",
        "site": "testbed",
        "matrix": {
            "dataset": ["mnist"],
            "network": [f"cluster_network:{network}"],
            "strategy": ["ddp"],
            "geometry": ["2x1"],
        },
        "settings": {
            **{"batch_size": 4, "data_scale": 0.0008, "epochs": 3, "warmup_steps": 0},
            **settings,
        },
    }


class FaultyRun:
    """A project with one cell, broken while it runs."""

    def __init__(self, folder: Path, bed: TestBed) -> None:
        self.bed = bed
        self.project = Project(folder, bed, experiment(), NETWORKS.read_text())
        self.folder = folder
        self.broken_at = 0.0
        self.ranks_gone_s: float | None = None

    @property
    def cell(self) -> Path | None:
        folders = list(self.folder.glob("results/testbed/cells/**/rep0"))
        return folders[0] if folders else None

    def result(self) -> dict | None:
        path = self.cell / "result.json" if self.cell else None
        return json.loads(path.read_text()) if path and path.exists() else None

    def failure(self) -> dict:
        return json.loads((self.cell / "failure.json").read_text())

    def jobs(self, note: str = "runs.txt") -> list[str]:
        path = self.folder / note
        return path.read_text().split() if path.exists() else []

    def training(self) -> int | None:
        """The SLURM job whose two ranks train now, or did when it ended."""
        if self.cell is None or not (self.cell / "lease.json").exists():
            return None
        job = json.loads((self.cell / "lease.json").read_text())["job_id"]
        return int(job) if self.jobs().count(job) >= 2 else None

    def start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
        """Start the workflow and return once its cell trains."""
        earlier = set(map(int, self.jobs()))
        run = self.project.start("cells", *arguments)
        job = wait_for(lambda: {self.training()} - {None} - earlier).pop()
        wait_for(lambda: len(self.workers(job)) == 2)
        return run, job

    def workers(self, job: int) -> list[int]:
        actual = self.bed.processes(job).values()
        return [
            process.pid
            for processes in actual
            for process in processes
            if "ddlbench.runtime.worker" in command_line(process.pid)
        ]

    def waits(self) -> bool:
        """Whether a job waits for the cell that another one trains."""
        logs = self.folder.glob(".snakemake/slurm_logs/**/*.log")
        return any("waiting for it" in log.read_text(errors="replace") for log in logs)

    def broken(self) -> None:
        self.broken_at = time.monotonic()

    def wait_until_gone(self, job: int, seconds: float = 90) -> None:
        wait_for(lambda: not self.workers(job), seconds)
        self.ranks_gone_s = time.monotonic() - self.broken_at

    def hurry(self) -> None:
        """From now on nothing is broken any more, so that training need not last."""
        (self.folder / "hurry.txt").touch()

    def run_again(self) -> dict:
        """The workflow's next run; returns the cell's result."""
        again = self.project.snakemake("cells")
        assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
        result = self.result()
        assert result is not None
        return result

    def report(
        self, fault: str, state: str, then: str, lost: int = 0, shown_after_s: float | None = None
    ) -> None:
        """Add this run to the fault table, and hold it to its two zeros."""
        twice = max(0, len(self.jobs("complete.txt")) - 1)
        row = Row(fault, "SLURM", state, self.ranks_gone_s, then, lost, twice, shown_after_s)
        ROWS.append(row)
        assert (lost, twice) == (0, 0)


def wait_for(condition, seconds=120.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError("it did not come")


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def end(run: subprocess.Popen[bytes], seconds: float = 90) -> None:
    """End a workflow as a person would: Ctrl-C, and then for certain."""
    run.send_signal(signal.SIGINT)
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def folder_made(bed: TestBed, node: str) -> str:
    """Inodes of the data folders on a node: another one each time they are made."""
    return bed.run(node, "sh", "-c", "stat -c %i /scratch/ddlbench-data-*/*/").stdout


@pytest.fixture(scope="module")
def bed():
    with TestBed(Options(nodes=2, devices=2, memory_mb=3000, scratch_mb=64)) as bed:
        yield bed


@pytest.fixture
def faulty(bed, tmp_path):
    bed.wait_idle()
    return FaultyRun(tmp_path, bed)


PIPELINE = {
    **experiment(),
    "matrix": {**experiment()["matrix"], "strategy": ["pipedream"]},
    "strategies": {"pipedream": {"balance": "1+2"}},
}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (experiment(), "rank"),
        pytest.param(
            *(PIPELINE, "stage of a PipeDream pipeline"), marks=pytest.mark.exhaustive, id="stage"
        ),
    ],
)
def test_a_killed_rank_and_a_cancelled_job_leave_no_rank_and_the_next_run_trains(
    faulty, config, what
):
    faulty.project.configure(config)
    run, job = faulty.start("--retries", "0")
    faulty.broken()
    os.kill(faulty.workers(job)[-1], signal.SIGKILL)
    faulty.wait_until_gone(job, 30)
    killed_gone_s = faulty.ranks_gone_s
    assert run.wait(timeout=120) != 0
    failure = faulty.failure()
    assert "killed by signal 9" in failure["reason"]
    assert failure["cause"] == "infrastructure"
    assert faulty.result() is None
    run, job = faulty.start()  # with the profile's one retry, which a cancelled job does not take
    faulty.broken()
    faulty.bed.cancel(job)
    faulty.wait_until_gone(job)
    assert run.wait(timeout=120) != 0
    assert faulty.result() is None
    faulty.hurry()
    assert faulty.run_again()["status"] == "ok"
    faulty.report("scancel", "not run", "ok")
    faulty.ranks_gone_s = killed_gone_s
    faulty.report(f"one {what} killed (-9)", "failed: the rank and its signal are named", "ok")


def test_a_node_that_dies_costs_one_attempt(faulty):
    run, job = faulty.start()  # with the profile's one retry
    faulty.broken()
    faulty.bed.crash("n2")
    try:
        faulty.wait_until_gone(job)
    finally:
        faulty.hurry()
        faulty.bed.start_slurmd("n2")
    assert run.wait(timeout=240) == 0
    assert faulty.result()["status"] == "ok"
    faulty.report("a node dies", "failed, tried again by the same run", "ok")


def test_a_node_whose_daemon_dies_ends_its_job(faulty):
    run, job = faulty.start()
    faulty.broken()
    faulty.bed.kill_slurmd("n2")
    try:
        # Without its daemon the node's ranks may train on; SLURM gives the node up after a while.
        wait_for(lambda: not faulty.workers(job) or faulty.result(), 120)
        wait_for(lambda: not faulty.workers(job), 90)
        faulty.ranks_gone_s = time.monotonic() - faulty.broken_at
    finally:
        faulty.hurry()
        faulty.bed.start_slurmd("n2")
    assert run.wait(timeout=300) == 0
    assert faulty.result()["status"] == "ok"
    faulty.report("slurmd of one node killed", "trains on, or is tried again by the same run", "ok")


@pytest.mark.exhaustive  # ends as a rank that hangs does, with the result of test_runtime_cells.py
def test_the_cells_own_time_limit_is_a_result(faulty):
    faulty.project.configure(experiment(epochs=60))
    faulty.project.change_site(cell_timeout_s=14)
    run, job = faulty.start()
    faulty.broken()
    faulty.wait_until_gone(job)
    assert run.wait(timeout=120) == 0
    assert faulty.result()["status"] == "timeout"
    assert faulty.project.jobs_submitted(faulty.project.snakemake("cells")) == 0
    faulty.report("cell_timeout_s exceeded", "result timeout", "timeout, nothing is submitted")


def test_slurms_time_limit_is_a_result_though_nobody_was_left_to_write_it(faulty):
    faulty.project.configure(experiment(epochs=60))
    run, job = faulty.start()
    faulty.broken()
    limit = ["scontrol", "update", f"JobId={job}", "TimeLimit=00:00:01"]
    subprocess.run(limit, check=True)
    faulty.wait_until_gone(job, 150)
    # The profile's retry asks SLURM how the job before it ended.
    assert run.wait(timeout=180) == 0
    result = faulty.result()
    assert result["status"] == "timeout"
    assert str(job) in result["reason"]
    assert len(faulty.jobs()) == 2  # two ranks, once
    faulty.report("SLURM's wall time exceeded", "result timeout, by the next attempt", "timeout")


def test_more_memory_than_the_job_has_is_a_result(faulty):
    faulty.project.configure(experiment("greedy"))
    run = faulty.project.snakemake("cells")
    assert run.returncode == 0, run.stderr[-3000:]
    result = faulty.result()
    assert result["status"] == "out_of_memory"
    assert result["reason"]
    assert faulty.project.jobs_submitted(faulty.project.snakemake("cells")) == 0
    faulty.report("memory limit exceeded", "result out_of_memory", "the same, nothing is submitted")


def test_a_rank_that_hangs_dumps_its_stacks_and_the_cell_fails(faulty):
    faulty.project.configure(experiment("stuck"))
    faulty.project.change_site(hang_timeout_s=12)
    run, job = faulty.start("--retries", "0")
    faulty.broken()
    faulty.wait_until_gone(job)
    assert run.wait(timeout=120) != 0
    assert "hang_timeout_s" in faulty.failure()["reason"]
    log = (faulty.cell / "log.txt").read_text()
    for rank in (0, 1):
        assert f"{rank}: Current thread" in log or f"{rank}: Thread 0x" in log, log
    assert "in forward" in log
    faulty.report("a rank hangs (limit 12 s)", "failed, stacks of all ranks in log.txt", "-")


def test_a_bug_is_not_tried_again(faulty):
    faulty.project.configure(experiment("wrong"))
    run = faulty.project.snakemake("cells")
    assert run.returncode != 0
    assert faulty.failure()["cause"] == "program"
    assert len(set(faulty.jobs())) == 1, "the retry must not run a program that crashed"
    assert "not tried again" in run.stdout + run.stderr
    faulty.report("the program crashes (a bug)", "failed, not tried again by itself", "-")


def test_a_full_scratch_disk_names_the_node(faulty):
    for node in ("n1", "n2"):
        faulty.bed.run(node, "sh", "-c", "rm -rf /scratch/ddlbench-data-*")
    faulty.bed.run("n2", "sh", "-c", "cat /dev/zero > /scratch/fill", check=False)
    try:
        run = faulty.project.snakemake("cells", "--retries", "0")
    finally:
        faulty.bed.run("n2", "rm", "-f", "/scratch/fill")
    assert run.returncode != 0
    output = run.stdout + run.stderr
    assert "n2: mnist data at scale 0.0008 needs about" in output
    assert "Traceback" not in output
    assert "n2: " in faulty.failure()["reason"]
    assert faulty.jobs() == []
    faulty.hurry()
    assert faulty.run_again()["status"] == "ok"
    faulty.report("scratch of one node full", "failed before training, the node is named", "ok")


def test_a_truncated_result_and_corrupted_data_are_made_anew(faulty):
    faulty.hurry()
    assert faulty.run_again()["status"] == "ok"
    (faulty.folder / "complete.txt").unlink()
    path = faulty.cell / "result.json"
    path.write_bytes(path.read_bytes()[:700])
    made = {node: folder_made(faulty.bed, node) for node in ("n1", "n2")}
    corrupt = "find /scratch/ddlbench-data-* -name '*images*' -exec truncate -s 100 {} +"
    faulty.bed.run("n2", "sh", "-c", corrupt)
    result = faulty.run_again()
    assert result["status"] == "ok"
    assert (faulty.cell / "result.json.broken").stat().st_size == 700
    faulty.report("result.json truncated", "put aside as result.json.broken", "ok")
    assert not result["staging"]["reused"]
    anew = {node: folder_made(faulty.bed, node) != made[node] for node in made}
    assert anew == {"n1": False, "n2": True}
    faulty.report("staged data corrupted on one node", "made anew on that node only", "ok")


@pytest.mark.exhaustive  # so do test_cluster_sites.py's runs with the defaults of a shell
def test_a_workflow_that_was_killed_is_started_again_and_no_cell_runs_twice(faulty):
    faulty.project.configure(experiment("slower"))
    first, job = faulty.start()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    again = faulty.project.watch("cells")
    wait_for(faulty.waits)
    faulty.hurry()
    assert again.end() == 0, again.text
    result = faulty.result()
    assert result["status"] == "ok"
    assert result["provenance"]["slurm_job_id"] == str(job)
    assert set(faulty.jobs()) == {str(job)}  # all that built the network were ranks of one job
    faulty.report("snakemake killed (-9), started again", "trains on", "ok: result adopted")


def test_two_workflows_at_once_measure_a_cell_once(faulty):
    faulty.project.configure(experiment("slower"))
    first, _ = faulty.start()
    second = faulty.project.watch("cells")
    wait_for(faulty.waits)
    faulty.hurry()
    assert first.wait(timeout=120) == 0
    assert second.end() == 0, second.text
    assert len(set(faulty.jobs())) == 1
    assert faulty.result()["status"] == "ok"
    faulty.report("two snakemakes at once", "measured once", "ok for both")
