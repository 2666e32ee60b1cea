"""Real ReFrame runs the test that a centre runs, on an experiment of two small cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = {
    "experiment": "tiny",
    "site": "box",
    "matrix": {
        "dataset": ["mnist"],
        "network": ["tiny_networks:other"],
        "strategy": ["sequential", "ddp"],
        "geometry": ["1x2"],
    },
    "settings": {
        **{"batch_size": 8, "data_scale": 0.0008, "epochs": 1, "warmup_steps": 1, "max_steps": 2}
    },
}
NAMES = {"sequential_1x1", "ddp_1x2"}


class Centre:
    """A folder with a site, an experiment and ReFrame's files."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.reframe = folder, programs / "reframe"

    def write(self, name: str, values: object) -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    def run(self, *options: str, **site: object) -> tuple[int, dict]:
        """Run the test; its exit status, and what ReFrame reports of the test."""
        keys = {"device": "cpu", "launcher": "local", "devices_per_node": 2, **site}
        keys["scratch"] = str(self.folder / "scratch")
        report = self.folder / "report.json"
        settings = {
            "experiment": self.write("tiny.yaml", EXPERIMENT),
            "environment": sys.prefix,
        }
        search = [str(ROOT / "src"), str(ROOT / "tests/workflow"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [
                *(self.reframe, "-c", ROOT / "envs/reframe/ddlbench_smoke.py", "-r"),
                *("-P", f"site={self.write('box.yaml', keys)}", "--prefix", self.folder),
                *(word for key, value in settings.items() for word in ("-S", f"{key}={value}")),
                *(*options, f"--report-file={report}"),
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert report.is_file(), done.stdout + done.stderr
        cases = json.loads(report.read_text(encoding="utf-8"))["runs"][0]["testcases"]
        return done.returncode, cases[0]


@pytest.fixture
def centre(tool, tmp_path) -> Centre:
    return Centre(tmp_path, tool("reframe"))


def test_speeds_are_written_then_compared(centre):
    code, case = centre.run()
    assert (code, case["result"]) == (0, "pass"), case
    (kept,) = centre.folder.glob("output/**/measured.yaml")
    measured = yaml.safe_load(kept.read_text(encoding="utf-8"))
    assert set(measured) == {"box"}
    assert set(measured["box"]) == NAMES
    assert all(speed > 0 for speed in measured["box"].values())

    # No machine is a million times faster than itself.
    fast = {"box": {name: speed * 1e6 for name, speed in measured["box"].items()}}
    code, case = centre.run("-S", f"references={centre.write('references.yaml', fast).name}")
    assert (code, case["fail_phase"]) == (1, "performance"), case


def test_a_cell_that_is_not_ok_and_a_reference_without_a_cell_fail_the_test(centre):
    lost = centre.write("references.yaml", {"box": {"horovod_1x2": 1.0}})
    code, case = centre.run("-S", f"references={lost.name}", cell_timeout_s=0.5)
    assert (code, case["fail_phase"]) == (1, "sanity"), case
    assert "sequential_1x1 is timeout" in case["fail_reason"]
    assert "horovod_1x2 has a reference" in case["fail_reason"]
