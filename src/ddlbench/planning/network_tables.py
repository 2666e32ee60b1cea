"""Tables and traits of networks, by which a login node plans without torch.

Tables are about the built-in networks. ``split_limits.csv`` holds, for each network and dataset,
the layer with the fewest rows (along height, width and depth, up to the head), filters and input
channels. No row is that of a network whose first block is the head, so that nothing can be split.
With it a login node knows how far a network can be split.

``transformer_shapes.csv`` holds layers and widths of each transformer, for models that know
transformers by these numbers.

``tensor_pairs.csv`` holds the pairs of linear layers that devices can split together. ``make
tables`` writes all three.

There are two kinds of pairs::

    attention     query  key  value | each head by itself  | output       heads are shared out
    perceptron    fc1               | GELU, ReLU, ...      | fc2          hidden features are
                  column-parallel     own features only      row-parallel
                  own output features                        own input features, sums added up

Between the two halves of a pair every device computes with its own features only, so nothing is
sent. Therefore only layers that treat every feature alike may stand there; a dropout may not, as
devices would draw the same numbers for different features.

Traits decide which strategies can train a network::

    networks/inspection.py    builds the network and fills the traits, with one tiny pass
    Strategy.why_not_network  reads them: before a job (``ddlbench plan``), and in every rank

Built-in networks have none of these traits, so that nothing is inspected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddlbench.common.document import csv_rows
from ddlbench.common.form import Form
from ddlbench.common.quantities import counted, few
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason


def _rows(table: str) -> list[dict[str, str]]:
    return csv_rows(Path(__file__).with_name(table))


def transformer_shape(network: str, dataset: str) -> dict[str, int] | None:
    """``layers``, ``hidden_size``, ...; None if the network is no built-in transformer."""
    return _shape_table().get((network, dataset))


@cache
def _shape_table() -> dict[tuple[str, str], dict[str, int]]:
    return {
        (row["network"], row["dataset"]): {
            name: int(row[name]) for name in row if name not in ("network", "dataset")
        }
        for row in _rows("transformer_shapes.csv")
    }


LIMIT_COLUMNS = ("network", "dataset", "split", "count", "layer")
DIMENSIONS = {"width": -1, "height": -2, "depth": -3}
DIMENSION_NAMES = {dim: name for name, dim in DIMENSIONS.items()}
_NOUNS = {
    "height": "row",
    "width": "column",
    "depth": "plane",
    "filter": "filter",
    "channel": "input channel",
}


def too_few(layer: str, split: str, count: int, devices: int) -> Reason:
    """Why a layer with ``count`` rows, filters or channels cannot be split over so many devices.

    ``split`` is "height", "width", "depth", "filter" or "channel".
    """
    earlier = ", or end the split before it (until: auto)" if split in DIMENSIONS else ""
    return Reason(
        "too_few_to_split",
        f"layer {layer} has {counted(count, _NOUNS[split])}, too few for {devices} devices; "
        f"use {count} at most{earlier}",
    )


def all_rows_needed(first_block: str) -> Reason:
    """Why no rows of a network can be split: its first block is the head already."""
    return Reason(
        "cannot_be_split",
        f"the first block, {first_block}, needs all rows, so no rows can be split; take strategy "
        "filter or channel",
    )


def why_too_many(cell: Cell, split: str, devices: int) -> Reason | None:
    """Why the cell's network cannot be split over so many devices; None if it can."""
    count, layer = _limit_table().get((cell.network, cell.dataset, split), (devices, ""))
    if count >= devices or devices == 1:
        return None
    return too_few(layer, split, count, devices) if count else all_rows_needed(layer)


@cache
def _limit_table() -> dict[tuple[str, str, str], tuple[int, str]]:
    return {
        (row["network"], row["dataset"], row["split"]): (int(row["count"]), row["layer"])
        for row in _rows("split_limits.csv")
    }


_LINEAR = "Linear"
ELEMENT_WISE = frozenset(
    {
        "CELU", "ELU", "GELU", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
        "LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softsign",
        "Tanh",
    }
)  # fmt: skip
_OF_ATTENTION = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Pair:
    """Linear layers that are split together.

    Args:
        columns: names of the layers whose output features are split; they read the same input.
        between: names of the layers between, which compute the device's own features.
        row: name of the layer whose input features are split.
    """

    columns: tuple[str, ...]
    between: tuple[str, ...]
    row: str

    @property
    def is_attention(self) -> bool:
        return len(self.columns) > 1

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all of them, in the order of calls."""
        return (*self.columns, *self.between, self.row)

    @property
    def parent(self) -> str:
        """Name of the module that holds all of them; empty for the network itself."""
        return parent_of(self.row)


def parent_of(layer: str) -> str:
    """``layer_0.attention`` of ``layer_0.attention.query``; empty for the network itself."""
    return layer.rpartition(".")[0]


def pairs_of(layers: Sequence[tuple[str, str]]) -> list[Pair]:
    """All pairs of a network, none of which share a layer, the first ones first.

    Args:
        layers: name and kind (class name) of the layers without children, in the order of calls.
            Whether the modules around them call one layer right after the other, these do not tell.

    >>> pairs_of([("fc1", "Linear"), ("relu", "ReLU"), ("fc2", "Linear"), ("fc3", "Linear")])
    [Pair(columns=('fc1',), between=('relu',), row='fc2')]
    """
    pairs = []
    at = 0
    while at < len(layers):
        pair = _attention(layers[at:]) or _perceptron(layers[at:])
        if pair is not None:
            pairs.append(pair)
        at += 1 if pair is None else len(pair.columns) + len(pair.between) + 1
    return pairs


def _attention(layers: Sequence[tuple[str, str]]) -> Pair | None:
    """The attention that the first of ``layers`` begins."""
    first = layers[: len(_OF_ATTENTION)]
    parent = parent_of(first[0][0])
    wanted = [(f"{parent}.{name}" if parent else name, _LINEAR) for name in _OF_ATTENTION]
    if list(first) != wanted:
        return None
    *columns, row = (name for name, _ in first)
    return Pair(tuple(columns), (), row)


def _perceptron(layers: Sequence[tuple[str, str]]) -> Pair | None:
    """The perceptron that the first of ``layers`` begins."""
    (first, kind), *others = layers
    if kind != _LINEAR:
        return None
    between: list[str] = []
    for name, kind in others:
        if parent_of(name) != parent_of(first):
            return None
        if kind == _LINEAR:
            return Pair((first,), tuple(between), name)
        if kind not in ELEMENT_WISE:
            return None
        between.append(name)
    return None


@dataclass(frozen=True)
class LinearPairs(Form):
    """Pairs of linear layers with nothing but a device's own features between them.

    Args:
        pairs: their number.
        heads: the most groups into which the heads of every attention divide; 0 without one.
        hidden: the same of hidden features of perceptrons.
        convolutions: weights of convolutions.
        weights: all weights.
    """

    pairs: int
    heads: int
    hidden: int
    convolutions: int
    weights: int


PAIR_COLUMNS = ("network", "dataset", "pairs", "heads", "hidden", "convolutions", "weights")


def linear_pairs(cell: Cell) -> LinearPairs | None:
    """Linear pairs of the cell's network; None if the network is not built in."""
    return _pair_table().get((cell.network, cell.dataset))


def why_not_in_pairs(known: LinearPairs | None, cell: Cell, devices: int) -> Reason | None:
    """Why so many devices cannot split the pairs of linear layers of a cell's network.

    None if they can, and where the pairs are not known.
    """
    if known is None:
        return None
    instead = "take strategy filter or channel"
    if 2 * known.convolutions > known.weights:
        return Reason(
            "cannot_be_split",
            f"convolutions hold {known.convolutions / known.weights:.0%} of the weights of "
            f"{cell.network}, and {cell.strategy} splits pairs of linear layers only; {instead}",
        )
    if not known.pairs:
        return Reason(
            "cannot_be_split",
            f"{cell.network} has no two linear layers that {cell.strategy} could split: only "
            f"activations may lie between them, no dropout, in one nn.Sequential; {instead}",
        )
    for units, what in ((known.heads, "attention heads"), (known.hidden, "hidden features")):
        if units % devices:
            return Reason(
                "uneven_split",
                f"{units} {what} of {cell.network} do not divide over a group of {devices} "
                f"devices; make groups of a number that divides {units}",
            )
    return None


@cache
def _pair_table() -> dict[tuple[str, str], LinearPairs]:
    return {
        (row["network"], row["dataset"]): LinearPairs(
            *(int(row[name]) for name in PAIR_COLUMNS[2:])
        )
        for row in _rows("tensor_pairs.csv")
    }


COMPLEX_AS_REAL = "keep a complex weight's two parts in a real one (torch.view_as_complex)"


@dataclass(frozen=True)
class NetworkTraits(Form):
    """What a network has that not every strategy can train. Names are those of weights or blocks.

    Args:
        blocks: names of all blocks, in order; empty if the network was not inspected.
        uncut: why it is one block, as a clause; empty if it can be cut.
        without_gradient: blocks whose output is no number that a gradient can belong to.
        rows_end_at: the first block that reads all rows; empty without one.
        unused: trained weights that a backward pass leaves without a gradient.
        irregular: trained weights that some steps use and others do not.
        sparse: weights whose gradient is sparse.
        scalars: trained weights without a dimension.
        strided: trained weights that are not contiguous (channels-last, transposed).
        complex: trained weights of complex numbers.
        bfloat16: trained weights of that type.
        hooked: weights with hooks on their gradient, which a copy of the weight would lose.
        hooked_after: those of them whose hook runs once a pass has accumulated the gradient.
        whole_numbers: parameters of whole numbers, which no optimiser trains.
        mixed_types: blocks whose trained weights are of several types.
        trains: whether a gradient reaches any weight.
        borrowed: blocks that hold a weight or a layer of another block in a plain attribute.
        written: trained weights that a forward pass changes.
        written_by_samples: those of them that other samples change otherwise (``max_norm``).
        backward_within: whether its forward pass calls ``backward``.
        gradients_within: whether its forward pass takes gradients itself, to be differentiated
            again.
        synchronised: layers of batch norm over the samples of all ranks, which GPUs have only.
        batch_norm: whether a layer normalises over the samples of a pass.
        needs_two_samples: whether training fails on a single sample.
        random: whether a layer draws random numbers (dropout).
        normalised_by: the softmax or sigmoid that outputs pass last; empty without one.
        pairs: its pairs of linear layers; None where they are not known.
    """

    blocks: tuple[str, ...] = ()
    uncut: str = ""
    without_gradient: tuple[str, ...] = ()
    rows_end_at: str = ""
    unused: tuple[str, ...] = ()
    irregular: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    complex: tuple[str, ...] = ()
    bfloat16: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()
    hooked_after: tuple[str, ...] = ()
    whole_numbers: tuple[str, ...] = ()
    mixed_types: tuple[str, ...] = ()
    trains: bool = True
    borrowed: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    written_by_samples: tuple[str, ...] = ()
    backward_within: bool = False
    gradients_within: bool = False
    synchronised: tuple[str, ...] = ()
    batch_norm: bool = False
    needs_two_samples: bool = False
    random: bool = False
    normalised_by: str = ""
    pairs: LinearPairs | None = None


def unsupported_weights(library: str, names: Iterable[str], why: str, instead: str) -> Reason:
    """The refusal of weights by a strategy's library."""
    return Reason("weights_unsupported", f"{library} {why} ({few(names)}); {instead}")


def first_unsupported(library: str, *cases: tuple[Sequence[str], str, str]) -> Reason | None:
    """The refusal of the first weights that there are: (names, why, what to do instead)."""
    return next((unsupported_weights(library, *case) for case in cases if case[0]), None)


def borrowing(traits: NetworkTraits) -> Reason:
    """The refusal of blocks that read other blocks' weights, by strategies that part them."""
    return Reason(
        "weights_unsupported",
        f"block {few(traits.borrowed)} holds a weight of another block, which may lie on another "
        "device, or not be whole; hand on values from block to block",
    )
