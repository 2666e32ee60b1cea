"""A strategy of another package is one module: all else follows from its descriptor."""

import sys
from pathlib import Path

import pytest

from ddlbench.experiment.registry import known
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.prediction import ask, predictor_of
from ddlbench.predict.recommend import recommend
from ddlbench.report.labels import FAMILIES, strategy_look
from ddlbench.testing import assert_equals_sequential, assert_resumes

TESTS = Path(__file__).parents[2]
NAME = "toy-averaging"


@pytest.fixture
def toy(third_party, monkeypatch):
    third_party(
        "toy_averaging",
        (TESTS / "toy_averaging.py").read_text(),
        {"ddlbench.strategies": {NAME: "ToyAveraging"}},
    )
    monkeypatch.syspath_prepend(TESTS / "unit" / "predict")
    monkeypatch.syspath_prepend(TESTS / "unit" / "report")
    return strategy_of(NAME)


@pytest.fixture
def make(toy):
    import predict_factory

    yield predict_factory
    sys.modules.pop("predict_factory", None)


def test_it_is_known_and_has_a_plan(toy, make):
    assert NAME in known("ddlbench.strategies")
    plan = make.plan(NAME, "2x2", 32)
    assert [(p.rank, p.node, p.shard) for p in plan.processes] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 2),
        (3, 1, 3),
    ]
    assert "does not divide over 4 workers" in toy.supports(make.cell(NAME, "1x4", 30))


def test_it_has_a_memory_model(make):
    ours, ddp = (
        strategy_of(name).memory_bytes(make.workload(), make.plan(name)) for name in (NAME, "ddp")
    )
    assert len(ours) == 4
    assert ddp[0] - ours[0] == make.workload().parameter_bytes  # DDP's buckets, which it has not


def test_its_step_is_predicted(make):
    links = make.table(sweeps=(make.sweep(0.01, 1e9, 4),))
    actual = ask(predictor_of("ddp-serial"), make.workload(), links, make.plan(NAME))
    sizes = [tensor.bytes for tensor in make.workload().tensors]
    assert len(sizes) > 1
    expected_s = sum(0.01 + size / 1e9 for size in sizes)
    assert actual.exposed_communication_s == pytest.approx(expected_s)
    assert actual.memory_bytes


def test_it_is_recommended(make, tmp_path):
    root = tmp_path / "results"
    sweeps = (make.sweep(0.001, 1e9, 4), make.sweep(0.001, 1e9, 4, transport="horovod"))
    make.write_site(root, make.profile(), make.links(make.pair([0] * 4), sweeps=sweeps))
    ranking = recommend(make.question(), make.knowledge(root))
    (actual,) = (candidate for candidate in ranking.ranked if candidate.strategy == NAME)
    assert actual.prediction is not None
    assert actual.bound == 4  # its devices
    assert actual.prediction.predictor == "ddlbench"  # from the messages that it declares


def test_it_has_a_colour_of_its_family_and_a_label(toy):
    assert strategy_label(NAME) == "Toy averaging"
    assert strategy_look(NAME).colour in FAMILIES["data parallel"]
    assert strategy_look(NAME).colour != strategy_look("ddp").colour


def test_it_trains_what_sequential_training_trains(toy):
    assert_equals_sequential(NAME, devices=2)


def test_it_goes_on_from_a_checkpoint(toy, tmp_path):
    assert_resumes(NAME, tmp_path / "checkpoints", devices=2)
