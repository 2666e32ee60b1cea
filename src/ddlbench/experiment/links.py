"""links.json: latency and bandwidth between the devices of a site, one file for each fabric.

``ddlbench.interconnect`` measures it, or the site file gives it by hand; predictors read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import HockneyFit
from ddlbench.common.form import Amount, Count, Form, Interval, Natural, Positive, Share
from ddlbench.common.quantities import MB
from ddlbench.experiment.config import making_anew

LINKS_VERSION = 1
Matrix = Sequence[Sequence[float | None]]
Rows = Annotated[tuple[Annotated[tuple[Amount | None, ...], MinLen(1)], ...], MinLen(1)]
_MATRICES = ("bandwidth_bytes_per_s", "latency_s")


@dataclass(frozen=True)
class PairSample(Form):
    """The sample of pairs that were measured, in a matrix with holes."""

    measured_pairs: Natural
    all_pairs: Annotated[int, Ge(2)]
    rule: str
    """Which ones."""

    def in_words(self) -> str:
        return (
            f"{self.measured_pairs:,} of {self.all_pairs:,} measured ({self.rule}); "
            "the others are empty"
        )


@dataclass(frozen=True)
class SlowPair(Form):
    """An ordered pair of low bandwidth; the ratio is to the median of its level."""

    sender: Natural
    receiver: Natural
    bandwidth_ratio: Amount
    """To the median pair of the same level."""


@dataclass(frozen=True, kw_only=True)
class PairMatrix(Form):
    """Latency and bandwidth of every ordered pair: row = sender, column = receiver."""

    scope: Literal["node", "world"]
    """Node: devices of one node. world: devices of several nodes, as ranks are placed."""
    method: Literal[
        "p2pBandwidthLatencyTest",
        "nvbandwidth",
        "device-copies",
        "gloo",
        "nccl",
        "horovod",
        "given",
    ]
    access: Literal["direct", "staged"] | None = None
    """GPU peer access on (direct) or off (staged through the host)."""
    direction: Literal["unidirectional", "bidirectional"] = "unidirectional"
    operation: Literal["write", "read"] | None = None
    node_type: str | None = None
    endpoints: Annotated[tuple[str, ...], MinLen(1)]
    """Device names, in matrix order."""
    nodes: tuple[Natural, ...]
    """Node index of each endpoint."""
    bandwidth_bytes_per_s: Rows
    """None on the diagonal and for unmeasured pairs."""
    latency_s: Rows
    """None on the diagonal and for unmeasured pairs."""
    repeats: Count = 1
    """Values are medians of so many runs."""
    slow_pairs: tuple[SlowPair, ...] = ()
    sampled: PairSample | None = None
    """Of a matrix with holes: not all pairs were measured."""


@dataclass(frozen=True)
class SweepPoint(Form):
    """Median time of messages of one size, and their processor time."""

    message_bytes: Natural
    time_s: Positive
    """Median."""
    interval_s: Interval | None
    """95 %."""
    repeats: Count
    cpu_s: Amount | None = None
    """Processor time of the slowest rank, all its threads, median."""


@dataclass(frozen=True, kw_only=True)
class OfGroup(Form):
    """What was measured over one group of ranks."""

    nodes: Count
    devices_per_node: Count
    ranks: Annotated[int, Ge(2)]


@dataclass(frozen=True, kw_only=True)
class LinkSweep(OfGroup):
    """Time of one operation over message sizes; a sweep given by hand has no points."""

    operation: Literal["p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter"]
    transport: Literal["gloo", "nccl", "ddp", "fsdp", "horovod", "given"]
    """Ddp: through the reducer of DistributedDataParallel, with its copies; fsdp: through
    fully_shard, with its copies."""
    level: Literal["node", "network"]
    """Within one node, or between nodes."""
    points: tuple[SweepPoint, ...]
    """Time until the slowest rank has finished; p2p: one way. message_bytes: the buffer of one rank
    (all_gather: what one rank gives; reduce_scatter: what one rank gives)."""
    fit: HockneyFit


@dataclass(frozen=True, kw_only=True)
class NodeRate(OfGroup):
    """What the devices of a node send to those of another node, one way."""

    transport: Literal["gloo", "nccl", "given"]
    message_bytes: Natural
    """Of each device; 0 if the rates are given by hand."""
    device_bytes_per_s: Positive
    """One device alone."""
    node_bytes_per_s: Positive
    """All devices at once, together."""

    @property
    def cards(self) -> float:
        """Devices that send at full rate at once: as if each had a network card of its own."""
        ratio = self.node_bytes_per_s / self.device_bytes_per_s
        return min(max(ratio, 1.0), float(self.devices_per_node))

    def in_words(self) -> str:
        ratio = self.node_bytes_per_s / self.device_bytes_per_s
        return (
            f"All {self.devices_per_node} devices of a node together send "
            f"{MB.text(self.node_bytes_per_s, ',.0f')}/s to another node, {ratio:.1f} times what "
            "one alone sends."
        )


@dataclass(frozen=True, kw_only=True)
class LinkOverlap(OfGroup):
    """An all-reduce beside a computation of equal length: the share that the computation hides."""

    transport: Literal["gloo", "nccl"]
    message_bytes: Count
    alone_s: Positive
    """The all-reduce alone."""
    compute_s: Positive
    """The computation alone, on all ranks at once."""
    both_s: Positive
    """Both at once."""
    hidden_share: Share
    """(alone_s + compute_s - both_s) / the shorter, within 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class LibraryBackground(OfGroup):
    """A computation before a library starts, and beside the idle library."""

    library: Literal["horovod"]
    alone_s: Positive
    """The computation before the library starts, on all ranks at once."""
    beside_s: Positive
    """The same beside the idle library."""


@dataclass(frozen=True, kw_only=True)
class TensorCost(OfGroup):
    """What each further tensor adds to a message of a library, whatever its bytes."""

    library: Literal["fsdp"]
    operation: Literal["all_gather", "reduce_scatter"]
    tensor_s: Amount
    """Added to a message of one tensor by each further one."""


@dataclass(frozen=True, kw_only=True)
class MessageDelay(OfGroup):
    """Time of a short message that follows a computation of all ranks."""

    operation: Literal["p2p", "all_reduce", "all_gather", "reduce_scatter"]
    transport: Literal["gloo", "fsdp"]
    message_bytes: Count
    alone_s: Amount | None = None
    """Of p2p: while no rank computes."""
    after_s: Amount
    """After a computation of all ranks; of p2p, while the sender computes on."""


@dataclass(frozen=True, kw_only=True)
class Links(Form):
    """The content of links.json."""

    schema_version: int = LINKS_VERSION
    site: str
    fabric: str
    """Link condition, as in a cell."""
    device_kind: Literal["cpu", "cuda"]
    pairs: tuple[PairMatrix, ...]
    """Latency and bandwidth of every ordered pair: row = sender, column = receiver."""
    sweeps: tuple[LinkSweep, ...]
    """Time of one operation over message sizes."""
    node_rates: tuple[NodeRate, ...] = ()
    """What all devices of a node send to another node at once."""
    overlaps: tuple[LinkOverlap, ...] = ()
    """An all-reduce beside a computation that takes as long."""
    backgrounds: tuple[LibraryBackground, ...] = ()
    """A computation beside a library that has nothing to send."""
    tensor_costs: tuple[TensorCost, ...] = ()
    """What each further tensor adds to a message, whatever its bytes."""
    delays: tuple[MessageDelay, ...] = ()
    """Time of a short message that follows a computation, on CPUs."""
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]


_DOCUMENT = Document(Links, LINKS_VERSION, "links file", ConfigError, instead=making_anew)


def write_links(path: Path, links: Links) -> None:
    """Check and write a links file atomically.

    Raises:
        ConfigError: it is not of its form, or a matrix is not square.
    """
    _check_shapes(links, str(path))
    _DOCUMENT.write(path, links)


def read_links(path: Path) -> Links:
    """Read and check a links file.

    Raises:
        ConfigError: there is none, or it is not of its form.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give its links.json")
    if not path.is_file():
        raise ConfigError(f"{path}: no such links file; {making_anew(str(path))}")
    links = _DOCUMENT.read(path)
    _check_shapes(links, str(path))
    return links


def _check_shapes(links: Links, where: str) -> None:
    """Check that matrices are square and their values possible."""
    for index, pair in enumerate(links.pairs):
        size = len(pair.endpoints)
        place = f"{where}: pairs.{index}"
        if len(pair.nodes) != size:
            raise ConfigError(f"{place}: {size} endpoints, but {len(pair.nodes)} node indices")
        for key in _MATRICES:
            matrix = getattr(pair, key)
            if len(matrix) != size or any(len(row) != size for row in matrix):
                raise ConfigError(f"{place}.{key}: not {size} rows of {size} numbers")
        for row, column in permutations(range(size), 2):
            _check_link(pair, row, column, place)


def _check_link(pair: PairMatrix, row: int, column: int, place: str) -> None:
    """Check one pair: no negative values; a hole is in both matrices and part of a sample."""
    values = {key: getattr(pair, key)[row][column] for key in _MATRICES}
    holes = [key for key, value in values.items() if value is None]
    if len(holes) == len(values) and pair.sampled is not None:
        return
    if holes:
        raise ConfigError(
            f"{place}.{holes[0]}: a hole at row {row}, column {column}: measure that pair again"
        )
    for key, value in values.items():
        if value < 0 or (key == "bandwidth_bytes_per_s" and value == 0):
            raise ConfigError(
                f"{place}.{key}: {value} at row {row}, column {column}: "
                "a bandwidth is above zero, a latency not below"
            )
