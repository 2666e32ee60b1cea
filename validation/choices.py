"""Ways to choose a strategy, replayed on cells that studies have measured (thesis, Figure 8.1).

For each case of a study (network, geometry, fabric, batch) the candidates are predicted, calibrated
with the other networks' cells alone, and up to K of them "measured": the step of their cell's first
run is looked up. A pick that is not the fastest is within the noise if three runs of both overlap.
Beside it stand the thesis' alternatives::

    everything               every candidate for whole epochs          the truth
    data extrapolation       a few steps of every candidate            judged by other repeats
    hardware extrapolation   a sequential run, and an assumption
    recommender              a profile and links
    recommender, K measured  these, and K short cells

Measures nothing itself: its cells are those of choice_cases.py and prediction.py. A study that was
not measured here keeps its rows and its figure. With ``--kept`` it replays the choices on the cells
that docs/validation keeps, and prints how often they are right; what a cell cost is not kept.
Writes docs/validation/choices.csv, a row per case and way, choices_by_way.csv, and into the folder
``--out`` a figure for each study, ways_to_choose_<study>.png and .csv.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import emulated
import pandas as pd
import prediction
from bed_study import ROOT, Part
from cells import device_of_site

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Experiment, parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import InvalidProfile
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import Glance
from ddlbench.experiment.site import load_site
from ddlbench.experiment.status import Status
from ddlbench.planning.expected_time import START_S
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import expand
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.calibration import Calibration, calibrate, calibrated, cells_of
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, Prediction
from ddlbench.predict.ranking import Candidate, Ranking, from_prediction, from_runs, rank
from ddlbench.predict.recommend import Limits, choose, result_of
from ddlbench.report.drawing import draw_figure
from ddlbench.report.figures.choice import ways

OUT = ROOT / "docs" / "validation"
MOST = 3
RUNS = 3  # of a cell; fewer do not tell its noise
_CASE = ["dataset", "network", "nodes", "devices_per_node", "fabric", "batch_size"]
_DATA, _HARDWARE = "data-extrapolation", "hardware-extrapolation"


def studies() -> dict[str, list[list[Part]]]:
    """Name -> parts whose cases are replayed; those of a list teach each other constants."""
    return {
        "emulated": [[(lambda: emulated.described(emulated.CASES), emulated.CASES)]],
        "test-bed": [prediction.parts(prediction.fast), prediction.parts(prediction.slow)],
    }


def main() -> None:
    """Choose in every case of each study that has results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/papers/thesis-fig8.1")
    parser.add_argument("--kept", action="store_true", help="replay the cells in docs/validation")
    options = parser.parse_args()
    if options.kept:
        replay_kept()
        return
    figures = options.out.resolve()
    kept = pd.read_csv(OUT / "choices.csv")
    tables = []
    for name, lists in studies().items():
        try:
            replays = [{"study": name, **row} for parts in lists for row in replayed(parts)]
        except InvalidProfile as error:
            print(f"{name} was not measured here, its rows stay: {error}")
            replays = []
        if replays:
            drawn = pd.DataFrame(replays)
            draw_figure("ways_to_choose", figures / f"ways_to_choose_{name}.png", drawn)
        tables.append(drawn if replays else kept[kept["study"] == name])
    table = pd.concat(tables)
    table.to_csv(OUT / "choices.csv", index=False, float_format="%.6g")
    devices = {"emulated": device_of_site(ROOT, emulated.SITE), "test-bed": "cpu"}
    parts = [
        ways(part).assign(study=str(name), device=devices[str(name)])
        for name, part in table.groupby("study")
    ]
    pd.concat(parts).to_csv(OUT / "choices_by_way.csv", index=False, float_format="%.4g")


KEPT = {
    "emulated": ["emulated"],
    "test bed, fast link": [
        "prediction/stack-vgg16/fast-link",
        "prediction/mobilenetv2-resnet18/fast-link",
    ],
    "test bed, slow link": [
        "prediction/stack-vgg16/slow-link",
        "prediction/mobilenetv2-resnet18/slow-link",
    ],
}


def replay_kept() -> None:
    """Print how many choices are right on the kept cells, by the number of measured candidates."""
    print(f"{'study':20} cases  right with 0, 1, 2, 3 measured")
    for name, folders in KEPT.items():
        frame = pd.concat([_kept_cells(OUT / folder / "cells.csv") for folder in folders])
        right = dict.fromkeys(range(MOST + 1), 0)
        cases = 0
        for key, case in _cases(frame):
            cases += 1
            others = cells_of(frame[frame["network"] != key["network"]], DEFAULT_PREDICTOR)
            alone = _alone(frame, key)
            bed = _Case(
                name, case, alone, calibrate(name, others), profile_s=0.0, elapsed_s=lambda row: 0.0
            )
            for most in right:
                row = bed.recommended(most)
                right[most] += row["picked"] == row["best"]
        print(f"{name:20} {cases:5}  {', '.join(map(str, right.values()))}")


def _kept_cells(path: Path) -> pd.DataFrame:
    """The synchronous cells of a kept table that the default predictor predicted."""
    frame = pd.read_csv(path)
    cells = [Cell.from_id(name) for name in frame["cell_id"]]
    columns = {name: [getattr(cell, name) for cell in cells] for name in _CASE}
    errors = frame["predicted_step_s"] / frame["measured_step_s"] - 1
    # The tables keep the messages that a step waits for; those that it hides are not kept.
    sent_s = frame["exposed_communication_s"]
    frame = frame.assign(**columns, signed_error=errors, communication_s=sent_s)
    known = frame["measured_step_s"].notna() & frame["predicted_step_s"].notna()
    synchronous = [strategy_of(cell.strategy).is_synchronous(cell) for cell in cells]
    fresh = pd.Series(synchronous, frame.index)
    return frame[known & fresh & (frame["predictor"] == DEFAULT_PREDICTOR)]


def _cases(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Each case with two candidates or more, and its candidates."""
    for keys, case in frame[frame["strategy"] != BASE].groupby(_CASE, sort=False):
        one_each = case.drop_duplicates("strategy")
        if len(one_each) > 1:
            yield dict(zip(_CASE, keys, strict=True)), one_each


def _alone(frame: pd.DataFrame, key: Mapping[str, Any]) -> pd.DataFrame:
    """The row of one device with the network and the batch of a case."""
    alone = frame[(frame["strategy"] == BASE) & (frame["network"] == key["network"])]
    return alone[alone["batch_size"] == key["batch_size"]]


def replayed(parts: list[Part]) -> Iterator[dict[str, Any]]:
    """A row for each complete case of the parts and way to choose."""
    folders = [folder().folder for folder, _ in parts]
    configs = [parse_experiment(experiment, "the study") for _, experiment in parts]
    frames = [_predicted(*pair) for pair in zip(folders, configs, strict=True)]
    known = pd.concat(frames) if frames else pd.DataFrame()
    for folder, config, every in zip(folders, configs, frames, strict=True):
        os.chdir(folder)
        yield from _replayed(config, every, known[known["predictor"] == DEFAULT_PREDICTOR])


def _predicted(folder: Path, config: Experiment) -> pd.DataFrame:
    """The cells of complete cases, measured and predicted."""
    os.chdir(folder)
    site = load_site(config.site)
    names = [DEFAULT_PREDICTOR, _DATA, _HARDWARE]
    every = predictions(expand(config, site), site, names=names)
    every = every[every["synchronous"]]
    # Nothing is said of a case that lacks a candidate's run.
    every = every[~every.groupby(_CASE)["status"].transform(_not_run)]
    return every[every["measured_step_s"].notna() & every["predicted_step_s"].notna()]


def _replayed(
    config: Experiment, every: pd.DataFrame, known: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """The rows of one folder, with constants from other networks' ``known`` cells."""
    site = load_site(config.site)
    frame = every[every["predictor"] == DEFAULT_PREDICTOR]
    profile_s = config.profile.runs * (config.profile.budget_s + START_S)
    for keys, case in frame.groupby(_CASE, sort=False):
        key = dict(zip(_CASE, keys, strict=True))
        candidates = case[case["strategy"] != BASE]
        if len(candidates) < 2:
            continue
        others = cells_of(known[known["network"] != key["network"]], DEFAULT_PREDICTOR)
        name = _name(key)
        bases = frame[(frame["strategy"] == BASE) & (frame["network"] == key["network"])]
        alone = _alone(frame, key)
        calibration = calibrate(site.name, others)
        bed = _Case(site.name, candidates, alone, calibration, profile_s=profile_s)
        rows = [bed.everything(), *(bed.recommended(most) for most in range(MOST + 1))]
        for other, device_s in (
            (_HARDWARE, bed.elapsed_s(bases.iloc[0]) if len(bases) else None),
            (_DATA, bed.device_s_all),
        ):
            alike = every[every["cell_id"].isin(candidates["cell_id"])]
            row = bed.by_rule(alike[alike["predictor"] == other], other, device_s)
            rows += [row] if row else []
        for row in rows:
            yield {"case": name, **row}


def case_of(cell: Cell) -> str:
    """The name of the case in which a cell is a candidate."""
    return _name(vars(cell))


def _name(keys: Mapping[str, Any]) -> str:
    return "/".join(str(keys[key]) for key in _CASE)


def _not_run(statuses: pd.Series) -> bool:
    return bool((statuses == Status.NOT_RUN).any())


class _Case:
    """Candidates of one case, whose measurements are there but unknown to the choice."""

    def __init__(
        self,
        site: str,
        rows: pd.DataFrame,
        base: pd.DataFrame,
        calibration: Calibration,
        *,
        profile_s: float,
        elapsed_s: Callable[[Mapping[str, Any]], float] | None = None,
    ) -> None:
        self._elapsed_s = elapsed_s
        self._site, self._calibration, self._profile_s = site, calibration, profile_s
        self._rows = {str(row["strategy"]): row for row in rows.to_dict("records")}
        self._base = next((self._candidate(row, {}) for row in base.to_dict("records")), None)

    @property
    def device_s_all(self) -> float:
        """A short cell of every candidate."""
        return sum(self._device_s(row) for row in self._rows.values())

    @property
    def device_s_everything(self) -> float:
        """Every candidate for an epoch of its whole data."""
        whole = 0.0
        for row in self._rows.values():
            cell = Cell.from_id(row["cell_id"])
            steps = DATASETS[cell.dataset].num_train / cell.batch_size
            whole += cell.devices * (START_S + steps * float(row["measured_step_s"]))
        return whole

    def everything(self) -> dict[str, Any]:
        """The truth, and what it costs."""
        best = self._best(self._rows)
        return self._row("everything", self._rows, best, self.device_s_everything, len(self._rows))

    def recommended(self, most: int) -> dict[str, Any]:
        """What is picked with at most so many measured, and what it costs."""
        seen: dict[str, float] = {}

        def measure(cell: Cell) -> Glance:
            row = self._rows[cell.strategy]
            seen[cell.strategy] = float(row["measured_step_s"])
            return Glance(cell, Status.OK, self.elapsed_s(row), seen[cell.strategy], None)

        choice = choose(lambda: self._ranking(seen), measure, Limits(most), lambda _cell: None)
        assert choice.ranking.best is not None
        picked = self._rows[choice.ranking.best.cell.strategy]
        way = f"recommender, {most} measured" if most else "recommender"
        device_s = self._profile_s + choice.device_s
        measured = len(choice.trials)
        return self._row(way, self._rows, picked, device_s, measured, profile_s=self._profile_s)

    def by_rule(
        self, rows: pd.DataFrame, predictor: str, device_s: float | None
    ) -> dict[str, Any] | None:
        """The least predicted step; None where fewer than two candidates have one."""
        by_strategy = {str(row["strategy"]): row for row in rows.to_dict("records")}
        if len(by_strategy) < 2 or device_s is None:
            return None
        picked = min(by_strategy.values(), key=lambda row: float(row["predicted_step_s"]))
        measured = len(by_strategy) if predictor == _DATA else 0
        return self._row(predictor.replace("-", " "), by_strategy, picked, device_s, measured)

    def _row(
        self,
        way: str,
        rows: Mapping[str, Mapping[str, Any]],
        picked: Mapping[str, Any],
        device_s: float,
        measured: int,
        *,
        profile_s: float = 0.0,
    ) -> dict[str, Any]:
        best = self._best(rows)
        return {
            "way": way,
            "candidates": len(rows),
            "measured_candidates": measured,
            "best": best["strategy"],
            "best_step_s": best["measured_step_s"],
            "picked": picked["strategy"],
            "picked_step_s": picked["measured_step_s"],
            "within_noise": picked["strategy"] == best["strategy"] or self._alike(picked, best),
            "device_s": device_s,
            "profile_s": profile_s,
            "device_s_all": self.device_s_all,
            "device_s_everything": self.device_s_everything,
        }

    def _alike(self, slower: Mapping[str, Any], faster: Mapping[str, Any]) -> bool:
        """Whether the runs of two candidates overlap; False without three of each."""
        slow, fast = self._runs(slower), self._runs(faster)
        return min(len(slow), len(fast)) >= RUNS and min(slow) <= max(fast)

    def _runs(self, row: Mapping[str, Any]) -> list[float]:
        """Median step of each finished run of a candidate."""
        cell = Cell.from_id(row["cell_id"])
        repeats = (result_of(cell.with_(repeat=number), self._site) for number in range(RUNS))
        return [
            result.step_s for result in repeats if result is not None and result.step_s is not None
        ]

    @staticmethod
    def _best(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return min(rows.values(), key=lambda row: float(row["measured_step_s"]))

    def _ranking(self, seen: dict[str, float]) -> Ranking:
        # One device bounds the candidates and is none itself: the question is which of them.
        candidates = [self._candidate(row, seen).limited(self._base) for row in self._rows.values()]
        return rank(candidates, DEFAULT_PREDICTOR)

    def _candidate(self, row: Mapping[str, Any], seen: dict[str, float]) -> Candidate:
        cell = Cell.from_id(row["cell_id"])
        predicted = Prediction(
            DEFAULT_PREDICTOR,
            compute_s=row["compute_s"],
            communication_s=row["exposed_communication_s"],
            exposed_communication_s=row["exposed_communication_s"],
            bubble_s=row["bubble_s"],
        )
        predicted = calibrated(predicted, cell.strategy, self._calibration)
        constants = self._calibration.of(cell.strategy)
        expected = from_prediction(predicted.step_s, constants.ratio if constants else None, ())
        step_s = seen.get(cell.strategy)
        return Candidate(
            cell,
            strategy_label(cell.strategy),
            bound=strategy_of(cell.strategy).most_speedup(cell, "cpu"),
            prediction=predicted,
            predicted_s=predicted.step_s,
            measured_s=() if step_s is None else (step_s,),
            expected=expected,
            belief=expected if step_s is None else from_runs([step_s]),
        )

    def _device_s(self, row: Mapping[str, Any]) -> float:
        return self.elapsed_s(row) * Cell.from_id(row["cell_id"]).devices

    def elapsed_s(self, row: Mapping[str, Any]) -> float:
        """Seconds of the row's cell, its first repeat."""
        if self._elapsed_s is not None:
            return self._elapsed_s(row)
        result = result_of(Cell.from_id(row["cell_id"]), self._site)
        assert result is not None
        return result.elapsed_s


if __name__ == "__main__":
    main()
