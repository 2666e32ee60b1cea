"""How scores and constants of the oracle of transformers look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddlbench.commands.oracle_display import written
from ddlbench.common.screen import duration_text, paragraph, table
from ddlbench.predict.transformer.configurations import CUT

if TYPE_CHECKING:
    from ddlbench.predict.platforms import Accelerators

BILLION = 1e9
CONSTANT = ("value", "low", "high", "prior", "at_most", "unit", "meaning")
"""What is said of each fitted constant."""


def _cut(row: Mapping[str, Any]) -> tuple[str, str]:
    """Devices of a cut, and the micro-batch."""
    return " x ".join(f"{row[name]:.0f}" for name in CUT[:3]), f"{row['micro_batch']:.0f}"


def score_lines(values: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Errors, by parts of the cut, and the worst rows."""
    held = values["hold_out"]
    how = f"each {held} held out in turn" if held else "the platform's own constants"
    lines = paragraph(
        f"{values['rows']:,} runs, {how}: mean absolute error {values['mean_absolute_error']:.1%}, "
        f"median {values['median_absolute_error']:.1%}; {platform.description}"
    )
    rows = []
    for name in CUT:
        errors = list(values["by"][name].items())[:9]
        cells = [f"{value}: {one['mean_absolute_error']:.0%}" for value, one in errors]
        rows.append((name, *cells, *[""] * (9 - len(cells))))
    lines += table("by" + "| >" * 9, rows)
    lines.append("worst rows")
    headings = "> devices | > hidden | > t x d x p | > micro | > measured | > predicted | > error"
    lines += table(
        headings,
        [
            (
                f"{one['devices']}",
                f"{one['hidden_size']}",
                *_cut(one),
                duration_text(one["measured_s"]),
                duration_text(one["predicted_s"]),
                f"{one['error']:+.0%}",
            )
            for one in values["worst"]
        ],
    )
    choices = values["choices"]
    if choices["groups"]:
        lines += paragraph(
            f"choosing in {choices['groups']} groups of one model, batch and number of devices: "
            f"the fastest run chosen in {choices['best_chosen']:.0%}, mean regret "
            f"{choices['mean_regret']:.1%}, largest {choices['largest_regret']:.1%}"
        )
    return lines


def calibration_lines(value: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Every constant with its interval."""
    headings = "constant | > fitted | > 90 % | > prior | unit /1"
    rows = [
        (
            name,
            f"{constant['value']:.3g}",
            f"{constant['low']:.2g} to {constant['high']:.2g}",
            f"{constant['prior']:.3g}",
            str(constant["unit"]),
        )
        for name, constant in value["constants"].items()
    ]
    lines = paragraph(
        f"{len(rows)} constants from {value['rows']:,} runs: {platform.description}; mean absolute "
        f"error on the same runs {value['mean_absolute_error']:.1%}"
    )
    return [*lines, *table(headings, rows), *written(value)]
