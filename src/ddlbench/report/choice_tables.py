"""Tables 8.1 and 8.2 for people: a row per case, a column per recommender; and sentences of them.

A sentence says why the highest speed-up of a case is not the advised one::

    network     Horovod  DDP
    ResNet-18    1.21    1.18       Horovod has the highest speed-up for ResNet-18 and is not
    VGG-11       0.96    1.14       advised: one device may be as fast.

The reasons are those of the answers in advice.json; nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.document import write_text
from ddlbench.common.quantities import counted
from ddlbench.common.screen import named_lines, paragraph
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.predict.accuracy import ALL
from ddlbench.report import published
from ddlbench.report.labels import setting_label
from ddlbench.report.tables import rows_of

_FEW_CASES = 10
PUBLISHED = f"printed: {published.CITATION}, 4 GPUs of a node"


def choices_by_case(table: pd.DataFrame) -> pd.DataFrame:
    """Table 8.1 as text: the fastest, and what each recommender says, with its extra time.

    A wrong pick is followed by its extra time, ``~`` one within the noise of the fastest. A tie has
    the share that is right. The last column is the recommender of the thesis, for the same network
    and dataset on its four GPUs, whatever our geometry. ``table`` is that of
    :func:`ddlbench.predict.recommender_score.table_8_1`.
    """
    printed = {(row.network, row.dataset): row for row in rows_of(published.choices())}
    several = table.groupby(["dataset", "network", "nodes", "devices_per_node"])["case"].nunique()
    rows = []
    for _, records in table.groupby("case", sort=False):
        first = next(rows_of(records))
        geometry = f"{first.nodes}x{first.devices_per_node}"
        row = {
            "dataset": dataset_label(first.dataset),
            "network": network_label(first.network),
            "geometry": geometry,
        }
        if (several > 1).any():
            row["batch"], row["fabric"] = str(first.batch_size), first.fabric
        row["fastest"] = strategy_label(first.fastest)
        row |= {record.recommender: _pick(record) for record in rows_of(records)}
        theirs = printed.get((first.network, first.dataset))
        row[PUBLISHED] = _printed(theirs) if theirs is not None else ""
        rows.append(row)
    frame = pd.DataFrame(rows)
    if len(frame) and (frame[PUBLISHED] == "").all():
        return frame.drop(columns=PUBLISHED)
    return frame


def rates_by_recommender(table: pd.DataFrame) -> pd.DataFrame:
    """Table 8.2 as text: right of so many, a column per dataset; below it the thesis' own."""
    datasets = in_dataset_order([name for name in dict.fromkeys(table["dataset"]) if name != ALL])
    rows = []
    for (recommender, baseline), records in table.groupby(["recommender", "baseline"], sort=False):
        whole = next(rows_of(records.tail(1)))  # the row over all datasets is the last
        row = {"recommender": f"{recommender} (baseline)" if baseline else str(recommender)}
        right = {record.dataset: _right(record) for record in rows_of(records)}
        row |= {dataset_label(name): right.get(name, "") for name in datasets}
        row["all"] = _right(whole)
        row["within noise"] = _percent(whole.top1_within_noise)
        row["mean extra time"] = _percent(whole.mean_regret)
        row["no answer"] = str(whole.no_recommendation) if whole.no_recommendation else ""
        row["ties"] = str(whole.ties) if whole.ties else ""
        row["not scored"] = str(whole.not_scored) if whole.not_scored else ""
        row["remark"] = whole.verdict
        rows.append(row)
    if rows:
        rows.append(_printed_rates(datasets))
    return pd.DataFrame(rows).fillna("")


def beside_printed(table: pd.DataFrame) -> pd.DataFrame:
    """Table 8.1 or 8.2 with the printed values of the same network and dataset after each row.

    Of cases ``printed_recommended``, ``printed_fastest`` and ``printed_extra_time``; of rates
    ``printed_correct`` of ``printed_n``, by dataset and over all. They are of four GPUs of a node.
    """
    if "case" not in table:
        return table.join(_printed_right(), on="dataset")
    names = ["recommended", "fastest", "extra_time"]
    of_paper = published.choices()[["network", "dataset", *names]].rename(
        columns={name: f"printed_{name}" for name in names}
    )
    return table.merge(of_paper, on=["network", "dataset"], how="left")


def _printed_right() -> pd.DataFrame:
    """How many printed choices are right, of how many, by dataset and over all."""
    printed = published.choices()
    right = (printed["recommended"] == printed["fastest"]).astype(int)
    groups = right.groupby(printed["dataset"])
    rates = pd.DataFrame({"printed_correct": groups.sum(), "printed_n": groups.size()})
    rates.loc[ALL] = [int(right.sum()), len(right)]
    return rates


def markdown(title: str, frame: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """Write a table of texts as a page of Markdown."""
    if not len(frame.columns):
        return f"# {title}\n\nNothing to compare: no case has two measured strategies.\n"
    lines = [
        f"# {title}",
        "",
        *(f"{note}\n" for note in notes),
        _line(frame.columns),
        "|" + "---|" * len(frame.columns),
        *(_line(row) for row in frame.to_numpy().tolist()),
    ]
    return "\n".join(lines) + "\n"


def _pick(record: Any) -> str:
    if not record.recommended:
        return "none"
    name = f"tie of {record.tied}" if record.tied else strategy_label(record.recommended)
    if pd.isna(record.correct):
        return f"{name} (not scored)"
    if record.correct == 1:
        return name
    if pd.isna(record.extra_time):
        return f"{name} (did not run)"
    right = f"{record.correct:.0%} right, " if record.tied else ""
    return f"{name} ({right}+{record.extra_time:.0%}{' ~' if record.within_noise == 1 else ''})"


def _right(record: Any) -> str:
    """Right of so many; a tie counts as a part of one."""
    return f"{record.correct:.4g}/{record.n}"


def _printed(row: Any) -> str:
    name = strategy_label(row.recommended)
    if row.recommended == row.fastest:
        return name
    return f"{name} (+{row.extra_time:.0%}, fastest {strategy_label(row.fastest)})"


def _printed_rates(datasets: list[str]) -> dict[str, str]:
    printed, right = published.choices(), _printed_right()
    texts = {row.Index: f"{row.printed_correct}/{row.printed_n}" for row in rows_of(right)}
    row = {"recommender": f"{PUBLISHED} ({printed['hardware'].iloc[0]})"}
    row |= {dataset_label(name): texts.get(name, "") for name in datasets}
    row["all"] = texts[ALL]
    row["mean extra time"] = _percent(printed["extra_time"].mean())
    row["remark"] = "other machine; Horovod or GPipe only; four datasets"
    return row


def _percent(share: float) -> str:
    return "" if pd.isna(share) else f"{share:.0%}"


def _line(values: Any) -> str:
    return "| " + " | ".join(str(value).replace("|", r"\|") for value in values) + " |"


def write_choices(
    cases: pd.DataFrame,
    rates: pd.DataFrame,
    as_published: tuple[pd.DataFrame, pd.DataFrame],
    folder: Path,
) -> None:
    """Write table_8_1.md and table_8_2.md: at one global batch, then as the thesis made them.

    ``as_published`` is of :func:`ddlbench.predict.recommender_score.published_cases`.
    """
    pages = {
        "table_8_1": [markdown("Recommended and fastest strategy", choices_by_case(cases), _NOTES)],
        "table_8_2": [markdown("How often recommendations are right", rates_by_recommender(rates))],
    }
    for (name, sections), table, shown in zip(
        pages.items(), as_published, (choices_by_case, rates_by_recommender), strict=True
    ):
        if "kind" in table.columns:
            for kind, rows in table.groupby("kind", sort=False):
                sections.append(markdown(str(kind).capitalize(), shown(rows)))
        write_text(folder / f"{name}.md", "\n".join(sections))


_NOTES = (
    "In brackets: extra time of a wrong choice over the fastest; `~`: within the noise of repeats. "
    "A tie counts as the mean of its picks. Not scored: it learnt from the only repeat.",
)


def choice_lines(cases: pd.DataFrame, rates: pd.DataFrame, *, every_row: bool) -> list[str]:
    """Tables 8.1 and 8.2 for a terminal: how often the fastest strategy was named.

    With ``every_row`` also what each recommender named in each case.
    """
    if cases.empty:
        return paragraph("No case has two measured strategies, so there is nothing to recommend.")
    last = rates.drop_duplicates("recommender", keep="last")
    scored = last[last["n"] > 0].sort_values(["baseline", "correct"], ascending=[True, False])
    if scored.empty:
        return paragraph("Fastest strategy: no case can be scored (Table 8.2).")
    parts = [
        f"{row['recommender']}{' (baseline)' if row['baseline'] else ''} "
        f"{row['correct']:.2g} of {row['n']}"
        for row in scored.to_dict("records")
    ]
    if not every_row and len(parts) > 6:
        parts = [*parts[:6], f"{len(parts) - 6} more"]
    lines = paragraph(
        "Fastest strategy named rightly (Table 8.2): " + ", ".join(parts) + ".", hanging="  "
    )
    count = int(scored["n"].max())
    if count < _FEW_CASES:
        many = "1 case is" if count == 1 else f"{count} cases are"
        lines += paragraph(f"{many} too few to tell recommenders apart.")
    lines += paragraph(
        " ".join(sorted({f"{v}.".capitalize() for v in scored["verdict"] if v})), hanging="  "
    )
    return [*lines, *_case_lines(cases)] if every_row else lines


def _case_lines(cases: pd.DataFrame) -> list[str]:
    """Table 8.1: of each case the fastest strategy, and what each recommender named."""
    lines = ["", "Recommended strategies (Table 8.1)"]
    for case, rows in cases.groupby("case", sort=False):
        records = rows.to_dict("records")
        fastest = next((row["fastest"] for row in records if row["fastest"]), "")
        lines += paragraph(f"{case}: fastest {strategy_label(fastest) if fastest else 'unknown'}")
        named: dict[str, list[str]] = {}
        for row in records:
            pick = " or ".join(
                strategy_label(n) for n in str(row["recommended"]).split(" or ") if n
            )
            extra = row["extra_time"]
            slower = f" (+{extra:.0%} time)" if math.isfinite(extra) and extra > 0 else ""
            named.setdefault(f"{pick or 'no answer'}{slower}", []).append(str(row["recommender"]))
        lines += named_lines([(pick, ", ".join(by)) for pick, by in named.items()], "  ")
    return lines


_SIZE = ("network", "dataset", "nodes", "devices_per_node", "batch_size")
_Answer = Mapping[str, Any]


def not_advised(answers: Sequence[_Answer], summary: pd.DataFrame) -> list[str]:
    """A sentence for each case whose highest measured speed-up has a reason against it.

    Args:
        answers: see :func:`ddlbench.predict.advice.answer_dict`.
        summary: the table of the experiment.
    """
    measured = summary[(summary["strategy"] != BASE) & summary["speedup"].notna()]
    cells = [Cell.from_id(f"{name}/rep0") for name in measured["configuration"]]
    rows = []
    for answer in answers:
        case = answer["case"]
        named = {**{name: case[name] for name in _SIZE}, **case["settings"]}
        of_case = [all(getattr(cell, k) == v for k, v in named.items()) for cell in cells]
        rates = measured[of_case]
        if rates.empty or answer["recommended"] is None:
            continue
        highest = str(rates["strategy"].iloc[int(rates["speedup"].argmax())])
        reason = _reason(answer, highest)
        if reason:
            rows.append(
                f"{strategy_label(highest)} has the highest speed-up for "
                f"{_named(answer['case'], answers)} and is not advised: {reason.rstrip('.')}."
            )
    return rows


def _reason(answer: _Answer, strategy: str) -> str:
    """Why it is not recommended; empty if it is, or nothing is said against it."""
    if strategy == answer["recommended"]:
        return ""
    left_out = {entry["strategy"]: entry["reason"] for entry in answer["not_ranked"]}
    # The sentence has a colon of its own.
    reason = left_out.get(strategy, "").replace(": ", "; ")
    return str(answer["why_not"].get(strategy, reason))


def _named(case: Mapping[str, Any], answers: Sequence[_Answer]) -> str:
    """The network, and what else tells this case from the others."""
    cases = [case, *(answer["case"] for answer in answers)]
    settings = dict.fromkeys(name for each in cases for name in each["settings"])
    labels = [_labels(each, settings) for each in cases]
    network, *others = labels[0]
    differing = [
        text for place, text in enumerate(others, 1) if len({label[place] for label in labels}) > 1
    ]
    return ", ".join([network, *differing])


def _labels(case: Mapping[str, Any], settings: Iterable[str]) -> tuple[str, ...]:
    return (
        network_label(case["network"]),
        dataset_label(case["dataset"]),
        f"{case['nodes']}x{case['devices_per_node']}",
        f"{counted(case['batch_size'], 'sample')} a step",
        *(setting_label(case, name) for name in settings),
    )
