"""result.json is read into typed parts, and written back as it was."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from test_json_form import assert_fields

from ddlbench.experiment import result
from ddlbench.experiment.result import Result, read_result, write_result
from ddlbench.experiment.status import Status

# Written by the version before reasons had codes.
EARLIER = Path(__file__).with_name("earlier_result.json")

# Keys that results of earlier versions lack, by the part that holds them.
NEWER = {
    "": ("reason_code", "link", "checkpointing"),
    "ranks": ("cpu_model", "gpu_models", "cpus"),
}


def test_what_an_earlier_version_wrote_stays_byte_for_byte(tmp_path):
    result = read_result(EARLIER)
    assert "reason_code" not in json.loads(EARLIER.read_text())
    assert result.reason_code is None
    write_result(tmp_path / "result.json", result)
    assert (tmp_path / "result.json").read_bytes() == EARLIER.read_bytes()


def test_parts_have_their_types():
    result = read_result(EARLIER)
    assert result.status is Status.OK
    assert result.timing.step_s.count == 2 * result.timing.steps_per_epoch
    assert [rank.rank for rank in result.ranks] == list(range(result.processes))
    assert all(memory.peak_bytes > 0 for rank in result.ranks for memory in rank.memory)
    assert result.provenance.packages["torch"]


def test_a_result_without_newer_keys_is_read_and_gets_none(tmp_path):
    values = json.loads(EARLIER.read_text())
    for key in NEWER[""]:
        values.pop(key, None)
    for rank in values["ranks"]:
        for key in NEWER["ranks"]:
            rank.pop(key, None)
    values["provenance"] = {"seed": 1}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(values))
    result = read_result(path)
    assert (result.link, result.checkpointing) == (None, None)
    assert (result.ranks[0].cpu_model, result.ranks[0].gpu_models) == (None, ())
    assert (result.provenance.created, result.provenance.hosts) == (None, ())
    assert list(result.to_dict()) == list(values)
    assert result.to_dict() == values


def _object(part):
    """The object of a part that may be null."""
    return next((one for one in part.get("anyOf", []) if "properties" in one), part)


@pytest.mark.parametrize(
    ("path", "cls"),
    [
        ("", Result),
        ("inputs", result.InputDigests),
        ("ranks.items", result.RankEntry),
        ("ranks.items.memory.items", result.DeviceMemory),
        ("timing", result.Timing),
        ("timing.epochs.items", result.Epoch),
        ("timing.step_s", result.StepSummary),
        ("staging", result.Staging),
        ("loss", result.Loss),
        ("communication", result.Communication),
        ("communication.ranks.items", result.RankTraffic),
        ("link", result.Link),
        ("link.cpus", result.LinkCores),
        ("checkpointing", result.Checkpointing),
        ("checkpointing.attempts.items", result.Attempt),
        ("training", result.Training),
        ("provenance", result.Provenance),
    ],
)
def test_results_have_the_fields_of_their_schema(path, cls):
    part = json.loads((files("ddlbench.experiment") / "result.schema.json").read_text())
    for key in filter(None, path.split(".")):
        part = _object(part["items"] if key == "items" else part["properties"][key])
    assert_fields(part, cls)
