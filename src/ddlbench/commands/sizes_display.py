"""How answers for several geometries look in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlbench.common.screen import in_one_unit, paragraph, table, two_digits
from ddlbench.common.statistics import BYTES, HOURS, TIMES
from ddlbench.planning.labels import dataset_label, network_label
from ddlbench.predict.advice import batch_hint, chance_text
from ddlbench.predict.largest_batch import sizes_advice

if TYPE_CHECKING:
    from ddlbench.predict.candidate import Knowledge
    from ddlbench.predict.largest_batch import Size


def sizes_lines(sizes: Sequence[Size], known: Knowledge) -> list[str]:
    """A line a geometry with its best strategy, and what more devices bring.

    Args:
        sizes: by their devices, the fewest first.
        known: what is known at the site.
    """
    first = sizes[0].question
    lines = paragraph(
        f"{network_label(first.network)}, {dataset_label(first.dataset)}, {first.batch_size} "
        f"samples a step, site {known.site.name}"
    )
    headings = (
        "devices | best strategy | > step | > speed-up | > eff. | > device-h"
        " | > memory | > fastest /1"
    )
    best = [size.best for size in sizes]
    rows = zip(
        [size.question.geometry for size in sizes],
        [one.label if one else "nothing compared" for one in best],
        in_one_unit([one.shown_s if one else None for one in best], TIMES),
        ["" if size.speedup is None else f"{size.speedup:.2f}" for size in sizes],
        [f"{size.efficiency:.0%}" if size.efficiency is not None else "" for size in sizes],
        [two_digits(HOURS.of(s)) if (s := size.epoch_device_s) else "" for size in sizes],
        in_one_unit([one.memory_bytes if one else None for one in best], BYTES),
        [chance_text(one.chance) if one else "" for one in best],
        strict=True,
    )
    lines += table(headings, rows)
    for sentence in sizes_advice(sizes):
        lines += paragraph(sentence)
    for size in sizes:
        where = size.question.geometry
        if size.best is None:
            lines += paragraph(f"{where}: {size.advice.sentences[0]}")
        for hint in batch_hint(size.question, size.ranking, known):
            lines += paragraph(f"{where}: {hint}")
    measured = [s.question.geometry for s in sizes if s.best and s.best.basis == "measured"]
    predicted = [s.question.geometry for s in sizes if s.best and s.best.basis == "predicted"]
    basis = (
        f"Measured: {', '.join(measured) or 'none'}. Predicted: {', '.join(predicted) or 'none'}."
    )
    lines += paragraph(f"{basis} device-h: device-hours of an epoch. eff.: speed-up over devices.")
    beyond = [s.question.geometry for s in sizes if s.best and s.best.beyond]
    if beyond:
        lines += paragraph(
            f"Predicted beyond the devices of site {known.site.name}: {', '.join(beyond)}."
        )
    return lines
