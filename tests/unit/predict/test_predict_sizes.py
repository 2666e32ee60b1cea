"""Several geometries: what each further device adds, and from where on they do not pay."""

from __future__ import annotations

import json

import predict_factory as make
import pytest

from ddlbench.commands.recommend import sizes_lines
from ddlbench.experiment.registry import BASE
from ddlbench.predict.advice import Advice, advise
from ddlbench.predict.largest_batch import Size, enough, sizes_advice, sizes_dict
from ddlbench.predict.prediction import Prediction
from ddlbench.predict.ranking import Belief, Candidate, rank
from ddlbench.predict.recommend import recommend

ONE_DEVICE_S = 1.2


def candidate(strategy: str, geometry: str, step_s: float) -> Candidate:
    belief = Belief(step_s, 0.1, "predicted")
    cell = make.cell(strategy, geometry, 60)
    return Candidate(
        cell, strategy, float(cell.devices), Prediction("x", step_s), step_s,
        expected=belief, belief=belief,
    )  # fmt: skip


def size(geometry: str, speedup: float | None) -> Size:
    """DDP with this speed-up; None for a geometry on which nothing was compared."""
    question = make.question(geometry, 60)
    base = candidate(BASE, "1x1", ONE_DEVICE_S)
    if speedup is None:
        return Size(question, rank([base], "ddlbench"), Advice(None, (), {}))
    if speedup == 1:
        ranking = rank([base], "ddlbench")
        return Size(question, ranking, Advice(ranking.base, (), {}))
    ranking = rank([base, candidate("ddp", geometry, ONE_DEVICE_S / speedup)], "ddlbench")
    return Size(question, ranking, Advice(ranking.best, (), {}))


def sizes(**speedups: float | None) -> list[Size]:
    return [size(name.removeprefix("_"), speedup) for name, speedup in speedups.items()]


@pytest.mark.parametrize(
    ("speedups", "last"),
    [
        ({"_1x2": 1.9, "_1x4": 3.5, "_2x4": 7.0}, None),
        ({"_1x2": 1.9, "_1x4": 3.5, "_2x4": 4.4}, "1x4"),
        ({"_1x2": 1.9, "_1x4": 2.0, "_2x4": 7.0}, None),  # a weak size between two good ones
        ({"_1x2": 1.2, "_1x4": 3.5}, None),
        ({"_1x2": 1.2, "_1x4": 1.3}, "1x1"),  # several devices do not pay
        ({"_1x2": 1.5, "_1x4": 2.5}, None),  # just enough
        ({"_1x2": 1.9, "_1x4": 1.0}, "1x2"),  # one device is as fast
        ({"_1x2": 1.9, "_2x1": 1.2, "_2x2": 2.0}, "1x2"),  # as many devices
        ({"_1x2": None, "_1x4": 3.1}, None),
        ({"_1x2": None, "_1x4": 1.2}, "1x1"),
        ({"_1x2": 1.9, "_1x4": None, "_2x4": 6.1}, None),
        ({"_1x1": 1.0, "_1x2": 1.8}, None),
    ],
)
def test_the_size_after_which_more_devices_do_not_pay(speedups, last) -> None:
    content = sizes_dict(sizes(**speedups))
    assert content["enough"] == last
    (sentence,) = content["advice"]
    if last not in (None, "1x1"):
        assert last in sentence


def test_where_nothing_was_compared_it_says_so() -> None:
    actual = sizes(_1x2=None, _1x4=None)
    assert enough(actual) is None
    assert len(sizes_advice(actual)) == 1


def test_the_numbers_of_a_size() -> None:
    entry = size("1x4", 3.0)
    assert (entry.devices, entry.speedup, entry.efficiency) == (
        4,
        pytest.approx(3),
        pytest.approx(0.75),
    )
    # MNIST's 60 000 images are 1000 steps of 60, of 0.4 s on four devices each.
    assert entry.epoch_device_s == pytest.approx(1000 * 0.4 * 4)
    fields = entry.to_dict()
    assert fields["epoch_device_hours"] == pytest.approx(1600 / 3600)
    assert (fields["geometry"], fields["recommended"]) == ("1x4", "ddp")
    alone = size("1x4", 1.0)  # the advice is to stay on one device
    assert (alone.devices, alone.efficiency) == (1, 0.25)
    assert alone.epoch_device_s == pytest.approx(1000 * 1.2)
    nothing = size("1x4", None)
    assert (nothing.speedup, nothing.efficiency, nothing.epoch_device_s) == (None, None, None)


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_is_that_of_the_numbers(tmp_path, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    links = make.links(make.pair([0] * 8), make.pair([0, 1, 2, 3], bandwidth=1e8))
    make.write_site(tmp_path, make.profile((make.MB,) * 23), links)
    here = make.knowledge(tmp_path, site=make.site(launcher="slurm", devices_per_node=4))
    actual = []
    for geometry in ("1x2", "1x4", "1x8"):
        question = make.question(geometry, 64)
        ranking = recommend(question, here)
        actual.append(Size(question, ranking, advise(question, ranking, here)))
    lines = sizes_lines(actual, here)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for entry in actual:
        row = next(line for line in lines if line.startswith(entry.question.geometry))
        assert entry.best.label in row
        assert f"{entry.speedup:.2f}" in row
    assert sizes_advice(actual)[0] in text
    assert "1x8." in text  # beyond what the site has
    content = json.loads(json.dumps(sizes_dict(actual)))
    assert [entry["speedup"] for entry in content["geometries"]] == [
        entry.speedup for entry in actual
    ]
