"""A comparison of two trees as lines of a terminal, Markdown of a pull request, JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ddlbench.common.errors import printable
from ddlbench.common.quantities import counted, duration_text, few
from ddlbench.common.run_noise import repeats_to_tell
from ddlbench.common.screen import paragraph, shortened, table
from ddlbench.report.labels import span_text
from ddlbench.report.regressions import Compared, Comparison, Verdict
from ddlbench.report.run_trees import Tree

_MOST_ROWS = 20
_MOST_REASONS = 8
_LONGEST_REASON = 200
_OLD_NEWS = Verdict.BOTH_FAILED
_SOURCES = {
    "repeats": "repeats of the configuration",
    "other repeats": "repeats of other configurations",
    "stated": "steps within a run and a stated spread from run to run",
}


def percent(share: float) -> str:
    """A share as ``5%``."""
    return f"{100 * share:.3g}%"


def summary(comparison: Comparison) -> str:
    """One sentence on all configurations, without a full stop."""
    return f"{comparison.second.name} against {comparison.first.name}: {verdicts(comparison)}"


def verdicts(comparison: Comparison) -> str:
    """How many configurations have each verdict, and the middle of the ratios."""
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in comparison.counts.items())
    middle = comparison.middle
    median_text = "" if middle is None else f"; median ratio {middle:.3f}"
    what = "of the time of a sample, " if comparison.per_sample and median_text else ""
    return (
        f"{counts} of {counted(len(comparison.rows), 'configuration')}{median_text} {what}"
        f"(margin {percent(comparison.margin)})"
    )


def lines_of(comparison: Comparison, *, every_row: bool = False) -> list[str]:
    """Lines of a terminal: the summary, a row per configuration with the worst first, remarks."""
    most = max(_MOST_ROWS, comparison.regressions)
    rows = comparison.rows if every_row else comparison.rows[:most]
    lines = paragraph(f"{summary(comparison)}.")
    first = comparison.common or "configuration"
    lines += table(
        f"{first} | > ratio | > 95 % | verdict | > A, B /1 | > runs /2",
        [(row.name, *_numbers(row)) for row in rows],
    )
    if len(rows) < len(comparison.rows):
        lines.append(f"{counted(len(comparison.rows) - len(rows), 'row')} more: --all")
    for remark in remarks(comparison):
        lines += paragraph(remark, hanging="  ")
    return lines


def _numbers(row: Compared) -> tuple[str, str, str, str, str]:
    ratio = row.ratio
    samples = [row.first.sample, row.second.sample if row.second else None]
    return (
        "" if ratio is None else f"{ratio.ratio:.3f}",
        "" if ratio is None else f"{ratio.low:.3f}-{ratio.high:.3f}",
        str(row.verdict),
        ", ".join("-" if sample is None else duration_text(sample.median_s) for sample in samples),
        f"{row.first.runs}, {row.second.runs if row.second else 0}",
    )


def remarks(comparison: Comparison, *, with_reasons: bool = True) -> list[str]:
    """Sentences below the table."""
    every = (
        *(_reasons(comparison) if with_reasons else ()),
        _alone(comparison),
        *_unreadable(comparison),
        _noise(comparison),
        _repeats(comparison),
        *(f"{note}." for note in comparison.notes),
    )
    return [*filter(None, every)]


def _reasons(comparison: Comparison) -> Iterator[str]:
    """Why configurations failed, or have no ratio."""
    reasons = [row for row in comparison.rows if row.reason and row.verdict != _OLD_NEWS]
    for row in reasons[:_MOST_REASONS]:
        yield f"{row.name}, {row.verdict}: {shortened(row.reason, _LONGEST_REASON)}"
    if len(reasons) > _MOST_REASONS:
        yield f"{counted(len(reasons) - _MOST_REASONS, 'more reason')}: --json"


def _alone(comparison: Comparison) -> str:
    parts = [
        f"{len(names):,} of {side} ({few(names)})"
        for side, names in zip("AB", comparison.alone, strict=True)
        if names
    ]
    if not parts:
        return ""
    hint = f"; {comparison.hint}" if comparison.hint else ""
    return f"Without a partner: {', '.join(parts)}{hint}."


def _unreadable(comparison: Comparison) -> Iterator[str]:
    for tree in (comparison.first, comparison.second):
        if tree.unreadable:
            more = len(tree.unreadable) - 1
            rest = f"; {counted(more, 'file')} more" if more else ""
            yield f"Left out: {shortened(tree.unreadable[0], _LONGEST_REASON)}{rest}."


def _noise(comparison: Comparison) -> str:
    noises, parts = comparison.noises(), []
    for source, count in Counter(noise.source for noise in noises).most_common():
        spreads = sorted({noise.variance**0.5 for noise in noises if noise.source == source})
        stated = f"; {' or '.join(map(percent, spreads))}" if source == "stated" else ""
        parts.append(f"{_SOURCES[source]} ({count:,}{stated})")
    return f"Intervals are from {', '.join(parts)}." if parts else ""


def _repeats(comparison: Comparison) -> str:
    """How many repeats would tell, where the noise alone keeps a verdict away."""
    wanted = []
    for row in comparison.rows:
        if row.verdict == Verdict.CANNOT_TELL and row.ratio is not None and row.ratio.noise:
            runs = min(row.first.runs, row.second.runs if row.second else 0)
            needed = repeats_to_tell(row.ratio.noise, comparison.margin)
            wanted.append(max(needed, runs + 1))
    if not wanted:
        return ""
    count = span_text(wanted)
    return f"Cannot tell: an interval is as narrow as the margin with {count} repeats in each tree."


def markdown_of(comparison: Comparison) -> str:
    """The comparison for a pull request: what changed, and the rest folded."""
    quiet = (Verdict.SAME, Verdict.BOTH_FAILED)
    loud = [row for row in comparison.rows if row.verdict not in quiet]
    rest = [row for row in comparison.rows if row.verdict in quiet]
    count = comparison.regressions
    head = f"**{counted(count, 'regression') if count else 'No regression'}.** "
    blocks = [head + _escaped(summary(comparison)) + "."]
    if loud:
        blocks.append(_markdown_table(comparison, loud))
    bullets = [f"* {_escaped(remark)}" for remark in remarks(comparison)]
    if bullets:
        blocks.append("\n".join(bullets))
    if rest:
        name = f"{len(rest):,} without a change"
        inner = _markdown_table(comparison, rest)
        blocks.append(f"<details><summary>{name}</summary>\n\n{inner}\n\n</details>")
    return "\n\n".join(blocks)


def _markdown_table(comparison: Comparison, rows: Sequence[Compared]) -> str:
    first = _escaped(comparison.common or "configuration")
    lines = [
        f"| {first} | ratio | 95 % | verdict | A, B | runs |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for row in rows:
        ratio, interval, verdict, *others = _numbers(row)
        shown = f"**{verdict}**" if row.verdict.is_regression else verdict
        cells = (_escaped(row.name), ratio, interval, shown, *others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    text = printable(text)
    for sign in "\\|<>*_`":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def values_of(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "a": _tree(comparison.first),
        "b": _tree(comparison.second),
        "margin": comparison.margin,
        "across": list(comparison.across),
        "quantity": "time of a sample" if comparison.per_sample else "step",
        "summary": summary(comparison),
        "counts": {str(verdict): count for verdict, count in comparison.counts.items()},
        "regressions": comparison.regressions,
        "median_ratio": comparison.middle,
        "configurations": [_row(row) for row in comparison.rows],
        "only_in_a": list(comparison.alone[0]),
        "only_in_b": list(comparison.alone[1]),
        "hint": comparison.hint or None,
        "notes": list(comparison.notes),
    }


def _tree(tree: Tree) -> dict[str, Any]:
    return {
        "name": tree.name,
        "kind": "reference" if tree.is_reference else "results",
        "sites": list(tree.sites),
        "commits": list(tree.commits),
        "measured": list(dict.fromkeys([*tree.created[:1], *tree.created[-1:]])),
        "unreadable": list(tree.unreadable),
    }


def _row(row: Compared) -> dict[str, Any]:
    ratio, noise = row.ratio, row.ratio.noise if row.ratio else None
    samples = {"a": row.first.sample, "b": row.second.sample if row.second else None}
    return {
        "configuration": row.first.cell.id.removesuffix("/rep0"),
        "b_configuration": row.second.cell.id.removesuffix("/rep0") if row.second else None,
        "verdict": str(row.verdict),
        "regression": row.verdict.is_regression,
        **{name: getattr(ratio, name, None) for name in ("ratio", "low", "high")},
        "interval_from": None if noise is None else noise.source,
        "run_spread": None if noise is None else noise.variance**0.5,
        **{f"{side}_step_s": sample and sample.median_s for side, sample in samples.items()},
        **{f"{side}_runs": sample.runs if sample else 0 for side, sample in samples.items()},
        "a_failed_runs": row.first.failed,
        "b_failed_runs": row.second.failed if row.second else 0,
        "site": row.first.site or None,
        "reason": row.reason or None,
    }
