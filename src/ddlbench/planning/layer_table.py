"""What the blocks of a network compute, move and keep, without torch.

``layer_table.csv`` holds those of the built-in networks: one row per operation of a block, or
several equal ones (``times``). Operations and items are of one sample's forward pass, items of the
tensors that pass (not of weights). Tensors (bytes of each weight), buffers, output and saved bytes
are of the block, in its first row, as float32; saved bytes are what autograd keeps of one sample.
Those of half precision are what autocast leaves of output and saved bytes on a GPU: more than half
where norms read float32, or indices are kept.

======================= ==========================================================================
kind                    operation
======================= ==========================================================================
first                   convolution that reads an image (up to 4 channels)
pointwise, spatial      convolution of 1 x 1; of a larger window
depthwise               convolution of a channel a group
linear                  product of activations and weights
attention               product of activations and activations
norm                    batch norm, layer norm, group norm
elementwise             all else that moves memory: activations, pools, sums, copies
none                    the block computes nothing
======================= ==========================================================================

Another network is traced by torch in a process of its own
(:mod:`ddlbench.networks.operations`). Its table is kept beside the results until its files, its
library or its dataset change.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.statistics import grouped
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.tried_networks import key_of

LAYER_COLUMNS = (
    "network", "dataset", "block", "kind", "operations", "read_items", "written_items", "weights",
    "times", "tensor_bytes", "buffer_bytes", "output_bytes", "saved_bytes",
    "half_output_bytes", "half_saved_bytes",
)  # fmt: skip
KINDS = ("first", "pointwise", "spatial", "depthwise", "linear", "attention", "norm", "elementwise")
_FILE = Path(__file__).with_name("layer_table.csv")
_COUNTER = Path(__file__).parents[1] / "networks" / "operations.py"
_TRACED_S = 300
REFUSED = 3
"""Exit status where the network is none that could be built; the last line says why."""
PROFILE_IT = "measure its profile on a device (ddlbench site accelerator), and give --profile"
COUNTED = RESULTS / ".networks-counted"


@dataclass(frozen=True)
class Operation:
    """Equal operations of a block, forward, of one sample.

    Args:
        kind: one of :data:`KINDS`.
        operations: of floating point, two a multiplication with its sum.
        read_items, written_items: of the tensors that pass.
        weights: values of the weights that it reads.
        times: how many of them there are.
    """

    kind: str
    operations: int
    read_items: int
    written_items: int
    weights: int
    times: int


@dataclass(frozen=True)
class LayerBlock:
    """A block and its operations; bytes as float32.

    Args:
        name: in the network.
        operations: in forward order, equal ones together.
        tensor_bytes: of each of its weights.
        buffer_bytes: of statistics and the like.
        output_bytes: of one sample.
        saved_bytes: that autograd keeps of one sample.
        half_output_bytes, half_saved_bytes: the same two in autocast to 16 bits.
    """

    name: str
    operations: tuple[Operation, ...]
    tensor_bytes: tuple[int, ...]
    buffer_bytes: int
    output_bytes: int
    saved_bytes: int
    half_output_bytes: int
    half_saved_bytes: int


def layers_of(network: str, dataset: str) -> tuple[LayerBlock, ...]:
    """The blocks of a network, in order; one that is not built in is traced.

    Raises:
        ConfigError: it cannot be built, or not run on shapes alone.
    """
    built_in = built_in_layers(network, dataset)
    if built_in is not None:
        return built_in
    layers = _counted(network, dataset)
    if isinstance(layers, str):
        raise ConfigError(layers)
    return layers


def training_operations(network: str, dataset: str) -> int | None:
    """Floating-point operations of both passes of a sample; None if the network is not built in.

    Each product is computed once forward and twice backward. The gradient of the network's input is
    left out, except where it is made of tokens: an embedding is trained.
    """
    blocks = built_in_layers(network, dataset)
    if blocks is None:
        return None
    products = [row for block in blocks for row in block.operations if row.operations]
    forward = sum(row.operations * row.times for row in products)
    has_gradient = DATASETS[dataset].kind == "tokens"
    return 3 * forward - (0 if has_gradient else products[0].operations)


@cache
def built_in_layers(network: str, dataset: str) -> tuple[LayerBlock, ...] | None:
    """The blocks of a built-in network, in order; None of another one."""
    head, rows = _rows_by_pair()
    lines = rows.get((network, dataset))
    return None if lines is None else _blocks("\n".join((head, *lines)))


@cache
def _rows_by_pair() -> tuple[str, Mapping[tuple[str, ...], list[str]]]:
    """The table's head, and the lines of each network and dataset: few of them are ever read."""
    head, *lines = _FILE.read_text("utf-8").splitlines()
    return head, grouped([(tuple(line.split(",", 2)[:2]), line) for line in lines])


@cache
def known_block_count(network: str, dataset: str) -> int | None:
    """How many blocks a network has; None if it is not built in and was not traced here before."""
    blocks = built_in_layers(network, dataset)
    if blocks is None and all(name != network for name, _ in _rows_by_pair()[1]):
        blocks = _kept(_kept_file(network, dataset))
    return None if blocks is None else len(blocks)


def _kept_file(network: str, dataset: str) -> Path:
    content = f"{key_of(network, dataset)} {DATASETS[dataset]} {_COUNTER.read_text('utf-8')}"
    return COUNTED / f"{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.csv"


def _kept(path: Path) -> tuple[LayerBlock, ...] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _blocks(path.read_text("utf-8"))
    return None


@cache
def _counted(network: str, dataset: str) -> tuple[LayerBlock, ...] | str:
    path = _kept_file(network, dataset)
    if (kept := _kept(path)) is not None:
        return kept
    command = [sys.executable, "-m", "ddlbench.networks.operations", network, dataset]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRACED_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (
            f"network {network}: its operations were not counted within {_TRACED_S} s; {PROFILE_IT}"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        if done.returncode == REFUSED:
            return last
        return (
            f"network {network}: its operations cannot be counted without running it ({last}); "
            f"{PROFILE_IT}"
        )
    with suppress(OSError):  # it is counted again the next time
        write_text(path, done.stdout)
    return _blocks(done.stdout)


def _blocks(text: str) -> tuple[LayerBlock, ...]:
    """The blocks in the table of one network on one dataset.

    Raises:
        ValueError, KeyError, TypeError: it is no such table.
    """
    blocks = grouped((row["block"], row) for row in csv.DictReader(io.StringIO(text)))
    if not blocks:
        raise ValueError("the table has no row")
    return tuple(_block(name, rows) for name, rows in blocks.items())


def _block(name: str, rows: Sequence[Mapping[str, str]]) -> LayerBlock:
    first = rows[0]
    return LayerBlock(
        name,
        tuple(
            Operation(row["kind"], *(int(row[column]) for column in LAYER_COLUMNS[4:9]))
            for row in rows
            if row["kind"] != "none"
        ),
        tuple(map(int, first["tensor_bytes"].split())),
        *(int(first[column]) for column in LAYER_COLUMNS[10:]),
    )
