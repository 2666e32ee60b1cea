"""Every number that the four sources print and this repository has digitised, in one table.

::

    thesis2020/speedups.csv       Fig. 3.1, 3.2          speed-up
              /deviations.csv     Fig. 4.1 to 6.2        predicted / measured
              /micro_batches.csv  Table 6.1              images/s
              /choices.csv        Table 8.1              extra time of a choice
    cheng/throughput.csv          Fig. 3, 5, 7           images/s
    paradl/published/measured.csv Fig. 1                 seconds a step

A value belongs to the figure that prints it (``paper``, ``place``) and to no other one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, reliable_rows
from ddlbench.report import published

SPEEDUP = "speed-up"
PREDICTED = "predicted / measured"
RATE = "images/s"
STEP = "seconds a step"
EXTRA = "extra time of the recommended strategy"
RECOMMENDED = "recommended"  # in place of a strategy, where each case has another one

KEYS = ["quantity", "dataset", "network", "strategy", "geometry", "condition"]
"""What a printed and a measured value share if they are of the same thing."""
COLUMNS = ["paper", "place", *KEYS, "published", "where", "how"]

DDLBENCH, THESIS, NETWORKING, PARADL = PAPERS = (
    "DDLBench", "thesis", "networking study", "ParaDL",
)  # fmt: skip
_PARADL_STRATEGIES = {"data": "ddp", "data+filter": "data-filter", "data+spatial": "data-spatial"}
_ABCI_DEVICES = 4  # a node
_PLACE = re.compile(r"(Fig|Table)s?\.? ?(\d+(?:\.\d+)?|[IVX]+\b)")


def places_in(text: str) -> list[str]:
    """The figures and tables that a text names, without the letters of panels.

    ``Sec. 4.2 (Fig. 3.1a)`` gives ``Fig. 3.1``.
    """
    return [f"{kind}{'.' * (kind == 'Fig')} {number}" for kind, number in _PLACE.findall(text)]


def places_of(source: str) -> set[tuple[str, str]]:
    """Paper and place of each figure in a text as ``DDLBench, Fig. 4; thesis, Fig. 3.1``."""
    parts = re.sub(r"\([^)]*\)", "", source).split(";")
    return {(part.partition(",")[0].strip(), place) for part in parts for place in places_in(part)}


def printed_values() -> pd.DataFrame:
    """One row a printed value: :data:`COLUMNS`; ``published`` is NaN where the run failed there."""
    parts = [
        part.assign(
            paper=[_paper(where, paper) for where in part["where"]],
            # A value that the text gives without its figure belongs to none.
            place=[next(iter(places_in(where)), "") for where in part["where"]],
        )
        for paper, part in _parts()
    ]
    return pd.concat([part[COLUMNS] for part in parts], ignore_index=True)


def _paper(where: str, usual: str) -> str:
    """The paper that a place names, or that of its table."""
    return next((paper for paper in PAPERS if where.startswith(paper)), usual)


def _parts() -> Iterator[tuple[str, pd.DataFrame]]:
    yield THESIS, _of(published.speedups(), SPEEDUP, "speedup")
    deviations = published.all_deviations()
    yield (
        THESIS,
        _of(
            deviations.assign(
                value=1 + deviations["signed_error"], condition=deviations["predictor"]
            ),
            PREDICTED,
            "value",
        ),
    )
    yield THESIS, _micro_batches()
    yield THESIS, _of(published.choices().assign(strategy=RECOMMENDED), EXTRA, "extra_time")
    yield NETWORKING, _throughputs()
    yield PARADL, _iterations()


def _of(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    named = rows.rename(columns={column: "published"}).assign(quantity=quantity)
    return named if "condition" in named else named.assign(condition="")


def _micro_batches() -> pd.DataFrame:
    rows = published.micro_batches()
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
    rows = published.throughputs()
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
            where="Fig. 1",
            how=rows["note"].fillna(""),
        ),
        STEP,
        "seconds_per_iteration",
    )
