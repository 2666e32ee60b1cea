"""Every case of a matrix gets one answer."""

from __future__ import annotations

import predict_factory as make
import pytest
from predict_results import row, write_ok

from ddlbench.experiment.config import parse_experiment
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.advice import answers
from ddlbench.predict.evaluate import outcomes_of
from ddlbench.predict.recommend import answers_dict, questions_of, read_choice, write_choice


@pytest.fixture
def experiment():
    return parse_experiment(
        {
            "experiment": "trial",
            "site": "local",
            "matrix": {
                "dataset": ["mnist"],
                "network": ["vgg11"],
                "strategy": ["ddp", "gpipe"],
                "geometry": ["1x2"],
            },
            "settings": {"batch_size": 32},
            "strategies": {"gpipe": {"chunks": 8}},
        },
        "trial.yaml",
    )


def test_an_answer_a_case_whatever_strategies_the_matrix_has(tmp_path, experiment):
    make.write_site(tmp_path, make.profile(), make.links())
    cells = [
        make.cell("sequential", "1x1", 32),
        make.cell("ddp", "1x4", 32),
        make.cell("horovod", "1x4", 32),
        make.cell("ddp", "1x2", 32),
        make.cell("ddp", "1x2", 32, repeat=1),
    ]
    refused = MatrixRow(make.cell("gpipe", "2x2"), None, "cannot span 2")
    actual = answers(experiment, [*map(row, cells), refused], make.site(), tmp_path)
    assert [answer["case"]["devices_per_node"] for answer in actual] == [4, 2]
    for answer in actual:
        named = [c["strategy"] for c in answer["candidates"]]
        assert answer["recommended"] in named
        assert len(named) == len(set(named))
        assert {"horovod", "ddp", "gpipe"} <= set(named)
    path = tmp_path / "advice.json"
    write_choice(answers_dict("local", actual), path)
    assert read_choice(path)["answers"] == actual


def test_results_of_a_network_are_read_once_for_all_its_cases(tmp_path, experiment, monkeypatch):
    make.write_site(tmp_path, make.profile(), make.links())
    read: list[str] = []

    def counted(dataset, network, *rest):
        read.append(f"{network} on {dataset}")
        return outcomes_of(dataset, network, *rest)

    monkeypatch.setattr("ddlbench.predict.recommend.outcomes_of", counted)
    cells = [row(make.cell("ddp", geometry, 32)) for geometry in ("1x2", "1x4", "2x2")]
    assert len(answers(experiment, cells, make.site(), tmp_path)) == 3
    assert read == ["vgg11 on mnist"]


def test_cells_of_a_case_have_the_options_of_the_experiment(experiment):
    (question,) = questions_of(experiment, [row(make.cell("ddp", "1x2", 32))])
    assert question.cell("gpipe").option("chunks") == 8
    assert question.cell("pipe-gpipe").options == ()


def test_what_was_measured_is_told(tmp_path, experiment):
    make.write_site(tmp_path, make.profile(), make.links())
    base, cell = make.cell("sequential", "1x1", 32), make.cell("ddp", "1x2", 32)
    write_ok(tmp_path, base, 0.4)
    write_ok(tmp_path, cell, 0.1)
    (answer,) = answers(experiment, [row(base), row(cell, base)], make.site(), tmp_path)
    assert answer["recommended"] == "ddp"
    (candidate,) = (c for c in answer["candidates"] if c["strategy"] == "ddp")
    assert (candidate["basis"], candidate["runs"]) == ("measured", 1)


def test_a_case_of_which_nothing_is_known_has_no_answer(tmp_path, experiment):
    assert answers(experiment, [row(make.cell("ddp"))], make.site(), tmp_path) == []
    assert answers(experiment, [row(make.cell("sequential", "1x1"))], make.site(), tmp_path) == []
