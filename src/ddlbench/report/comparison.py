"""Each printed value beside ours of the same figure: ``docs/papers/comparison.csv``.

::

    printed_values.py           docs/papers/<figure>/cells.csv, deviation_*.csv ...
         |  of the figure's own places       |  medians of repeats
         '------- same quantity, dataset, network, strategy, devices, condition ------> ratio

A value that has no partner stands alone, without a ratio: what is printed and not measured, what is
measured and not printed.

Every number that the four sources print and this repository has digitised, in one table.

::

    thesis2020/speedups.csv       Fig. 3.1, 3.2          speed-up
              /deviations.csv     Fig. 4.1 to 6.2        predicted / measured
              /micro_batches.csv  Table 6.1              images/s
              /choices.csv        Table 8.1              extra time of a choice
    cheng/throughput.csv          Fig. 3, 5, 7           images/s
    paradl/published/measured.csv Fig. 1                 seconds a step

A value belongs to the ``figure`` of config/papers that prints it, and to no other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.config import PaperFile, read_papers
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.experiment.status import Status
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, reliable_rows
from ddlbench.report import drawing
from ddlbench.report.kept_verdicts import device_of
from ddlbench.report.papers_page import FigureResults, kept_results
from ddlbench.report.style import variant_labels
from ddlbench.report.tables import table_text

SPEEDUP = "speed-up"
PREDICTED = "predicted / measured"
RATE = "images/s"
STEP = "seconds a step"
EXTRA = "extra time of the recommended strategy"
RECOMMENDED = "recommended"  # in place of a strategy, where each case has another one

KEYS = ["quantity", "dataset", "network", "strategy", "geometry", "condition"]
"""What a printed and a measured value share if they are of the same thing."""
PRINTED_COLUMNS = ["figure", *KEYS, "published", "where", "how"]

_PARADL_STRATEGIES = {"data": "ddp", "data+filter": "data-filter", "data+spatial": "data-spatial"}
_ABCI_DEVICES = 4  # a node


def printed_values() -> pd.DataFrame:
    """One row a printed value: :data:`COLUMNS`; ``published`` is NaN where the run failed there."""
    return pd.concat([part[PRINTED_COLUMNS] for part in _parts()], ignore_index=True)


def _parts() -> Iterator[pd.DataFrame]:
    yield _of(drawing.speedups(), SPEEDUP, "speedup")
    deviations = drawing.all_deviations()
    values = {"value": 1 + deviations["signed_error"], "condition": deviations["predictor"]}
    yield _of(deviations.assign(**values), PREDICTED, "value")
    yield _micro_batches()
    yield _of(drawing.choices().assign(strategy=RECOMMENDED), EXTRA, "extra_time")
    yield _throughputs()
    yield _iterations()


def _of(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    named = rows.rename(columns={column: "published"}).assign(quantity=quantity)
    return named if "condition" in named else named.assign(condition="")


def _micro_batches() -> pd.DataFrame:
    rows = drawing.micro_batches()
    images = rows["dataset"].map(lambda name: DATASETS[name].num_train)
    return _of(
        rows.assign(
            strategy="gpipe",
            rate=images / rows["epoch_s"],
            condition=[
                micro_batches_text(chunks, size)
                for chunks, size in zip(rows["chunks"], rows["micro_batch"], strict=True)
            ],
        ),
        RATE,
        "rate",
    )


def micro_batches_text(chunks: float, size: float) -> str:
    """How a batch is cut, as a condition."""
    return f"{chunks:g} micro-batches of {size:g}"


def _throughputs() -> pd.DataFrame:
    rows = drawing.throughputs()
    links = zip(
        rows["batch_size"], rows["latency_ms"], rows["bandwidth_mbit_per_s"], rows["loss_percent"],
        strict=True,
    )  # fmt: skip
    made = _of(
        rows.drop(columns="quantity").assign(
            strategy="parameter-server", condition=[link_text(*link) for link in links]
        ),
        RATE,
        "samples_per_s",
    )
    whole = made["rate_of"] == "all workers"
    return made.assign(quantity=made["quantity"].where(whole, f"{RATE} of one worker"))


def link_text(batch: float, latency_ms: float, mbit_per_s: float, loss_percent: float) -> str:
    """Batch and links, as a condition."""
    return f"batch {batch:g}, {latency_ms:g} ms, {mbit_per_s:g} Mbit/s, {loss_percent:g} % loss"


def _iterations() -> pd.DataFrame:
    rows = reliable_rows(PUBLISHED_MEASURED, "report")
    devices = rows["gpus"].astype(int)
    per_node = devices.clip(upper=_ABCI_DEVICES)
    return _of(
        rows.assign(
            dataset=rows["dataset"].str.lower(),
            network=rows["model"],
            strategy=rows["strategy"].replace(_PARADL_STRATEGIES),
            geometry=(devices // per_node).astype(str) + "x" + per_node.astype(str),
            condition=[f"batch {batch:g}" for batch in rows["batch_global"]],
            figure="paradl/fig1",
            where="Fig. 1",
            how=rows["note"].fillna(""),
        ),
        STEP,
        "seconds_per_iteration",
    )


COLUMNS = (
    "figure", "dataset", "network", "strategy", "devices", "published", "measured", "ratio", "bed",
    "repeats", "quantity", "condition", "setting", "where", "remark",
)  # fmt: skip
"""Of the table. ``condition`` is what both have in common beside the columns before, ``setting``
what is known of ours alone; ``repeats`` counts runs of ours."""
_OURS = [*KEYS, "measured", "bed", "repeats", "setting", "status"]
_DIGITS = "%.4g"
_GUESSED = "not named"
_TWO = "Horovod or GPipe"  # how the kind of such cases of Table 8.1 ends


def bed_of(device_kind: str, processors: str) -> str:
    """What cells were measured on, in the words of claims; their own where those know none."""
    device = device_of([processors, device_kind])
    return device_kind if device is None else device.bed


def compared(
    file: PaperFile, results: Sequence[FigureResults], printed: pd.DataFrame
) -> pd.DataFrame:
    """The printed values of a figure beside those that these folders hold: :data:`COLUMNS`.

    Args:
        file: of the figure.
        results: folders of ours.
        printed: of :func:`~ddlbench.report.comparison.printed_values`.
    """
    theirs = drawing.chosen(printed, file.paper)
    frames = [
        read(one, name)
        for one in results
        for name in file.paper.draws
        for drawn, read in _READERS
        if name.startswith(drawn)
    ]
    filled = [frame for frame in frames if len(frame)]
    ours = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=_OURS)
    both = theirs.merge(ours, on=KEYS, how="outer", sort=False)
    return _finished(both, file.paper.figure)


def _finished(both: pd.DataFrame, figure: str) -> pd.DataFrame:
    theirs, measured = (
        pd.to_numeric(both[name], errors="coerce") for name in ("published", "measured")
    )
    # Where the print leaves open what a number is of, whoever read it has guessed.
    named = ~both["how"].fillna("").str.contains(_GUESSED, regex=False)
    comparable = (theirs > 0) & (measured > 0) & (both["quantity"] != EXTRA) & named
    made = both.assign(
        figure=figure,
        published=theirs,
        measured=measured,
        ratio=(measured / theirs).where(comparable),
        devices=[_devices(str(geometry)) for geometry in both["geometry"]],
        remark=[_remark(row) for row in both.to_dict("records")],
    )
    return made.assign(alone=made["ratio"].isna()).sort_values("alone", kind="stable")[
        list(COLUMNS)
    ]


def _devices(geometry: str) -> int:
    return math.prod(parse_geometry(geometry, "a table of docs/papers"))


def _remark(row: dict[Any, Any]) -> str:
    remarks = []
    if not pd.isna(row["where"]):
        remarks.append(str(row["how"]))
        if pd.isna(row["published"]):
            remarks.append("failed there")
    status = row["status"]
    if not pd.isna(status) and status != Status.OK:
        remarks.append(f"{status} here")
    return "; ".join(filter(None, remarks))


def comparison(files: Iterable[PaperFile] | None = None) -> pd.DataFrame:
    """Every figure's printed values beside what the repository keeps of it."""
    printed = printed_values()
    frames = [
        compared(file, [kept_results(file)], printed)
        for file in (read_papers() if files is None else files)
    ]
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(COLUMNS))


def comparison_csv() -> str:
    """docs/papers/comparison.csv."""
    table = comparison()
    numbers = {name: table[name].map(_number) for name in ("published", "measured", "ratio")}
    return table_text(table.assign(repeats=table["repeats"].map(_number), **numbers))


def comparison_markdown() -> str:
    """docs/papers.md's table: the values that have a partner, and how many have none."""
    table = comparison()
    pairs = table[table["ratio"].notna()]
    names = [*COLUMNS[:10], "quantity"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    rows: dict[str, list[str]] = {}
    for row in pairs.to_dict("records"):
        rows.setdefault(" | ".join(_text(row[name]) for name in names[1:]), []).append(
            str(row["figure"])
        )
    lines += [f"| {', '.join(figures)} | {rest} |" for rest, figures in rows.items()]
    alone = table[table["ratio"].isna()]
    unmeasured = int((alone["published"].notna() & alone["measured"].isna()).sum())
    unprinted = int((alone["published"].isna() & alone["measured"].notna()).sum())
    summary = (
        f"{len(rows)} pairs. In the table of all figures {unmeasured} printed values have no cell "
        f"of the same dataset, network, strategy and devices here, and {unprinted} of our values "
        "are not printed, or not digitised."
    )
    return "\n".join([*lines, "", summary])


def _text(value: Any) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return "" if pd.isna(value) else _DIGITS % value


# What the repository or a site holds of a figure, by what the figure draws.


def _cells(results: FigureResults) -> pd.DataFrame:
    """The configurations of a folder, with what every reader needs."""
    rows = results.configurations
    beds = zip(rows["device_kind"], rows["processors"], strict=True)
    made = rows.assign(bed=[bed_of(*both) for both in beds], repeats=rows["n"])
    return made.assign(setting=_settings(made))


def _settings(rows: pd.DataFrame) -> list[str]:
    parts = zip(rows["batch_size"], variant_labels(rows), rows["fabric"], rows["site"], strict=True)
    several = rows["site"].nunique() > 1
    return [
        ", ".join(
            filter(
                None,
                [
                    f"batch {batch:g}",
                    variant,
                    "" if fabric in ("", "default") or fabric in variant else f"fabric {fabric}",
                    f"site {site}" if several else "",
                ],
            )
        )
        for batch, variant, fabric, site in parts
    ]


def _ours(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    made = rows.assign(quantity=quantity, measured=rows[column])
    if "condition" not in made:
        made = made.assign(condition="")
    return made[_OURS]


def _speedups(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    return _ours(rows[rows["strategy"] != BASE], SPEEDUP, "speedup")


def _rates(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    rows = rows[rows["strategy"] != BASE]
    links = zip(
        rows["batch_size"], rows["link_latency_s"] * 1e3, rows["link_bits_per_s"] / 1e6,
        rows["link_loss"] * 100, strict=True,
    )  # fmt: skip
    return _ours(rows.assign(condition=[link_text(*link) for link in links]), RATE, "samples_per_s")


def _steps(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    conditions = [f"batch {batch:g}" for batch in rows["batch_size"]]
    return _ours(rows.assign(condition=conditions), STEP, "step_median_s")


_CASE = ("dataset", "network")
_CUT = ("chunks", "micro_batch", "batch_size")


def _deviations(results: FigureResults, name: str) -> pd.DataFrame:
    needed = (*_CASE, "strategy", "geometry", "predictor", "signed_error")
    rows = _measured(results, name, needed)
    return _ours(
        rows.assign(condition=rows["predictor"], value=1 + rows["signed_error"]), PREDICTED, "value"
    )


def _compared_micro_batches(results: FigureResults, name: str) -> pd.DataFrame:
    """Rates of the emulated GPUs: measured ones are those of GPUs that were slowed down."""
    needed = (*_CASE, "strategy", "geometry", *_CUT, "measured_samples_per_s")
    rows = _measured(results, name, needed).drop_duplicates([*_CASE, *_CUT])
    factors = {_slow_down(str(site)) for site in results.configurations["site"]}
    if len(factors) == 1:
        rows["measured_samples_per_s"] *= factors.pop()
    sizes = zip(rows["chunks"], rows["micro_batch"], strict=True)
    conditions = [micro_batches_text(*both) for both in sizes]
    return _ours(rows.assign(condition=conditions), RATE, "measured_samples_per_s")


def _slow_down(site: str) -> float:
    """By which a site slows its emulated devices down; 1 of real ones, and of a site elsewhere."""
    try:
        accelerator = load_site(site).accelerator
    except ConfigError:
        return 1.0
    return accelerator.slow_down if accelerator is not None else 1.0


def _choices(results: FigureResults, name: str) -> pd.DataFrame:
    """The thesis' recommender among its two candidates; each epoch at its own batch."""
    needed = (*_CASE, "nodes", "devices_per_node", "recommender", "kind", "extra_time")
    rows = _measured(results, name, needed)
    own = (rows["recommender"] == "thesis") & rows["kind"].astype(str).str.endswith(_TWO)
    rows = rows[own]
    geometry = rows["nodes"].astype(str) + "x" + rows["devices_per_node"].astype(str)
    return _ours(rows.assign(strategy=RECOMMENDED, geometry=geometry), EXTRA, "extra_time")


def _measured(results: FigureResults, name: str, needed: Sequence[str]) -> pd.DataFrame:
    """Our rows of a figure's table, with the bed and the fewest repeats of its cells.

    Raises:
        ConfigError: the table cannot be read, or lacks a column.
    """
    rows = results.table(name)
    if rows is None:
        return pd.DataFrame(columns=[*dict.fromkeys([*needed, *_OURS])])
    if missing := [column for column in needed if column not in rows]:
        raise ConfigError(
            f"{results.folder}: {name}.csv has no column {missing[0]!r}; draw its figure anew"
        )
    if "source" in rows:
        rows = rows[rows["source"] == "measured here"]
    cells = _cells(results)
    made = {"bed": ", ".join(dict.fromkeys(cells["bed"])), "repeats": cells["repeats"].min()}
    made["setting"] = [f"batch {batch:g}" for batch in rows.get("batch_size", ())] or ""
    marks = rows["mark"].astype(object).fillna("") if "mark" in rows else ""
    rows = rows.assign(**{key: value for key, value in made.items() if key not in rows})
    rows = rows.assign(status=marks)
    return rows.assign(status=rows["status"].replace("", Status.OK.value))


_READERS: tuple[tuple[str, Callable[[FigureResults, str], pd.DataFrame]], ...] = (
    ("speedup", _speedups),
    ("scaling", _speedups),
    ("sites", _speedups),
    ("latency", _rates),
    ("bandwidth", _rates),
    ("packet_loss", _rates),
    ("oracle", _steps),
    ("deviation_", _deviations),
    ("table_6_1", _compared_micro_batches),
    ("table_8_1_published", _choices),
)
"""How the name of a drawn figure or table begins, and how to read it."""
