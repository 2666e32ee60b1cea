"""The partitioner's input: a network as a chain of nodes, and the memory of a stage.

::

    node      0 --a_0--> 1 --a_1--> 2 --a_2--> 3         a cut before node 2 sends a_1 forward
    stage     [0 ------- 2)         [2 ------- 4)        and as many bytes of gradient back

Node numbers count from 0, the states of PipeDream's optimizer; a stage is ``[first, last)``.

Chains are read from layer profiles: ours, and PipeDream's as a table.

A stage keeps in memory, with ``W`` mini-batches in flight beside its own::

    (W + 1) * (saved activations + weights)     one weight version for each mini-batch in flight
    + gradients + optimizer state + buffers     once
    + memory that the device loses at the start

``W`` is the warm-up of :mod:`ddlbench.planning.schedules.pipedream`, so the limit holds for the
schedule that is run. (The release counts ``W`` instead of ``W + 1`` and neither gradients nor
optimizer state, so its last stage never costs anything.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.profile import BatchTime, Profile, read_profile

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Node:
    """One node at one batch size.

    Args:
        name: in the profile.
        time_s: forward and backward pass.
        output_bytes: sent over a cut after it.
        saved_bytes: kept from forward to backward.
        parameter_bytes: its weights.
        buffer_bytes: tensors that are no weights (batch-norm statistics), kept once.
    """

    name: str
    time_s: float
    output_bytes: float
    saved_bytes: float
    parameter_bytes: float
    buffer_bytes: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Nodes in the order of the forward pass.

    Args:
        nodes: at least one.
        fixed_bytes: memory that a device loses before any node is placed (CUDA context).
    """

    nodes: tuple[Node, ...]
    fixed_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a network of no nodes cannot be cut; the profile holds none")
        for number, node in enumerate(self.nodes):
            values = (node.time_s, node.output_bytes, node.saved_bytes)
            if not all(0 <= v < np.inf for v in (*values, node.parameter_bytes, node.buffer_bytes)):
                raise ConfigError(
                    f"node {number} ({node.name}) has a time or size that is negative or no "
                    f"number: {node}; times and sizes must be 0 or more"
                )

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def output_bytes(self) -> Array:
        """Bytes that cross a cut after each node; shape (N,)."""
        return np.array([node.output_bytes for node in self.nodes], dtype=np.float64)

    # Sums over nodes i..j inclusive, each of shape (N, N), infinite for j < i.

    @cached_property
    def time_s(self) -> Array:
        return _spans([node.time_s for node in self.nodes])

    @cached_property
    def parameter_bytes(self) -> Array:
        return _spans([node.parameter_bytes for node in self.nodes])

    @cached_property
    def saved_bytes(self) -> Array:
        return _spans([node.saved_bytes for node in self.nodes])

    @cached_property
    def buffer_bytes(self) -> Array:
        return _spans([node.buffer_bytes for node in self.nodes])


def _spans(values: Sequence[float]) -> Array:
    """Sums over i..j as differences of running sums, in the release's order of operations."""
    until = np.cumsum(np.array(values, dtype=np.float64))
    before = np.concatenate(([0.0], until[:-1]))
    spans: Array = np.where(
        np.triu(np.ones((len(values), len(values)), dtype=bool)),
        until[None, :] - before[:, None],
        np.inf,
    )
    return spans


COLUMNS = ("node", "layer", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")
_LONGEST = 60  # characters of a value in a message


def read_chain(path: Path, batch_size: int | None = None) -> Chain:
    """Reads a profile, ours (``.json``) or a table (``.csv``).

    ``batch_size`` is the largest measured one if left out. A table holds one batch size and takes
    none.

    Raises:
        ConfigError: the file is missing or is no profile, or the batch size does not suit it.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such profile; write the path of a .csv or .json profile")
    if path.suffix == ".csv":
        if batch_size is not None:
            raise ConfigError(
                f"{path}: a table holds one batch size; leave --batch-size out, or give our .json"
            )
        return read_table(path)
    if path.suffix == ".json":
        return chain_of_profile(read_profile(path), batch_size)
    raise ConfigError(f"{path}: a profile is a .csv or a .json file, this is neither")


def read_table(path: Path) -> Chain:
    """Reads PipeDream's profile as a table.

    Raises:
        ConfigError: it is not such a table.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and every matrix imports this module

    try:
        table = pd.read_csv(path, comment="#")
    except (OSError, UnicodeDecodeError, ValueError) as error:  # pandas' errors are ValueErrors
        raise ConfigError(f"{path}: not a readable table: {error}") from error
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise ConfigError(
            f"{path}: no column {', '.join(missing)}; a profile has {', '.join(COLUMNS)}"
        )
    numbers = {column: _numbers(path, table, column) for column in COLUMNS[2:]}
    nodes: list[Node] = []
    for row, layer in enumerate(table["layer"]):
        if str(layer).startswith("Input"):
            continue
        values = {column: float(numbers[column][row]) for column in numbers}
        passing = nodes[-1].output_bytes if nodes and layer == "Size" else 0.0
        nodes.append(
            Node(
                name=f"{table['node'].iloc[row]} {layer}",
                time_s=(values["forward_ms"] + values["backward_ms"]) / 1000.0,
                output_bytes=values["activation_bytes"] + passing,
                saved_bytes=values["activation_bytes"],
                parameter_bytes=values["parameter_bytes"],
            )
        )
    if not nodes:
        raise ConfigError(f"{path}: holds no layer; a profile has one row for each")
    return Chain(tuple(nodes))


def _numbers(path: Path, table: pd.DataFrame, column: str) -> np.ndarray[Any, Any]:
    values = np.array([_number(value) for value in table[column]])
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(
            f"{path}: node {table['node'].iloc[row]}: {column} is "
            f"{str(table[column].iloc[row])[:_LONGEST]}; write a number that is 0 or more"
        )
    return values


def _number(value: object) -> float:
    """What a table holds as a number; of hundreds of digits infinity, of other text NaN."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def chain_of_profile(profile: Profile, batch_size: int | None = None) -> Chain:
    """The blocks of our profile at a batch size; times between measured sizes are interpolated.

    Raises:
        ConfigError: the profile holds no blocks, or the batch size was not measured around.
    """
    blocks, where = profile.blocks, profile.profile_id
    if not blocks:
        raise ConfigError(f"profile {where} holds no blocks; measure it again to partition by it")
    if batch_size is None:
        batch_size = min(
            max((time.batch_size for time in times), default=0)
            for block in blocks
            for times in (block.forward, block.backward)
        )
    nodes = []
    for block in blocks:
        place = f"profile {where}, block {block.name}"
        passes = (block.forward, block.backward)
        nodes.append(
            Node(
                name=block.name,
                time_s=sum(_time_s(times, batch_size, place) for times in passes),
                output_bytes=block.output_bytes_per_sample * batch_size,
                saved_bytes=block.saved_bytes_per_sample * batch_size,
                parameter_bytes=float(block.parameter_bytes),
                buffer_bytes=float(block.buffer_bytes),
            )
        )
    return Chain(tuple(nodes), fixed_bytes=float(profile.fixed_memory_bytes))


def _time_s(timings: Sequence[BatchTime], batch_size: int, where: str) -> float:
    """Time at a batch size, linear between the two measured ones around it."""
    measured = sorted((time.batch_size, time.time_s) for time in timings)
    if not measured or not measured[0][0] <= batch_size <= measured[-1][0]:
        sizes = f"{measured[0][0]} to {measured[-1][0]}" if measured else "no batch size"
        raise ConfigError(f"{where}: measured at {sizes}, not at {batch_size}; write one of those")
    sizes_at, times = zip(*measured, strict=True)
    return float(np.interp(batch_size, sizes_at, times))


@dataclass(frozen=True)
class MemoryLimit:
    """Memory of each device, and what training keeps there.

    Args:
        limit_bytes: memory of one device.
        optimizer_states: tensors as large as the weights that the optimizer keeps: 1 for SGD with
            momentum, 0 without, 2 for Adam.
        extra_warmup: more mini-batches in flight on every stage but the last. The partitioner
            counts them once more for each stage behind: perhaps a few too many, never too few.
    """

    limit_bytes: float
    optimizer_states: float = 1.0
    extra_warmup: int = 0

    def __post_init__(self) -> None:
        if not self.limit_bytes > 0:
            raise ConfigError(f"memory of {self.limit_bytes} bytes: write more than 0")
        if self.optimizer_states < 0 or self.extra_warmup < 0:
            raise ConfigError("optimizer states and extra warm-up must be 0 or more")

    def demands(self, ranks: int, exact: bool) -> NDArray[np.int64]:
        """Grid of demands of later stages: all of them, or ever coarser ones above 8.

        A demand never reaches twice the ranks (and the extra warm-up of each): a stage adds less
        than twice its replicas.
        """
        most = (2 + self.extra_warmup) * ranks
        if exact:
            return np.arange(most + 1)
        coarse = {step * 2**power for power in range(2, most.bit_length() + 1) for step in (2, 3)}
        grid = np.array(sorted({*range(8), *coarse}))
        return grid[: np.searchsorted(grid, most) + 1]

    def once_bytes(self, chain: Chain) -> Array:
        """Bytes kept once for nodes i..j; shape (N, N)."""
        held = (1 + self.optimizer_states) * chain.parameter_bytes
        return held + chain.buffer_bytes + chain.fixed_bytes

    def per_flight_bytes(self, chain: Chain) -> Array:
        """Bytes kept for each mini-batch in flight, for nodes i..j; shape (N, N)."""
        return chain.saved_bytes + chain.parameter_bytes

    def in_flight(self, waiting: int) -> int:
        """Mini-batches in a replica that delays its first backward pass by ``waiting`` of them."""
        return waiting + 1 + (self.extra_warmup if waiting else 0)

    def fits(self, chain: Chain, waiting: int) -> NDArray[np.bool_]:
        """Which nodes i..j fit with so many warm-up mini-batches; bool, shape (N, N)."""
        upper = np.isfinite(chain.time_s)
        need = self.in_flight(waiting) * self.per_flight_bytes(chain) + self.once_bytes(chain)
        fitting: NDArray[np.bool_] = upper & (need <= self.limit_bytes)
        return fitting

    def stage_bytes(self, chain: Chain, first: int, last: int, in_flight: int) -> float:
        once = self.once_bytes(chain)[first, last - 1]
        return float(once + in_flight * self.per_flight_bytes(chain)[first, last - 1])
