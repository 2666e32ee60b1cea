"""Layer profiles read as chains: ours, and PipeDream's as a table.

A table has the columns ``node, layer, forward_ms, backward_ms, activation_bytes,
parameter_bytes``, one row a node of PipeDream's ``graph.txt`` at that file's batch size. As the
release does, rows of layer ``Input`` are left out (data comes from the loader), so node 0 is the
first row after them. The table holds no edges: it is read as a chain, but for a ``Size`` row
(VGG's ``x.size(0)``): what it gives is a shape, and the tensor that was asked for it crosses a cut
behind it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.profile import BatchTime, Profile, read_profile
from ddlbench.planning.partition.chain import Chain, Node

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["chain_of_profile", "read_chain", "read_table"]

COLUMNS = ("node", "layer", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")


def read_chain(path: Path, batch_size: int | None = None) -> Chain:
    """Read a profile, ours (``.json``) or a table (``.csv``).

    Args:
        path: the file.
        batch_size: samples of a mini-batch; the largest measured one if left out. A table holds
            one batch size and takes none.

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
    """Read PipeDream's profile as a table.

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
    import pandas as pd  # noqa: PLC0415 - as above

    values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(
            f"{path}: node {table['node'].iloc[row]}: {column} is {table[column].iloc[row]}; "
            "write a number that is 0 or more"
        )
    return values


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
