"""Tables of the papers that are no measurements: each printed value beside ours.

::

    config/papers/ddlbench/table1.csv          of, quantity, printed, note
                |                               mnist, images, 70000,
                '-- ours by paper.table: "datasets" -->  of, quantity, printed, here, note

What is ours is looked up in the code or counted from its tables; nothing of it is typed in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest, read_yaml
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.planning.network_tables import BlockCost, block_costs
from ddlbench.planning.strategy import strategy_of
from ddlbench.report.tables import rows_of

COLUMNS = ["of", "quantity", "printed", "here", "note"]
_FLOAT32_BYTES = 4

Ours = Callable[[str, str], str]


def printed_table(kind: str, path: Path) -> pd.DataFrame:
    """A printed table with ours beside it.

    Args:
        kind: a key of :data:`KINDS`.
        path: the CSV file of its printed values.

    Raises:
        ConfigError: there is no such kind, or the file is missing or wrong.
    """
    if kind not in KINDS:
        raise ConfigError(f"{path}: paper.table is {kind!r}; {nearest(kind, KINDS)}")
    columns = [name for name in COLUMNS if name != "here"]
    try:
        printed = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {why}; write {', '.join(columns)}") from None
    if (headings := list(map(str, printed))) != columns:
        raise ConfigError(
            f"{path}: has the columns {', '.join(headings)}; write {', '.join(columns)}"
        )
    ours = KINDS[kind]()
    try:
        here = [ours(row.of, row.quantity) for row in rows_of(printed)]
    except (KeyError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {kind} here do not have {error}; correct of or quantity"
        ) from None
    return printed.assign(here=here)[COLUMNS]


def _datasets() -> Ours:
    def ours(name: str, quantity: str) -> str:
        spec = DATASETS[name]
        return {
            "classes": f"{spec.num_classes}",
            "images": f"{spec.num_train + spec.num_val}",
            "training images": f"{spec.num_train}",
            "pixels": f"{spec.height} x {spec.width}",
            "channels": f"{spec.channels}",
        }[quantity]

    return ours


def _batches() -> Ours:
    """The batches of config/experiments/ddlbench.yaml on four devices of one node."""
    path = project_root() / "config" / "experiments" / "ddlbench.yaml"
    site = load_site("slurm-example", as_example=True)
    config = {**read_yaml(path), "site": site.name}
    rows = {
        (row.cell.dataset, row.cell.strategy): row
        for row in expand(parse_experiment(config, str(path)), site)
        if row.cell.geometry in ("1x1", "1x4")
    }

    def ours(dataset: str, strategy: str) -> str:
        cell = rows[dataset, strategy].cell
        if rows[dataset, strategy].strategy.family in ("baseline", "data parallel"):
            return f"{cell.batch_size // cell.devices}"
        chunks = cell.option("chunks")
        return f"{cell.batch_size} ({chunks})" if chunks else f"{cell.batch_size}"

    return ours


def _strategies() -> Ours:
    """Which of our strategies stand for a published library, and the family of each."""
    of = {
        "PipeDream": ("pipedream", "model-parallel-p2p"),
        "GPipe": ("gpipe", "model-parallel"),
        "Horovod": ("horovod",),
        "torch.distributed": ("ddp", "pipe-gpipe"),
        "tf.distribute": (),
        "Mesh TensorFlow": (),
    }

    def ours(library: str, _: str) -> str:
        named = [f"{name} ({strategy_of(name).family})" for name in of[library]]
        return ", ".join(named) or "none"

    return ours


def _networks() -> Ours:
    """Layers counted from the table of blocks, which is made of the networks themselves."""

    def ours(of: str, quantity: str) -> str:
        network, dataset = of.split(" on ")
        if network not in NETWORKS or dataset not in DATASETS:
            raise KeyError(of)
        blocks = block_costs(network, dataset)
        if blocks is None:
            raise KeyError(of)
        return {
            "side of the first kernel": _first_kernel,
            "stride of the first convolution": _first_stride,
            "fully connected layers": _fully_connected,
            "halvings by pooling": _halvings,
        }[quantity](blocks, dataset)

    return ours


def _first_kernel(blocks: tuple[BlockCost, ...], dataset: str) -> str:
    # The batch norm after the first convolution has a weight and a bias for each channel.
    channels = blocks[1].parameter_bytes // (2 * _FLOAT32_BYTES)
    weights = blocks[0].parameter_bytes / _FLOAT32_BYTES
    per_channel = weights / (channels * DATASETS[dataset].channels)
    return f"{math.isqrt(round(per_channel))}"


def _first_stride(blocks: tuple[BlockCost, ...], dataset: str) -> str:
    """By the pixels of the output of the first block, whose widths are 32 in MobileNet v2."""
    pixels = blocks[0].output_bytes / _FLOAT32_BYTES / 32
    return f"{round(math.sqrt(DATASETS[dataset].height * DATASETS[dataset].width / pixels))}"


def _fully_connected(blocks: tuple[BlockCost, ...], _: str) -> str:
    """Blocks with as many weights as products of their inputs and outputs, and a bias each."""
    count = 0
    for before, block in itertools.pairwise(blocks):
        inputs, outputs = (layer.output_bytes // _FLOAT32_BYTES for layer in (before, block))
        count += block.parameter_bytes == _FLOAT32_BYTES * (inputs + 1) * outputs
    return f"{count}"


def _halvings(blocks: tuple[BlockCost, ...], _: str) -> str:
    """Blocks without weights that halve both sides: of 2 to 1 at least, of 3 to 1 at most."""
    pairs = itertools.pairwise(blocks)
    shares = [before.output_bytes / b.output_bytes for before, b in pairs if not b.parameter_bytes]
    return f"{sum(2 * 2 <= share <= 3 * 3 for share in shares)}"


KINDS: dict[str, Callable[[], Ours]] = {
    "datasets": _datasets,
    "batches": _batches,
    "strategies": _strategies,
    "networks": _networks,
}
