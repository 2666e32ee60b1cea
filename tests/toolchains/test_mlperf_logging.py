"""MLCommons' compliance checker passes the log of a cell in all that the cell claims."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess

import pytest
from cases.traced_cells import DDP, VALIDATED, folder_of

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.report.traces.formats import write_cell
from ddlbench.report.traces.mllog import RULES, log_lines, unclaimed

ABOUT = re.compile(r"(?:of|for) '(\w+)'|or '(\w+)'")


@pytest.fixture(scope="session")
def python(tool):
    return tool("mlperf-logging") / "python"


def check(python, log, folder):
    """Whether the checker passes a log, and which keys it complains of."""
    command = [python, "-m", "mlperf_logging.compliance_checker", "--usage", "training"]
    ended = subprocess.run(
        [*command, "--ruleset", RULES, str(log), "--log_output", str(folder / "checker.log")],
        capture_output=True,
        text=True,
        check=False,
    )
    text = ended.stdout + ended.stderr
    assert "Traceback" not in text, text[-2000:]
    assert ("SUCCESS" in text) == (ended.returncode == 0)
    keys = {name for pair in ABOUT.findall(text) for name in pair if name}
    return ended.returncode == 0, {key for key in keys if not key.startswith("block_")}


@pytest.mark.parametrize("cell", [DDP, VALIDATED], ids=["ddp", "validated"])
def test_the_checker_misses_only_what_a_cell_does_not_claim(python, cell, tmp_path):
    folder = folder_of(cell)
    (log,) = write_cell(folder, "mllog", tmp_path / "out")
    passed, missed = check(python, log, tmp_path)
    assert not passed
    assert missed == set(unclaimed(read_result(folder / "result.json")))
    assert ("eval_accuracy" in missed) == (cell is DDP)


def test_the_checker_passes_resnet50_on_all_of_imagenet(python, tmp_path):
    """The numbers are those of a small cell; the log is as that of the real benchmark would be."""
    result = read_result(folder_of(VALIDATED) / "result.json")
    whole = {"network": "resnet50", "dataset": "imagenet", "data_source": "real"}
    cell = Cell.from_id(result.cell_id).with_(**whole, data_scale=1.0)
    claims = dataclasses.replace(result, cell_id=cell.id, cell=cell.to_dict())
    assert not unclaimed(claims)
    log = tmp_path / "result_0.txt"
    log.write_text("\n".join(log_lines(claims)) + "\n")
    passed, missed = check(python, log, tmp_path)
    assert passed, missed


def test_the_checker_refuses_a_log_that_is_out_of_order(python, tmp_path):
    """So that a pass means something."""
    lines = list(log_lines(read_result(folder_of(VALIDATED) / "result.json")))
    at = next(place for place, line in enumerate(lines) if '"run_start"' in line)
    event = json.loads(lines[at].partition(":::MLLOG ")[2])
    moved = [*lines[:at], *lines[at + 1 :], f":::MLLOG {json.dumps(event)}"]
    (tmp_path / "log.txt").write_text("\n".join(moved))
    assert "run_stop" in check(python, tmp_path / "log.txt", tmp_path)[1]
