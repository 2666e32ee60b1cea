"""Numbers printed in the papers, to draw and to list beside ours; they are of other hardware.

M. Jansen, thesis on a performance-based recommender, 2020; Cheng, Liu, Kurihana, "Performance
Evaluation of Distributed Deep Learning: A Networking Perspective". Each row of ``thesis2020/*.csv``
and ``cheng/*.csv`` names the ``figure`` or table of config/papers that it was printed in, its panel
or section (``where``), ``how`` the number was read, and, in the thesis, its ``hardware``.

Beside the cells of a published figure stand the values of the prints that its file names
(``paper.published``), and no others: a speed-up on four GPUs is printed in Figures 3.1 and 3.2, a
deviation in 5.1 and 5.2. An experiment that is of no figure takes those of any.

One table has every number that the four sources print and this repository has digitised::

    thesis2020/speedups.csv       Fig. 3.1, 3.2          speed-up
              /deviations.csv     Fig. 4.1 to 6.2        predicted / measured
              /micro_batches.csv  Table 6.1              images/s
              /choices.csv        Table 8.1              extra time of a choice
    cheng/throughput.csv          Fig. 3, 5, 7           images/s
    paradl/published/measured.csv Fig. 1                 seconds a step

A value belongs to the ``figure`` of config/papers that prints it, and to no other one.

Tables of the papers that are no measurements have each printed value beside ours::

    config/papers/ddlbench/table1.csv          of, quantity, printed, note
                |                               mnist, images, 70000,
                '-- ours by paper.table: "datasets" -->  of, quantity, printed, here, note

What is ours is looked up in the code or counted from its tables; nothing of it is typed in.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest, read_yaml
from ddlbench.experiment.config import Paper, parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.planning.block_costs import BlockCost, block_costs
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import FLOAT32_BYTES
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, reliable_rows
from ddlbench.report.labels import printed_name
from ddlbench.report.tables import rows_of

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
CITATION = "Jansen 2020"
SOURCE = ("source", "figure", "where", "hardware")
"""Columns of a table that holds printed values below ours."""


def chosen(rows: pd.DataFrame, paper: Paper | None) -> pd.DataFrame:
    """The rows of published values that may stand beside the cells of a paper's figure."""
    return rows if paper is None else rows[rows["figure"].isin(paper.published)]


def is_of(paper: Paper | None, figure: str) -> bool:
    """Whether the values of a print may stand beside the cells of a paper's figure."""
    return paper is None or figure in paper.published


def below(ours: pd.DataFrame, printed: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A figure's table: our rows, then the printed ones."""
    rows = ours.assign(source="measured here", figure="", where="", hardware="")
    if len(printed):
        rows = pd.concat([rows, printed.assign(source=CITATION)], ignore_index=True)
    return rows[columns]


def deviations(strategy: str, predictor: str, geometry: str, paper: Paper | None) -> pd.DataFrame:
    """Signed errors of one predictor (Figures 4.1, 5.1, 5.2 and 6.2).

    Where a predictor is printed for a single geometry, its errors stand for any.

    Returns:
        ``network``, ``dataset``, ``geometry``, ``signed_error`` (predicted over measured, less 1),
        ``figure``, ``where``, ``hardware``, ``how``; empty if no such figure is chosen.
    """
    rows = chosen(all_deviations(), paper)
    rows = rows[(rows["strategy"] == strategy) & (rows["predictor"] == predictor)]
    if rows["geometry"].nunique() > 1:
        rows = rows[rows["geometry"] == geometry]
    # Figure 5.2 shows 4 GPUs a second time; the first is the figure of that geometry.
    return rows.drop_duplicates(["network", "dataset"]).reset_index(drop=True)


def all_deviations() -> pd.DataFrame:
    """Figures 4.1, 5.1, 5.2 and 6.2: signed errors of every predictor."""
    return _rows("deviations")


def micro_batches() -> pd.DataFrame:
    """Table 6.1: epochs of torchgpipe at five pairs of micro-batch and number of them."""
    return _rows("micro_batches")


def choices() -> pd.DataFrame:
    """Table 8.1: recommended, fastest, and the extra time of a wrong choice as a share."""
    return _rows("choices")


def speedups() -> pd.DataFrame:
    """Figures 3.1 and 3.2: speed-up over one GPU; NaN for runs that failed."""
    return _rows("speedups")


def throughputs() -> pd.DataFrame:
    """The networking study's images a second, with the batch and the links of each.

    ``figure`` is empty where the text names no figure for a number.
    """
    return _rows("throughput", "cheng").fillna({"figure": ""})


def loss_shares() -> pd.DataFrame:
    """The networking study's shares of the throughput without loss."""
    return _rows("loss", "cheng")


def speedups_of(shown: pd.DataFrame, paper: Paper | None, figure: str) -> pd.DataFrame:
    """The printed speed-ups of cells of ours: same strategy, network, dataset and geometry.

    Args:
        shown: our cells.
        paper: that they are of; None if of no published figure.
        figure: whose value stands first, where two figures show one bar.

    Returns:
        as :func:`speedups`, with ``workers``.
    """
    keys = ["strategy", "network", "dataset", "geometry"]
    printed = chosen(speedups().dropna(subset="speedup"), paper)
    printed = printed.sort_values("figure", key=lambda names: names != figure, kind="stable")
    printed = printed.drop_duplicates(keys).merge(shown[keys].drop_duplicates(), on=keys)
    return printed.assign(
        workers=[math.prod(map(int, str(name).split("x"))) for name in printed["geometry"]]
    )


def label(printed: pd.DataFrame, paper: Paper | None) -> str:
    """The paper, its figures and its hardware.

    Where values were read off another figure that shows the same, both figures are named.
    """
    places = ", ".join(dict.fromkeys(printed["where"]))
    hardware = ", ".join(dict.fromkeys(printed["hardware"]))
    source = f"{CITATION}, {places}"
    if paper is not None and paper.figure not in set(printed["figure"]):
        source = f"{printed_name(paper.figure)}, read off {source}"
    return f"{source} ({hardware})"


def _rows(name: str, folder: str = "thesis2020") -> pd.DataFrame:
    text = files("ddlbench.report").joinpath(folder, f"{name}.csv").read_text("utf-8")
    return pd.read_csv(io.StringIO(text))


def printed_values() -> pd.DataFrame:
    """A row per printed value; ``published`` is NaN where the run failed there."""
    return pd.concat([part[PRINTED_COLUMNS] for part in _parts()], ignore_index=True)


def _parts() -> Iterator[pd.DataFrame]:
    yield _printed(speedups(), SPEEDUP, "speedup")
    deviations = all_deviations()
    values = {"value": 1 + deviations["signed_error"], "condition": deviations["predictor"]}
    yield _printed(deviations.assign(**values), PREDICTED, "value")
    yield _micro_batches()
    yield _printed(choices().assign(strategy=RECOMMENDED), EXTRA, "extra_time")
    yield _throughputs()
    yield _iterations()


def _printed(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    """Rows of a quantity, whose printed values are in ``column``."""
    named = rows.rename(columns={column: "published"}).assign(quantity=quantity)
    return named if "condition" in named else named.assign(condition="")


def _micro_batches() -> pd.DataFrame:
    rows = micro_batches()
    images = rows["dataset"].map(lambda name: DATASETS[name].num_train)
    return _printed(
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
    rows = throughputs()
    links = zip(
        rows["batch_size"], rows["latency_ms"], rows["bandwidth_mbit_per_s"], rows["loss_percent"],
        strict=True,
    )  # fmt: skip
    printed = _printed(
        rows.drop(columns="quantity").assign(
            strategy="parameter-server", condition=[link_text(*link) for link in links]
        ),
        RATE,
        "samples_per_s",
    )
    whole = printed["rate_of"] == "all workers"
    return printed.assign(quantity=printed["quantity"].where(whole, f"{RATE} of one worker"))


def link_text(batch: float, latency_ms: float, mbit_per_s: float, loss_percent: float) -> str:
    """Batch and links, as a condition."""
    return f"batch {batch:g}, {latency_ms:g} ms, {mbit_per_s:g} Mbit/s, {loss_percent:g} % loss"


def _iterations() -> pd.DataFrame:
    rows = reliable_rows(PUBLISHED_MEASURED, "report")
    devices = rows["gpus"].astype(int)
    per_node = devices.clip(upper=_ABCI_DEVICES)
    return _printed(
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


TABLE_COLUMNS = ["of", "quantity", "printed", "here", "note"]


def printed_table(kind: str, path: Path) -> pd.DataFrame:
    """A printed table with ours beside it.

    Args:
        kind: a key of :data:`PRINTED_TABLES`.
        path: the CSV file of its printed values.

    Raises:
        ConfigError: there is no such kind, or the file is missing or wrong.
    """
    if kind not in PRINTED_TABLES:
        raise ConfigError(f"{path}: paper.table is {kind!r}; {nearest(kind, PRINTED_TABLES)}")
    columns = [name for name in TABLE_COLUMNS if name != "here"]
    try:
        printed = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read: {why}; write {', '.join(columns)}") from None
    if (headings := list(map(str, printed))) != columns:
        raise ConfigError(
            f"{path} has the columns {', '.join(headings)}; write {', '.join(columns)}"
        )
    ours = PRINTED_TABLES[kind]
    try:
        here = [ours(row.of, row.quantity) for row in rows_of(printed)]
    except (KeyError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {kind} here do not have {error}; correct of or quantity"
        ) from None
    return printed.assign(here=here)[TABLE_COLUMNS]


def _datasets(name: str, quantity: str) -> str:
    spec = DATASETS[name]
    return {
        "classes": f"{spec.num_classes}",
        "images": f"{spec.num_train + spec.num_val}",
        "training images": f"{spec.num_train}",
        "pixels": f"{spec.height} x {spec.width}",
        "channels": f"{spec.channels}",
    }[quantity]


@cache
def _cells_of_ddlbench() -> dict[tuple[str, str], MatrixRow]:
    """Cells of config/experiments/ddlbench.yaml on one node, by dataset and strategy."""
    path = project_root() / "config" / "experiments" / "ddlbench.yaml"
    site = load_site("slurm-example", as_example=True)
    config = {**read_yaml(path), "site": site.name}
    return {
        (row.cell.dataset, row.cell.strategy): row
        for row in expand(parse_experiment(config, str(path)), site)
        if row.cell.geometry in ("1x1", "1x4")
    }


def _batches(dataset: str, strategy: str) -> str:
    row = _cells_of_ddlbench()[dataset, strategy]
    cell = row.cell
    if row.strategy.family in ("baseline", "data parallel"):
        return f"{cell.batch_size // cell.devices}"
    chunks = cell.option("chunks")
    return f"{cell.batch_size} ({chunks})" if chunks else f"{cell.batch_size}"


def _strategies(library: str, _: str) -> str:
    """Which of our strategies stand for a published library, and the family of each."""
    of = {
        "PipeDream": ("pipedream", "model-parallel-p2p"),
        "GPipe": ("gpipe", "model-parallel"),
        "Horovod": ("horovod",),
        "torch.distributed": ("ddp", "pipe-gpipe"),
        "tf.distribute": (),
        "Mesh TensorFlow": (),
    }
    return ", ".join(f"{name} ({strategy_of(name).family})" for name in of[library]) or "none"


def _networks(of: str, quantity: str) -> str:
    """Layers counted from the table of blocks, which is made of the networks themselves."""
    network, _, dataset = of.partition(" on ")
    blocks = block_costs(network, dataset)
    if blocks is None:
        raise KeyError(of)
    return {
        "side of the first kernel": _first_kernel,
        "stride of the first convolution": _first_stride,
        "fully connected layers": _fully_connected,
        "halvings by pooling": _halvings,
    }[quantity](blocks, dataset)


def _first_kernel(blocks: tuple[BlockCost, ...], dataset: str) -> str:
    # The batch norm after the first convolution has a weight and a bias for each channel.
    channels = blocks[1].parameter_bytes // (2 * FLOAT32_BYTES)
    weights = blocks[0].parameter_bytes / FLOAT32_BYTES
    per_channel = weights / (channels * DATASETS[dataset].channels)
    return f"{math.isqrt(round(per_channel))}"


def _first_stride(blocks: tuple[BlockCost, ...], dataset: str) -> str:
    """By the pixels of the output of the first block, whose widths are 32 in MobileNet v2."""
    pixels = blocks[0].output_bytes / FLOAT32_BYTES / 32
    return f"{round(math.sqrt(DATASETS[dataset].height * DATASETS[dataset].width / pixels))}"


def _fully_connected(blocks: tuple[BlockCost, ...], _: str) -> str:
    """Blocks with as many weights as products of their inputs and outputs, and a bias each."""
    count = 0
    for before, block in itertools.pairwise(blocks):
        inputs, outputs = (layer.output_bytes // FLOAT32_BYTES for layer in (before, block))
        count += block.parameter_bytes == FLOAT32_BYTES * (inputs + 1) * outputs
    return f"{count}"


def _halvings(blocks: tuple[BlockCost, ...], _: str) -> str:
    """Blocks without weights that halve both sides: of 2 to 1 at least, of 3 to 1 at most."""
    pairs = itertools.pairwise(blocks)
    shares = [before.output_bytes / b.output_bytes for before, b in pairs if not b.parameter_bytes]
    return f"{sum(2 * 2 <= share <= 3 * 3 for share in shares)}"


PRINTED_TABLES: dict[str, Callable[[str, str], str]] = {
    "datasets": _datasets,
    "batches": _batches,
    "strategies": _strategies,
    "networks": _networks,
}
