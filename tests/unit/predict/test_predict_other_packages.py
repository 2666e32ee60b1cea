"""A predictor of another package that has a fault is left out; a sentence says why."""

from __future__ import annotations

from dataclasses import replace

import predict_factory as make
import pytest

from ddlbench.commands.recommend import recommendation_lines
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import known
from ddlbench.planning.planner import make_plan
from ddlbench.predict.advice import advise
from ddlbench.predict.candidate import assess, predicted
from ddlbench.predict.evaluate import usable_predictors
from ddlbench.predict.prediction import Measured, predictor_for, predictor_of
from ddlbench.predict.recommend import recommend
from ddlbench.report.registry import prediction_figures_for

STRATEGY = """
from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.step import GradientMessage

class Sum(DataParallel):
    name, label, executor = "kth-sum", "K-th sum", "sums:Sum"
    def gradient_messages(self, workload, plan):
        return [GradientMessage(tensor.bytes) for tensor in workload.tensors]
"""
PREDICTOR = """
from ddlbench.predict.prediction import BuiltInPredictor, Prediction

class P(BuiltInPredictor):
    name, source, strategies = "mine", "x", ("kth-sum",)
    def model(self, inputs):
        return {returned}
"""


@pytest.fixture
def here(tmp_path, third_party):
    third_party("sums", STRATEGY, {"ddlbench.strategies": {"kth-sum": "Sum"}})
    make.write_site(tmp_path, make.profile(), make.links())
    return make.knowledge(tmp_path)


def _install(third_party, source):
    third_party("mine_package", source, {"ddlbench.predictors": {"mine": "P"}})


FAULTS = {
    "Prediction('mine', compute_s=float('nan'))": "compute_s is nan; write seconds, 0 or more",
    "Prediction('mine', compute_s=1.0, bubble_s=-5)": "bubble_s is -5; write seconds, 0 or more",
    "Prediction('mine', 1.0, interval_s=(0.5, float('inf')))": "interval_s or memory_bytes",
    "Prediction('mine', compute_s=0.0)": "its step takes 0 s",
    "0.1": "it returns 0.1; return a Prediction",
    "Prediction('mine', 1 / 0)": r"ZeroDivisionError: .* \(mine_package.py, line 7\)",
}


@pytest.mark.parametrize(("returned", "why"), FAULTS.items())
def test_what_is_no_prediction_is_not_ranked(here, third_party, returned, why):
    _install(third_party, PREDICTOR.format(returned=returned))
    question = make.question()
    cell = question.cell("kth-sum")
    sentence = f"predictor 'mine' of package mine-package has a fault.*{why}"
    with pytest.raises(ConfigError, match=sentence.replace("mine-package", "mine.package")):
        predicted("mine", here.inputs.workload(cell), make_plan(cell), here)
    candidate = assess(cell, here)
    assert (candidate.ranked, candidate.code) == (False, "no_prediction")
    assert candidate.bound
    assert "mine" not in {c.strategy for c in recommend(question, here).ranked}
    # Where it ran, it is ranked, and the reason is still told.
    measured = replace(here, history=(Measured(cell, 0.3),))
    ranking = recommend(question, measured)
    lines = recommendation_lines(
        question, ranking, advise(question, ranking, measured), measured, why=False
    )
    assert "K-th sum has no prediction: predictor 'mine'" in " ".join(" ".join(lines).split())


def test_a_prediction_has_the_name_of_its_predictor(here, third_party):
    _install(third_party, PREDICTOR.format(returned="Prediction('other', 0.5)"))
    prediction = assess(make.question().cell("kth-sum"), here).prediction
    assert (prediction.predictor, prediction.step_s) == ("mine", 0.5)


BROKEN = {
    "raise RuntimeError('boom')": "fails on import, RuntimeError: boom",
    PREDICTOR.replace("def model", "def other"): "its class P lacks model; write model",
    PREDICTOR.replace('("kth-sum",)', '"kth-sum"'): r"strategies are 'kth-sum'; write \('kth-sum',",
    PREDICTOR.replace('("kth-sum",)', "7"): "strategies are 7; write a tuple of names, or None",
    PREDICTOR + "    def __init__(self): 1 / 0\n": "has a fault in its code: ZeroDivisionError",
}


@pytest.mark.parametrize(("source", "why"), BROKEN.items())
def test_a_broken_predictor_is_left_out_and_told(here, third_party, caplog, source, why):
    _install(third_party, source)
    with pytest.raises(ConfigError, match=why):
        predictor_of("mine")
    assert "mine" in known("ddlbench.predictors")
    assert "mine" not in usable_predictors()
    assert "predictor 'mine' of package mine" in caplog.text
    assert predictor_for("ddlbench", "kth-sum", "cpu") == "ddlbench"
    assert assess(make.question().cell("kth-sum"), here).prediction.predictor == "ddlbench"
    prediction_figures_for([])  # asks each predictor for its strategies
