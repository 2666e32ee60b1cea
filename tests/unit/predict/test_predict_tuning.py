"""Tuning: the best of a sweep with few cells, nothing twice, an end with a reason."""

from __future__ import annotations

import json
import math

import numpy as np
import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Glance
from ddlbench.experiment.status import Status
from ddlbench.predict.prediction import Measured
from ddlbench.predict.ranking import Belief
from ddlbench.predict.recommend import Limits, short_cell
from ddlbench.predict.tuning import (
    configurations,
    error_correlation,
    gain,
    next_of,
    tune,
    tuning_file,
    varied,
    write_tuning,
)
from ddlbench.report.registry import FIGURES

VGG11 = (make.MB,) * 23  # parameters of its blocks
CHUNKS = {"chunks": (1, 2, 4, 8, 16)}


class Bed:
    """A site whose cells take ``slower`` times what is predicted of them."""

    def __init__(self, folder, slower=lambda cell: 1.1, values=CHUNKS, memory=None) -> None:
        make.write_site(folder, make.profile(VGG11), make.links(make.pair([0] * 4)))
        known = make.knowledge(folder, device_memory_bytes=memory)
        self.configurations = configurations(make.question(), "pipe-gpipe", values, known)
        self._slower = slower
        self.finished: dict[str, Glance] = {}
        self.measured: list[str] = []

    def step_s(self, cell: Cell) -> float | Status:
        configuration = next(
            configuration
            for configuration in self.configurations
            if short_cell(configuration.cell).id == cell.id
        )
        factor = self._slower(cell)
        return (
            factor if isinstance(factor, Status) else configuration.candidate.predicted_s * factor
        )

    def measure(self, cell: Cell) -> Glance:
        self.measured.append(cell.id)
        takes = self.step_s(cell)
        failed = isinstance(takes, Status)
        status, step_s = (takes, None) if failed else (Status.OK, takes)
        self.finished[cell.id] = Glance(cell, status, 10 + 12 * (step_s or 0), step_s, 10)
        return self.finished[cell.id]

    def history(self):
        return tuple(
            Measured(glance.cell, glance.step_s)
            for glance in self.finished.values()
            if glance.step_s
        )

    def tune(self, cells: int = 9, device_s: float | None = None, sampler: str = "predictor"):
        limits = Limits(cells, device_s)
        return tune(
            self.configurations, self.history, self.measure, limits,
            lambda cell: self.finished.get(cell.id), sampler=sampler,
        )  # fmt: skip


def test_every_configuration_is_predicted_or_says_why(tmp_path) -> None:
    bed = Bed(tmp_path, values={"chunks": (2, 4, 7)})
    by_chunks = {
        configuration.values["chunks"]: configuration for configuration in bed.configurations
    }
    assert by_chunks[7].why.startswith("cannot run: a mini-batch of 32 does not divide")
    assert by_chunks[4].cell.options == ()  # the default is not written
    assert by_chunks[2].expected.step_s == pytest.approx(by_chunks[2].candidate.predicted_s / 32)
    assert by_chunks[2].label == "chunks=2"


def test_the_predicted_best_is_measured_first_and_few_suffice(tmp_path) -> None:
    bed = Bed(tmp_path)
    fastest = min(bed.configurations, key=lambda configuration: configuration.candidate.predicted_s)
    tuning = bed.tune()
    assert bed.measured[0] == short_cell(fastest.cell).id
    assert tuning.best[0] is fastest
    assert len(bed.measured) < len(bed.configurations)
    assert tuning.stopped == "no other configuration is expected to gain 0.5%"


def test_a_wrong_prediction_is_found_out(tmp_path) -> None:
    """The predicted best is slow in truth: the search goes on to what is better."""
    plain = Bed(tmp_path)
    fastest = min(
        plain.configurations, key=lambda configuration: configuration.candidate.predicted_s
    ).cell.option("chunks", 4)
    bed = Bed(tmp_path, lambda cell: 1.6 if cell.option("chunks", 4) == fastest else 1.0)
    tuning = bed.tune()
    truth = {
        short_cell(configuration.cell).id: bed.step_s(short_cell(configuration.cell))
        for configuration in bed.configurations
    }
    assert short_cell(tuning.best[0].cell).id == min(truth, key=truth.get)


def test_out_of_memory_takes_out_all_that_need_as_much(tmp_path) -> None:
    bed = Bed(tmp_path, lambda _cell: Status.OUT_OF_MEMORY)
    tuning = bed.tune()
    smallest = min(configuration.memory_bytes for configuration in bed.configurations)
    last = next(
        configuration
        for configuration in bed.configurations
        if short_cell(configuration.cell).id == bed.measured[-1]
    )
    assert tuning.stopped == "no configuration can run"
    assert last.memory_bytes == smallest or len(bed.measured) == len(bed.configurations)
    assert tuning.best is None
    assert {trial.status for trial in tuning.trials} == {"out_of_memory"}


def test_what_does_not_fit_is_not_measured(tmp_path) -> None:
    sizes = sorted(configuration.memory_bytes for configuration in Bed(tmp_path).configurations)
    bed = Bed(tmp_path, memory=sizes[1] + 1)
    large = [
        configuration
        for configuration in bed.configurations
        if configuration.memory_bytes > sizes[1]
    ]
    assert large
    assert all(configuration.why.startswith("does not fit: ") for configuration in large)
    bed.tune()
    assert not {short_cell(configuration.cell).id for configuration in large} & set(bed.measured)


def test_limits_end_it_and_it_goes_on_from_there(tmp_path) -> None:
    bed = Bed(tmp_path, lambda cell: 1.0 + 0.3 * (cell.option("chunks", 4) > 4))
    first = bed.tune(cells=1)
    assert first.stopped.startswith("1 cell tried")
    again = bed.tune(cells=3)
    assert again.trials[0] == first.trials[0]
    assert len(bed.measured) == len(set(bed.measured)) <= 3
    spent = Bed(tmp_path).tune(device_s=1.0)
    assert "device-hours are spent" in spent.stopped or "expected to gain" in spent.stopped


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_of_optuna_ask_for_what_can_run_once(tmp_path, sampler: str) -> None:
    bed = Bed(tmp_path, values={"chunks": (2, 4, 7, 8)})
    tuning = bed.tune(sampler=sampler)
    assert len(bed.measured) == len(set(bed.measured)) == 3
    assert tuning.stopped == "every configuration is measured"


def test_gain_is_that_of_draws() -> None:
    belief, best_s = Belief(1.05, 0.1, "predicted"), 1.0
    draws = np.random.default_rng(2).normal(math.log(1.05), 0.1, 400_000)
    assert gain(belief, best_s) == pytest.approx(np.maximum(0, -draws).mean(), rel=0.02)
    assert gain(Belief(0.5, 1e-6, "predicted"), 1.0) == pytest.approx(math.log(2))
    assert gain(Belief(2.0, 1e-3, "predicted"), 1.0) == pytest.approx(0)


def test_configurations_that_differ_in_fewer_options_are_more_alike(tmp_path) -> None:
    bed = Bed(tmp_path, values={"chunks": (2, 4), "replicas": (1, 2)})
    matrix = error_correlation(bed.configurations)
    order = {
        (configuration.values["chunks"], configuration.values["replicas"]): at
        for at, configuration in enumerate(bed.configurations)
    }
    all_alike, half_alike, least_alike = (
        matrix[order[2, 1], order[other]] for other in ((2, 1), (4, 1), (4, 2))
    )
    assert all_alike == 1 > half_alike > least_alike > 0


def test_what_varies_is_checked() -> None:
    assert varied("pipe-gpipe", {}, {"chunks": 4}).keys() == {"replicas", "balance"}
    assert varied("ddp", {"batch_size": (8, 16)}, {}) == {"batch_size": (8, 16)}
    with pytest.raises(ConfigError, match="--vary chunkz: pipe-gpipe has no such option"):
        varied("pipe-gpipe", {"chunkz": (1,)}, {})
    with pytest.raises(ConfigError, match="exclude each other"):
        varied("pipe-gpipe", {"chunks": (1,)}, {"chunks": 4})
    with pytest.raises(ConfigError, match="no option that is worth tuning"):
        varied("sequential", {}, {})


def test_batch_sizes_are_compared_by_samples(tmp_path) -> None:
    bed = Bed(tmp_path, values={"batch_size": (16, 32), "chunks": (4,)})
    small, large = bed.configurations
    assert (small.cell.batch_size, large.cell.batch_size) == (16, 32)
    assert small.expected.step_s > large.expected.step_s  # a step has fixed costs
    assert bed.tune().best[0] is large
    with pytest.raises(ConfigError, match="write whole numbers"):
        Bed(tmp_path, values={"batch_size": (1.5,)})


def test_it_says_what_it_saved_and_is_drawn(tmp_path) -> None:
    bed = Bed(tmp_path)
    tuning = bed.tune(cells=2)
    path = tuning_file("local", "pipe-gpipe/a", tmp_path)
    case = {
        "network": "vgg11", "dataset": "mnist", "nodes": 1, "devices_per_node": 4,
        "batch_size": 32, "strategy": "pipe-gpipe", "varied": {"chunks": list(CHUNKS["chunks"])},
    }  # fmt: skip
    content = write_tuning(tuning, "local", case, path)
    assert json.loads(path.read_text()) == content
    assert content["device_s_all"] > content["device_s"] > 0
    figure, plotted = FIGURES["tuning"].function()(content)
    (axes,) = figure.axes
    bold = [t.get_text() for t in axes.get_yticklabels() if t.get_fontweight() == "bold"]
    assert bold == [f"chunks {tuning.best[0].values['chunks']}"]
    assert plotted["best"].sum() == 1
    assert (plotted["basis"] == "measured").sum() == len(tuning.trials)


def test_a_cell_without_a_result_ends_its_configuration_only(tmp_path) -> None:
    bed = Bed(tmp_path, values={"chunks": (2, 4)})
    first = bed.tune(cells=1).trials[0].cell_id
    again = Bed(tmp_path, values={"chunks": (2, 4)})
    measure = again.measure
    again.measure = lambda cell: None if cell.id == first else measure(cell)
    tuning = again.tune()
    assert [(trial.cell_id == first, trial.step_s is None) for trial in tuning.trials] == [
        (True, True),
        (False, False),
    ]
    assert short_cell(tuning.best[0].cell).id != first


def test_a_configuration_is_no_faster_than_its_bound(tmp_path) -> None:
    """GPipe's p m / (m + p - 1), over one device with a batch of the same size."""
    make.write_site(tmp_path, make.profile((10_000,) * 23), make.links(make.pair([0] * 4, 1e13)))
    known = make.knowledge(tmp_path)
    values = {"batch_size": (16, 32), "chunks": (1, 4, 16)}
    base = {16: 0.26, 32: 0.42}
    for configuration in configurations(make.question(), "pipe-gpipe", values, known):
        chunks, batch_size = configuration.values["chunks"], configuration.values["batch_size"]
        bound = 4 * chunks / (chunks + 3)
        assert configuration.candidate.predicted_s >= base[batch_size] / bound * (1 - 1e-9)
        assert configuration.expected.step_s == pytest.approx(
            configuration.candidate.predicted_s / batch_size
        )


def test_nothing_left_to_measure(tmp_path) -> None:
    bed = Bed(tmp_path, values={"chunks": (4,)})
    tuning = bed.tune()
    assert len(bed.measured) == 1
    assert next_of(tuning) is None
    assert tuning.stopped == "every configuration is measured"
