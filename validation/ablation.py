"""What each term of the predictor ``ddlbench`` buys: its errors with one term left out.

Reads the cells that the studies measured; measures nothing. A term is left out where the model
reads it, so all else stays as it is. Writes docs/validation/ablation.csv: a row for each study,
term and strategy whose error it changes. A study that was not measured here keeps its rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import emulated
import pandas as pd
import prediction
import transformer_cells
from bed_study import ROOT, Part, Study

from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.profile import InvalidProfile
from ddlbench.experiment.site import load_site
from ddlbench.planning import pipeline
from ddlbench.planning.matrix import expand
from ddlbench.planning.schedules import Messaging, Schedule, messaging_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.links import Contention, LinkTable
from ddlbench.predict.prediction import DEFAULT_PREDICTOR
from ddlbench.predict.predictors import pipeline_replay
from ddlbench.strategies.pipelining import descriptor

OUT = ROOT / "docs" / "validation" / "ablation.csv"
# The parts of each study.
STUDIES: dict[str, list[Part]] = {
    "emulated": [(lambda: Study("emulated", emulated.EXPERIMENT), emulated.EXPERIMENT)],
    "fast-link": prediction.parts(prediction.fast),
    "slow-link": prediction.parts(prediction.slow),
    **{
        transformer_cells.PARTS[name]["experiment"]: [
            (
                partial(transformer_cells.described, transformer_cells.PARTS[name]),
                transformer_cells.PARTS[name],
            )
        ]
        for name in ("computed", "computed-bw250")
    },
}

_sweeps_of = LinkTable.sweeps_of


def _bare_sweeps(table: LinkTable, library: str) -> bool:
    return library != "ddp" and _sweeps_of(table, library)


def _early(schedule: Schedule) -> Messaging:
    return replace(messaging_of(schedule), lowered=False)


def _nothing_hidden(*_: Any) -> Contention:
    return Contention(1.0, ())


def _as_profiled(workload: Workload, _samples: float) -> pipeline_replay.BlockFactors:
    return pipeline_replay.as_profiled(workload)


# What is left out -> what is put in its place: owner, name, value.
Place = tuple[Any, str, Callable[..., Any]]
TERMS: dict[str, list[Place]] = {
    "nothing": [],
    "DDP's copies": [(LinkTable, "sweeps_of", _bare_sweeps)],
    "overlap (nothing hidden)": [(LinkTable, "contention", _nothing_hidden)],
    "processor time of messages": [
        (LinkTable, "_busy", lambda *_: []),
        (LinkTable, "message_ends_s", lambda *_: None),
    ],
    "idle Horovod": [(LinkTable, "slow_down_beside", lambda *_: 1.0)],
    "replicas slow each other": [(Workload, "slowdown", lambda *_: 1.0)],
    "level of whole steps": [(pipeline_replay, "as_whole_steps", _as_profiled)],
    "torch's order of receives": [(pipeline, "messaging_of", _early)],
    "waiting for a core": [(LinkTable, "delay_s", lambda *_: 0.0)],
    "nodes share a link": [(pipeline_replay.PipelineLinks, "held", lambda *_: None)],
}


def main() -> None:
    """Predict the cells of each study, each time without one term."""
    kept = pd.read_csv(OUT)
    tables = []
    for name, parts in STUDIES.items():
        errors_of = _errors_without(parts)
        if errors_of is None:
            tables.append(kept[kept["study"] == name])
            continue
        for term, errors in errors_of.items():
            changed = errors[(errors - errors_of["nothing"]).abs() > 1e-6]
            shown = errors_of["nothing"] if term == "nothing" else changed
            tables.append(
                pd.DataFrame(
                    {
                        "study": name,
                        "left_out": term,
                        "strategy": shown.index,
                        "mean_absolute_error": shown.to_numpy(),
                        "with_it": errors_of["nothing"][shown.index].to_numpy(),
                    }
                )
            )
    pd.concat(tables).to_csv(OUT, index=False, float_format="%.4g")


def _errors_without(parts: list[Part]) -> dict[str, pd.Series[float]] | None:
    """Errors without each term; None for a study that has no profile or no cell here."""
    if not parts:
        return None
    experiments = {folder().folder: experiment for folder, experiment in parts}
    try:
        errors_of = {term: _errors(experiments, places) for term, places in TERMS.items()}
    except InvalidProfile:
        return None
    return None if errors_of["nothing"].empty else errors_of


def _errors(experiments: dict[Path, dict[str, Any]], places: list[Place]) -> pd.Series[float]:
    """Mean absolute error of each strategy over experiments, each in its folder."""
    frames = []
    for folder, experiment in experiments.items():
        os.chdir(folder)
        config = parse_experiment(experiment, "the study")
        site = load_site(config.site)
        descriptor._run.cache_clear()  # runs of schedules hold how they post receives
        with ExitStack() as stack:
            for owner, name, value in places:
                stack.enter_context(patch.object(owner, name, value))
            frames.append(predictions(expand(config, site), site, names=[DEFAULT_PREDICTOR]))
        descriptor._run.cache_clear()
    frame = pd.concat(frames)
    return frame["signed_error"].abs().groupby(frame["strategy"], sort=False).mean().dropna()


if __name__ == "__main__":
    main()
