"""`ddlbench report timeline`: pictures of a cell, pictures of a schedule, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddlbench.commands.timeline import timeline
from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules import StageDurations

_SPEC = importlib.util.spec_from_file_location(
    "timeline_factory_of_commands", Path(__file__).parents[1] / "report" / "timeline_factory.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
made = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = made
_SPEC.loader.exec_module(made)

ENDINGS = (".csv", ".json", ".pdf", ".png")


def run(*arguments):
    return CliRunner().invoke(timeline, [str(a) for a in arguments])


def test_a_cell_becomes_four_files_beside_its_trace(tmp_path):
    durations = StageDurations([0.01] * 2, [0.02] * 2)
    made.write_cell(tmp_path, made.cell_of("pipedream", 2), durations)
    done = run(tmp_path)
    assert done.exit_code == 0, done.exception
    assert f"{tmp_path}/timeline.png, .pdf, .csv and .json are written" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"plan.json", "trace.json", *(f"timeline{e}" for e in ENDINGS)}
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    done = run(tmp_path, "--out", tmp_path / "elsewhere", "--steps", 1)
    assert done.exit_code == 0, done.exception
    assert len(list((tmp_path / "elsewhere").iterdir())) == 4


def test_a_schedule_alone_needs_no_cell(tmp_path):
    arguments = ("--schedule", "pipedream", "--stages", 3, "--mini-batches", 5, "--out", tmp_path)
    done = run(*arguments)
    assert done.exit_code == 0, done.exception
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"pipedream{e}" for e in ENDINGS]
    lines = (tmp_path / "pipedream.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 5 * 2
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run(*arguments)
    assert first == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_replicas_say_how_many_stages_there_are(tmp_path):
    done = run("--schedule", "pipedream", "--replicas", "2+1+1", "--out", tmp_path)
    assert done.exit_code == 0, done.exception
    text = (tmp_path / "pipedream.csv").read_text()
    assert "device 1 · stage 0 · replica 1" in text
    assert "device 3 · stage 2" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "write a cell's folder"),
        (("FOLDER", "--schedule", "gpipe"), "write a cell's folder"),
        (("FOLDER", "--stages", 2), "--stages: only for a --schedule"),
        (("FOLDER",), "has no plan.json"),
        (("--schedule", "gpipe", "--replicas", "2+0"), "--replicas 2+0: write a number above 0"),
        (("--schedule", "gpipe", "--replicas", "many"), "--replicas many: write a number above 0"),
        (("--schedule", "pipedream", "--steps", 3), "write --mini-batches instead"),
        (("--schedule", "data-parallel", "--stages", 4), "write --replicas 4 for as many devices"),
        (("--schedule", "gpipe", "--durations", "1,0"), "--durations 1,0: write numbers above 0"),
        (("--schedule", "gpipe", "--durations", "1,x"), "--durations 1,x: write numbers above 0"),
        (("--schedule", "gpipe", "--stages", 3, "--durations", "1,2"), "gpipe has 3 stages here"),
        (("--schedule", "gpipe", "--mini-batches", 100_000), "400,000 forward passes of gpipe are"),
        (("--schedule", "1f1b", "--stage-all-reduce", "ddp"), "1f1b has no replicas of a stage"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(tmp_path, arguments, sentence):
    done = run(*(tmp_path if a == "FOLDER" else a for a in arguments))
    assert isinstance(done.exception, ConfigError)
    assert sentence in str(done.exception)
