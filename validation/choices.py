"""Choosing by measuring, replayed on cells that studies have measured.

For each case of a study (network, geometry, fabric, batch) the candidates are predicted, calibrated
with the other networks' cells alone, and K of them "measured": their cell's step is looked up.
Measures nothing itself. Writes docs/validation/choices.csv, a row a case and K, and
choices_by_k.csv.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import emulated
import pandas as pd
from bed_study import ROOT, Study

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import Glance
from ddlbench.experiment.site import load_site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import expand
from ddlbench.predict.calibration import Calibration, calibrate, calibrated, cells_of
from ddlbench.predict.candidate import Candidate, Recommendation, rank, with_belief, with_chances
from ddlbench.predict.choose import Limits, choose, result_of
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, Measured, Prediction
from ddlbench.report.labels import strategy_label

OUT = ROOT / "docs" / "validation"
STUDIES = [emulated.EXPERIMENT]
MOST = 3
_CASE = ["dataset", "network", "nodes", "devices_per_node", "fabric", "batch_size"]


def main() -> None:
    """Choose in every case of each study, with nothing measured and with up to three."""
    rows: list[dict[str, Any]] = []
    for experiment in STUDIES:
        os.chdir(Study(experiment["experiment"], experiment).folder)
        rows += _cases(experiment)
    table = pd.DataFrame(rows)
    table.to_csv(OUT / "choices.csv", index=False, float_format="%.6g")
    table["regret"] = table["picked_step_s"] / table["best_step_s"] - 1
    table["right"] = table["picked"] == table["best"]
    table["share_of_device_s"] = table["device_s"] / table["device_s_all"]
    shown = ["right", "within_noise", "regret", "share_of_device_s"]
    by = table.groupby(["study", "most_measured"], sort=False)
    summary = by[shown].mean().join(by.size().rename("cases"))
    summary.to_csv(OUT / "choices_by_k.csv", float_format="%.4g")


def _cases(experiment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    config = parse_experiment(experiment, "the study")
    site = load_site(config.site)
    frame = predictions(expand(config, site), site, names=[DEFAULT_PREDICTOR])
    frame = frame[frame["measured_step_s"].notna() & frame["predicted_step_s"].notna()]
    for keys, case in frame[frame["synchronous"]].groupby(_CASE, sort=False):
        told = dict(zip(_CASE, keys, strict=True))
        candidates = case[case["strategy"] != BASE]
        if len(candidates) < 2:
            continue
        others = cells_of(frame[frame["network"] != told["network"]], DEFAULT_PREDICTOR)
        bed = _Case(site.name, candidates, calibrate(site.name, others))
        name = "/".join(str(told[key]) for key in _CASE)
        for most in range(MOST + 1):
            yield {"study": experiment["experiment"], "case": name, **bed.chosen(most)}


class _Case:
    """Candidates of one case, whose measurements are there but unknown to the choice."""

    def __init__(self, site: str, rows: pd.DataFrame, calibration: Calibration) -> None:
        self._site, self._calibration = site, calibration
        self._rows = {str(row["strategy"]): row for row in rows.to_dict("records")}

    def chosen(self, most: int) -> dict[str, Any]:
        """What is picked with at most so many measured, and what it costs."""
        seen: dict[str, float] = {}

        def rank_now() -> Recommendation:
            return self._ranking(seen)

        def measure(cell: Cell) -> Glance:
            row = self._rows[cell.strategy]
            seen[cell.strategy] = float(row["measured_step_s"])
            return Glance(cell, Status.OK, self._elapsed_s(row), seen[cell.strategy], None)

        choice = choose(rank_now, measure, Limits(most), lambda _cell: None)
        assert choice.ranking.best is not None
        picked = self._rows[choice.ranking.best.cell.strategy]
        best = min(self._rows.values(), key=lambda row: float(row["measured_step_s"]))
        return {
            "most_measured": most,
            "candidates": len(self._rows),
            "measured_candidates": len(choice.trials),
            "best": best["strategy"],
            "best_step_s": best["measured_step_s"],
            "picked": picked["strategy"],
            "picked_step_s": picked["measured_step_s"],
            "within_noise": bool(picked["measured_low_s"] <= best["measured_high_s"]),
            "device_s": choice.device_s,
            "device_s_all": sum(
                self._elapsed_s(row) * Cell.from_id(row["cell_id"]).devices
                for row in self._rows.values()
            ),
        }

    def _ranking(self, seen: dict[str, float]) -> Recommendation:
        candidates = [self._candidate(row, seen) for row in self._rows.values()]
        return Recommendation(DEFAULT_PREDICTOR, tuple(sorted(with_chances(candidates), key=rank)))

    def _candidate(self, row: dict[str, Any], seen: dict[str, float]) -> Candidate:
        cell = Cell.from_id(row["cell_id"])
        predicted = Prediction(
            DEFAULT_PREDICTOR,
            compute_s=row["compute_s"],
            communication_s=row["communication_s"],
            exposed_communication_s=row["exposed_communication_s"],
            bubble_s=row["bubble_s"],
        )
        predicted = calibrated(predicted, cell.strategy, self._calibration)
        label = strategy_label(cell.strategy)
        candidate = Candidate(cell, label, True, predicted, None, None, None, "")
        history = tuple(
            Measured(cell, step_s) for name, step_s in seen.items() if name == cell.strategy
        )
        return with_belief(candidate, self._calibration, history, {}, by_runs=True)

    def _elapsed_s(self, row: dict[str, Any]) -> float:
        found = result_of(Cell.from_id(row["cell_id"]), self._site)
        assert found is not None
        return found.elapsed_s


if __name__ == "__main__":
    main()
