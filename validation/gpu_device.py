"""Tables of part 5 of the study on one GPU: the device as others can use it, and how far it agrees.

    mkdir study && tar xf config/accelerators/h200/profiles.txz -C study
    python validation/gpu_device.py study h200 --commit 24cc3575

::

    kernels.csv     ->  config/hardware/<device>-kernels.csv
    profile.json    ->  config/accelerators/<device>/      blocks, as sites can emulate them
                    ->  docs/validation/gpu/<device>/steps.csv   whole steps, measured and predicted

``steps.csv`` has the profiled batch sizes, and those that no profile has: ``predicted_s`` is of the
profile, ``data_sheet_s`` of config/hardware and the shipped roofline, which never saw this device.
What is printed: mean errors of both, and of profiled steps that are left out of their profile, by
the lines between their neighbours and by one line through all others.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ddlbench.common.document import csv_text, read_json, write_text
from ddlbench.common.fits import Timing
from ddlbench.common.schema import read_checked, read_yaml
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.profile import Profile
from ddlbench.planning.device_folder import (
    device_folder,
    device_of_profiles,
    measured_profiles,
    tables_of_profiles,
    write_device,
    write_tables,
)
from ddlbench.planning.layer_table import layers_of
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.planner import make_plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.hardware import DeviceSheet
from ddlbench.predict.roofline import Layers, shipped, whole_step_s

ROOT = Path(__file__).resolve().parents[1]
_SITE, _PRECISION = "one-cuda", "fp32"
_COLUMNS = (
    *("dataset", "network", "precision", "batch_size", "profiled", "steps", "step_s"),
    *("predicted_s", "predicted_error", "data_sheet_s", "data_sheet_error"),
    *("peak_bytes", "predicted_peak_bytes", "predicted_peak_error"),
)


def main() -> None:
    """Write the tables of one device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="folder that gpu.py --part 5 wrote")
    parser.add_argument("device", help="a file of config/hardware")
    parser.add_argument("--commit", help="of the code there, if its Git named another")
    arguments = parser.parse_args()
    profiles = measured_profiles(_SITE, _PRECISION, arguments.results / "results")
    folder = device_folder(arguments.device)
    write_tables(folder, tables_of_profiles(profiles), overwrite=True)
    device = device_of_profiles([profile for _, profile in profiles.values()])
    write_device(folder, replace(device, commit=arguments.commit or device.commit))
    hardware = ROOT / "config" / "hardware"
    if (kernels := arguments.results / "kernels.csv").is_file():
        shutil.copyfile(kernels, hardware / f"{arguments.device}-kernels.csv")
    sheet_path = hardware / f"{arguments.device}.yaml"
    sheet = read_checked(DeviceSheet, read_yaml(sheet_path), str(sheet_path))
    rows: list[tuple[object, ...]] = [_COLUMNS]
    for (dataset, network), (path, profile) in profiles.items():
        layers = Layers.of(layers_of(network, dataset))
        workload = Workload(profile.to_dict(), str(path))
        profiled = [(step.to_dict(), True) for step in profile.steps]
        held_out = read_json(path.parent / "held-out.json")["steps"]
        for step, is_profiled in [*profiled, *((step, False) for step in held_out)]:
            batch, step_s = step.get("batch_size", step.get("batch")), step["step_s"]
            predicted_s = None if is_profiled else workload.step(batch).step_s
            peak_bytes = None
            if not is_profiled:
                cell = Cell(dataset, network, "sequential", batch, precision=_PRECISION)
                fixed_bytes = profile.fixed_memory_bytes
                # The allocator's peak does not have what the device holds beside it.
                peak_bytes = memory_bytes(workload, make_plan(cell))[0] - fixed_bytes
            sheet_s = whole_step_s(layers, sheet, _PRECISION, batch, shipped())
            rows.append(
                (
                    *(dataset, network, _PRECISION, batch, is_profiled, step["count"]),
                    _digits(step_s),
                    *_compared(predicted_s, step_s),
                    *_compared(sheet_s, step_s),
                    step["peak_bytes"],
                    *_compared(peak_bytes, step["peak_bytes"]),
                )
            )
    write_text(
        ROOT / "docs" / "validation" / "gpu" / arguments.device / "steps.csv", csv_text(rows)
    )
    named = [dict(zip(_COLUMNS, row, strict=True)) for row in rows[1:]]
    print(f"held-out steps: {_mean(row['predicted_error'] for row in named):.2%}")
    for least, most in ((8, 8), (32, 128)):
        errors = (r["data_sheet_error"] for r in named if least <= int(r["batch_size"]) <= most)
        print(f"data sheet, batch {least} to {most}: {_mean(errors):.1%}")
    left_out = [pair for _, profile in profiles.values() for pair in _left_out(profile)]
    for name, errors in zip(
        ("lines between", "one line"), zip(*left_out, strict=True), strict=True
    ):
        print(f"steps left out of their profile, by {name}: {_mean(errors):.1%}")


def _left_out(profile: Profile) -> Iterable[tuple[float, float]]:
    """Errors of each step but the outer ones, predicted from the others in both ways."""
    points = [(step.batch_size, step.step_s) for step in profile.steps]
    for batch, step_s in points[1:-1]:
        timing = Timing.through([point for point in points if point[0] != batch], "a step")
        yield timing.between(batch) / step_s - 1, timing.at(batch) / step_s - 1


def _mean(errors: Iterable[object]) -> float:
    """Mean of absolute errors; empty texts do not count."""
    return fmean(abs(float(str(error))) for error in errors if error != "")


def _compared(predicted_s: float | None, step_s: float) -> tuple[str, str]:
    """A prediction and its relative error; empty where there is none."""
    if predicted_s is None:
        return "", ""
    return f"{predicted_s:.5g}", f"{predicted_s / step_s - 1:+.3f}"


def _digits(seconds: float) -> str:
    return f"{seconds:.5g}"


if __name__ == "__main__":
    main()
