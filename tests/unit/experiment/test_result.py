"""result.json is read into typed parts, and written back as it was."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddlbench.experiment.result import InvalidResult, Result, read_result, write_result
from ddlbench.experiment.status import Status

KEPT = Path(__file__).with_name("result.json")


def test_what_was_written_stays_byte_for_byte(tmp_path):
    write_result(tmp_path / "result.json", read_result(KEPT))
    assert (tmp_path / "result.json").read_bytes() == KEPT.read_bytes()


def test_parts_have_their_types():
    result = read_result(KEPT)
    assert result.status is Status.OK
    assert result.timing.step_s.count == 2 * result.timing.steps_per_epoch
    assert [rank.rank for rank in result.ranks] == list(range(result.processes))
    assert all(memory.peak_bytes > 0 for rank in result.ranks for memory in rank.memory)
    assert result.provenance.packages["torch"]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("status",), "queued", "status: 'queued' is not allowed; write 'ok', "),
        (("timing", "warmup_steps"), 2.5, "timing.warmup_steps: 2.5 is not a whole number"),
        (("timing", "load_s"), -1.0, "timing.load_s: -1.0 is too small; write at least 0"),
        (("ranks", 0, "samples"), True, "ranks.0.samples: True is not"),
        (("ranks", 1, "devices"), "cpu", "ranks.1.devices: 'cpu' is not a list"),
        (("provenance",), None, "provenance: None is not an object"),
    ],
)
def test_what_is_no_result_is_one_sentence(place, value, says, tmp_path):
    values = read_result(KEPT).to_dict()
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=says):
        Result.from_dict(values)
    del inner[place[-1]]
    with pytest.raises(ValueError, match=f"{place[-1]} is missing"):
        Result.from_dict(values)


def test_a_result_that_is_none_is_not_written(tmp_path):
    result = read_result(KEPT)
    object.__setattr__(result, "processes", -1)
    with pytest.raises(InvalidResult, match="processes: -1 is too small"):
        write_result(tmp_path / "result.json", result)
    assert not list(tmp_path.iterdir())


def test_nan_is_not_written_as_nothing(tmp_path):
    result = replace(read_result(KEPT), plan_details={"a": float("nan")})
    with pytest.raises(InvalidResult, match="NaN"):
        write_result(tmp_path / "result.json", result)
