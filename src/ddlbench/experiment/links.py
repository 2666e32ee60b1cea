"""links.json: latency and bandwidth between the devices of a site, one file for each fabric.

``ddlbench.interconnect`` measures it, or the site file gives it by hand; predictors read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fits import HockneyFit
from ddlbench.experiment.json_form import OMIT_NONE, JsonForm, key_of

LINKS_VERSION = 1
Matrix = Sequence[Sequence[float | None]]
_MATRICES = ("bandwidth_bytes_per_s", "latency_s")


class InvalidLinks(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A links file that is missing, truncated, of another version, or wrong in itself."""


_DOCUMENT = Document("links", "links file", InvalidLinks)


@dataclass(frozen=True)
class PairSample(JsonForm):
    """The sample of pairs that were measured, in a matrix with holes."""

    measured_pairs: int
    all_pairs: int
    rule: str

    def in_words(self) -> str:
        """The sample as a sentence."""
        return (
            f"{self.measured_pairs:,} of {self.all_pairs:,} measured ({self.rule}); "
            "the others are empty"
        )


@dataclass(frozen=True)
class SlowPair(JsonForm):
    """An ordered pair of low bandwidth; the ratio is to the median of its level."""

    sender: int = field(metadata=key_of("from"))
    receiver: int = field(metadata=key_of("to"))
    bandwidth_ratio: float


@dataclass(frozen=True, kw_only=True)
class PairMatrix(JsonForm):
    """Latency and bandwidth of every ordered pair: row = sender, column = receiver.

    Args:
        endpoints: names of the devices or ranks, in matrix order.
        nodes: node index of each endpoint.
        bandwidth_bytes_per_s, latency_s: None on the diagonal and for unmeasured pairs.
        repeats: number of runs; values are their medians.
    """

    scope: str
    method: str
    access: str | None = None
    direction: str = "unidirectional"
    operation: str | None = None
    node_type: str | None = None
    endpoints: tuple[str, ...]
    nodes: tuple[int, ...]
    bandwidth_bytes_per_s: tuple[tuple[float | None, ...], ...]
    latency_s: tuple[tuple[float | None, ...], ...]
    repeats: int = 1
    slow_pairs: tuple[SlowPair, ...] = ()
    sampled: PairSample | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class SweepPoint(JsonForm):
    """Median time of messages of one size, and their processor time; earlier files lack that."""

    message_bytes: int
    time_s: float
    interval_s: tuple[float, ...] | None
    repeats: int
    cpu_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LinkSweep(JsonForm):
    """Time of one operation over message sizes; a sweep given by hand has no points."""

    operation: str
    transport: str
    level: str
    nodes: int
    devices_per_node: int
    ranks: int
    points: tuple[SweepPoint, ...]
    fit: HockneyFit


@dataclass(frozen=True, kw_only=True)
class LinkOverlap(JsonForm):
    """An all-reduce beside a computation of equal length: the share that the computation hides."""

    transport: str
    nodes: int
    devices_per_node: int
    ranks: int
    message_bytes: int
    alone_s: float
    compute_s: float
    both_s: float
    hidden_share: float


@dataclass(frozen=True, kw_only=True)
class LibraryBackground(JsonForm):
    """A computation before a library starts, and beside the idle library."""

    library: str
    nodes: int
    devices_per_node: int
    ranks: int
    alone_s: float
    beside_s: float


@dataclass(frozen=True, kw_only=True)
class TensorCost(JsonForm):
    """What each further tensor adds to a message of a library, whatever its bytes."""

    library: str
    operation: str
    nodes: int
    devices_per_node: int
    ranks: int
    tensor_s: float


@dataclass(frozen=True, kw_only=True)
class MessageDelay(JsonForm):
    """Time of a short message that follows a computation of all ranks.

    Args:
        alone_s: without the computation; None for collectives, which sweeps time so.
        after_s: with it.
    """

    operation: str
    transport: str
    nodes: int
    devices_per_node: int
    ranks: int
    message_bytes: int
    alone_s: float | None = None
    after_s: float


@dataclass(frozen=True, kw_only=True)
class Links(JsonForm):
    """The content of links.json."""

    schema_version: int = LINKS_VERSION
    site: str
    fabric: str
    device_kind: str
    pairs: tuple[PairMatrix, ...]
    sweeps: tuple[LinkSweep, ...]
    overlaps: tuple[LinkOverlap, ...] = ()
    backgrounds: tuple[LibraryBackground, ...] = ()
    tensor_costs: tuple[TensorCost, ...] = ()
    delays: tuple[MessageDelay, ...] = ()
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]


def write_links(path: Path, links: Links) -> None:
    """Check and write a links file atomically.

    Raises:
        InvalidLinks: it does not fit the schema, or a matrix is not square.
    """
    _check_shapes(links, str(path))
    _DOCUMENT.write(path, links.to_dict())


def read_links(path: Path) -> Links:
    """Read and check a links file.

    Raises:
        InvalidLinks: there is none, or it does not fit the schema.
    """
    if not path.is_file():
        raise InvalidLinks(
            f"{path}: no such links file; measure it with `snakemake --profile ... links`"
        )
    links = _DOCUMENT.read_as(Links, path)
    _check_shapes(links, str(path))
    return links


def _check_shapes(links: Links, where: str) -> None:
    """Check that matrices are square and their values possible."""
    for index, pair in enumerate(links.pairs):
        size = len(pair.endpoints)
        place = f"{where}: pairs.{index}"
        if len(pair.nodes) != size:
            raise InvalidLinks(f"{place}: {size} endpoints, but {len(pair.nodes)} node indices")
        for key in _MATRICES:
            matrix = getattr(pair, key)
            if len(matrix) != size or any(len(row) != size for row in matrix):
                raise InvalidLinks(f"{place}.{key}: not {size} rows of {size} numbers")
        for row, column in permutations(range(size), 2):
            _check_link(pair, row, column, place)


def _check_link(pair: PairMatrix, row: int, column: int, place: str) -> None:
    """Check one pair: no negative values; a hole is in both matrices and part of a sample."""
    values = {key: getattr(pair, key)[row][column] for key in _MATRICES}
    holes = [key for key, value in values.items() if value is None]
    if len(holes) == len(values) and pair.sampled is not None:
        return
    if holes:
        raise InvalidLinks(
            f"{place}.{holes[0]}: a hole at row {row}, column {column}: measure that pair again"
        )
    for key, value in values.items():
        if value < 0 or (key == "bandwidth_bytes_per_s" and value == 0):
            raise InvalidLinks(
                f"{place}.{key}: {value} at row {row}, column {column}: "
                "a bandwidth is above zero, a latency not below"
            )
