"""The benchmark that asks ``ddlbench recommend``: what it draws, and that its judge sees faults."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.registry import known

FOLDER = Path(__file__).parents[3] / "benchmarks" / "questions"


@pytest.fixture(scope="module")
def parts():
    """The modules ``questions`` and ``judge`` of the benchmark."""
    names = ("questions", "judge")
    sys.path.insert(0, str(FOLDER))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def questions(parts):
    return parts[0]


@pytest.fixture
def judge(parts):
    return parts[1]


def candidate(strategy, step_s, chance, **changes):
    values = {"strategy": strategy, "geometry": "1x2", "step_s": step_s, "chance": chance}
    values |= {"interval_s": [0.8 * step_s, 1.2 * step_s], "basis": "predicted"}
    return {**values, "speedup": 0.3 / step_s, "bound": 2.0, "fits": True, **changes}


def answer(**changes):
    """A right answer: DDP is recommended, nothing else can run but one device."""
    listed = [candidate("ddp", 0.2, 0.9), candidate("sequential", 0.3, 0.1, bound=1.0)]
    others = [name for name in known("ddlbench.strategies") if name not in ("ddp", "sequential")]
    values = {"recommended": "ddp", "advice": ["Train with DDP."], "candidates": listed}
    values["not_ranked"] = [{"strategy": name, "reason": "cannot run"} for name in others]
    return {**values, **changes}


def faults(judge, question, response, screen="Train with\nDDP.\n"):
    screens = (judge.Output(0, screen, ""), judge.Output(0, json.dumps(response), ""))
    return [name for name, _ in judge.faults_of(question, *screens)]


@pytest.fixture
def question(questions):
    return questions.Question(0, "local", ("--geometry", "1x2"))


def test_a_seed_draws_the_same_questions_again(questions):
    drawn = questions.draw(400, 1)
    assert drawn == questions.draw(400, 1)
    assert drawn != questions.draw(400, 2)
    assert 8 <= sum(bool(question.wrong) for question in drawn) <= 40
    kinds = {"local", "accelerators", "slurm", "own network", "measured", "too few devices"}
    assert {question.kind for question in drawn if not question.wrong} == kinds


def test_right_questions_are_within_the_bounds(questions):
    for question in questions.draw(400, 3):
        options = dict(zip(question.arguments[:10:2], question.arguments[1:10:2], strict=True))
        if not question.wrong:
            nodes, devices = parse_geometry(options["--geometry"], "here")
            assert nodes <= 16 and devices <= 8
            assert 1 <= int(options["--batch-size"]) <= questions.MOST_SAMPLES


def test_a_right_answer_has_no_fault(judge, question):
    assert faults(judge, question, answer()) == []


def changed(place, **changes):
    listed = answer()["candidates"]
    return {
        "candidates": [entry | changes if at == place else entry for at, entry in enumerate(listed)]
    }


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (changed(0, bound=1.4), "bound"),
        (changed(0, step_s=0.3), "interval"),
        (changed(0, step_s=float("nan")), "interval"),
        (changed(0, chance=0.8), "chances"),
        (changed(0, fits=False, chance=None), "winner"),
        ({"recommended": "horovod"}, "winner"),
        ({"recommended": None}, "winner"),
        ({"advice": ["Train with Horovod."]}, "screen"),
        ({"not_ranked": answer()["not_ranked"][1:]}, "complete"),
        ({"not_ranked": [*answer()["not_ranked"], {"strategy": "ddp", "reason": "-"}]}, "complete"),
        ({"candidates": [{"strategy": "ddp"}]}, "form"),
    ],
)
def test_each_fault_is_seen(judge, question, changes, fault):
    assert fault in faults(judge, question, answer(**changes))


def test_a_measured_speedup_may_be_above_its_bound(judge, question):
    response = answer(**changed(0, bound=1.4, basis="measured"))
    assert faults(judge, question, response) == []


def test_a_wide_line_is_seen_and_wide_signs_count_twice(judge, question):
    assert faults(judge, question, answer(), "Train with DDP." + " " * 60 + "wider") == []
    assert faults(judge, question, answer(), "Train with DDP." + "-" * 66) == ["width"]
    assert faults(judge, question, answer(), "Train with DDP." + "宽" * 33) == ["width"]


def test_a_wrong_question_wants_one_sentence(judge, question):
    wrong = replace(question, wrong="no nodes")
    refusal = judge.Output(2, "", "ddlbench: --geometry '0x2': write 2x4\n")
    usage = judge.Output(2, "", "Usage: ddlbench recommend\n\nError: Invalid value\n")
    assert judge.faults_of(wrong, refusal, refusal) == []
    assert [name for name, _ in judge.faults_of(wrong, refusal, usage)] == ["accepted"]
    assert [name for name, _ in judge.faults_of(question, refusal, refusal)] == ["refused"]
    crashed = judge.Output(1, "", "", "plan.py:3: KeyError: 7")
    assert judge.faults_of(wrong, crashed, refusal) == [("crash", "plan.py:3: KeyError: 7")]
