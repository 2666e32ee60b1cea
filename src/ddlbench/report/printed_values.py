"""Every number that the four sources print and this repository has digitised, in one table.

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
COLUMNS = ["figure", *KEYS, "published", "where", "how"]

_PARADL_STRATEGIES = {"data": "ddp", "data+filter": "data-filter", "data+spatial": "data-spatial"}
_ABCI_DEVICES = 4  # a node


def printed_values() -> pd.DataFrame:
    """One row a printed value: :data:`COLUMNS`; ``published`` is NaN where the run failed there."""
    return pd.concat([part[COLUMNS] for part in _parts()], ignore_index=True)


def _parts() -> Iterator[pd.DataFrame]:
    yield _of(published.speedups(), SPEEDUP, "speedup")
    deviations = published.all_deviations()
    values = {"value": 1 + deviations["signed_error"], "condition": deviations["predictor"]}
    yield _of(deviations.assign(**values), PREDICTED, "value")
    yield _micro_batches()
    yield _of(published.choices().assign(strategy=RECOMMENDED), EXTRA, "extra_time")
    yield _throughputs()
    yield _iterations()


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
            figure="paradl/fig1",
            where="Fig. 1",
            how=rows["note"].fillna(""),
        ),
        STEP,
        "seconds_per_iteration",
    )
