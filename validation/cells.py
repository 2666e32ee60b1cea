"""cells.csv of a study: one row for each cell and predictor, from which its means are made."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from ddlbench.experiment.site import Accelerator

COLUMNS = (
    "study", "cell_id", "dataset", "network", "strategy", "geometry", "fabric", "repeats",
    "measured_step_s", "measured_low_s", "measured_high_s", "predictor", "predicted_step_s",
    "compute_s", "exposed_communication_s", "bubble_s", "low_s", "high_s", "held_out", "device",
)  # fmt: skip


# These carry measured cells on: what they had not seen.
_CARRIES_ON = {
    "data-extrapolation": "repeat",
    "hardware-extrapolation": "geometry",
    "carry-forward": "geometry",
    "pipeline-recorded": "strategy",
}


def cells_of(study: str, predictions: Path, held_out: str) -> pd.DataFrame:
    """The rows of one study.

    Args:
        study: its name.
        predictions: predictions.json of its experiment.
        held_out: what the predictors had not seen of the cells: all, network, geometry, strategy,
            repeat or nothing.
    """
    rows = pd.DataFrame(pd.read_json(predictions)["predictions"].tolist())
    rows = rows[rows["measured_step_s"].notna() & rows["predicted_step_s"].notna()]
    rows = rows.rename(columns={"predicted_low_s": "low_s", "predicted_high_s": "high_s"})
    rows["geometry"] = rows["nodes"].astype(str) + "x" + rows["devices_per_node"].astype(str)
    rows["study"] = study
    rows["held_out"] = rows["predictor"].map(_CARRIES_ON).fillna(held_out)
    rows["device"] = device_of_site(predictions.parents[3], predictions.parents[1].name)
    return rows[list(COLUMNS)]


def device_of_site(folder: Path, site: str) -> str:
    """What results of a site in a study's folder say of its devices, for ``ddlbench claims``.

    A test bed describes its site elsewhere; it has CPUs.
    """
    file = folder / "config" / "sites" / f"{site}.yaml"
    keys = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    accelerator = keys.get("accelerator")
    return Accelerator(**accelerator).remark if accelerator else str(keys.get("device", "cpu"))


def say_device(table: Path, device: str) -> None:
    """Add the column ``device`` to a kept table that says nothing of its devices."""
    pd.read_csv(table).assign(device=device).to_csv(table, index=False)


def keep_cells(study: str, predictions: Path, held_out: str, target: Path) -> pd.DataFrame:
    """Write :func:`cells_of` a study as a CSV file, and return it."""
    cells = cells_of(study, predictions, held_out)
    target.parent.mkdir(parents=True, exist_ok=True)
    cells.to_csv(target, index=False, float_format="%.6g")
    return cells


def memory_errors_of(predictions: Path, predictor: str) -> pd.DataFrame:
    """Mean and worst error of the predicted peak of the fullest device, of each strategy."""
    rows = pd.DataFrame(pd.read_json(predictions)["predictions"].tolist())
    rows = rows[(rows["predictor"] == predictor) & rows["measured_memory_bytes"].notna()]
    signed = rows["predicted_memory_bytes"] / rows["measured_memory_bytes"] - 1
    errors = rows.assign(absolute=signed.abs()).dropna(subset="absolute")
    every = errors.assign(strategy="all")
    return (
        pd.concat([errors, every])
        .groupby("strategy", sort=False)
        .agg(
            n=("absolute", "size"),
            mean_absolute_error=("absolute", "mean"),
            worst_absolute_error=("absolute", "max"),
        )
    )


def errors_of(cells: pd.DataFrame, by: str = "strategy") -> pd.DataFrame:
    """Mean, median and worst absolute error, and signed mean, of each predictor and group."""
    signed = cells["predicted_step_s"] / cells["measured_step_s"] - 1
    errors = cells.assign(signed=signed, absolute=signed.abs())
    return errors.groupby(["predictor", by], sort=False).agg(
        n=("absolute", "size"),
        mean_absolute_error=("absolute", "mean"),
        median_absolute_error=("absolute", "median"),
        worst_absolute_error=("absolute", "max"),
        mean_signed_error=("signed", "mean"),
    )
