"""Two users of one machine run a cell of the demo's site side by side, over one scratch folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workflow_project import PROJECT, SETTINGS, Workflow

from ddlbench.datasets.staging import own_folder
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import cell_dir

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root to be other users"
)
# Of nobody; they may read what root's Python and this test's folders are made of, and write nothing
# that is not theirs.
UIDS = (60_101, 60_102)
_READS = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")


CELL = Cell("mnist", "mlp", "ddp", devices_per_node=2, **SETTINGS)  # trains on both devices


class User:
    """Somebody with a copy of the project of their own."""

    def __init__(self, uid: int, folder: Path, scratch: Path) -> None:
        self.uid = uid
        folder.mkdir()
        self.workflow = Workflow(folder)
        site = yaml.safe_load((PROJECT / "config" / "sites" / "local.yaml").read_text("utf-8"))
        self.workflow.write("config/sites/local.yaml", {**site, "scratch": str(scratch)})
        subprocess.run(["chown", "-R", f"{uid}:{uid}", str(folder)], check=True)

    def start(self) -> subprocess.Popen[str]:
        """Measure the cell as the demo does."""
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        target = str(cell_dir("local", CELL.id) / "result.json")
        snakemake = [sys.executable, "-m", "snakemake", target, "--profile", "profiles/local"]
        folder = self.workflow.folder
        who = {"HOME": str(folder.parent), "LOGNAME": f"user{self.uid}"}  # the machine has no name
        return subprocess.Popen(
            [*become, *_READS, *snakemake],
            cwd=folder,
            env={**self.workflow.environment, **who},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def result(self) -> tuple[dict, int]:
        """The cell's result, and who wrote it."""
        path = self.workflow.folder / cell_dir("local", CELL.id) / "result.json"
        return json.loads(path.read_bytes()), path.stat().st_uid


def test_a_second_user_runs_a_cell_beside_the_first(tmp_path):
    """hardening E1: with one name for everybody, the second was denied."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    users = [User(uid, tmp_path / str(uid), scratch) for uid in UIDS]
    runs = [user.start() for user in users]
    assert runs[0].poll() is None  # so they run side by side
    for run in runs:
        output, _ = run.communicate(timeout=400)
        assert run.returncode == 0, output
    (first, first_uid), (second, second_uid) = (user.result() for user in users)
    assert (first_uid, second_uid) == UIDS
    assert first["status"] == second["status"] == "ok"
    assert first["loss"]["first"] == pytest.approx(second["loss"]["first"], rel=1e-4)
    assert first["inputs"]["dataset_digest"] == second["inputs"]["dataset_digest"]
    assert len(list(scratch.iterdir())) == len(UIDS)
    for uid in UIDS:
        folder = own_folder(scratch).with_name(f"ddlbench-data-{uid}").stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (uid, 0o700)
