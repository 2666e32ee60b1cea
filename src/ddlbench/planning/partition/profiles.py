"""Profiles of the partitioner: ours, PipeDream's ``graph.txt``, and tables of a chain.

A table has a row for each layer, in the order of the forward pass, and no edges. Layers take the
tensor of the row before; only the tensor before a ``Size`` also goes to the row after it, where
the shape is used.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlbench.common.document import refuse_compressed
from ddlbench.common.errors import ConfigError, shown
from ddlbench.experiment.profile import BatchTime, Profile, read_profile
from ddlbench.planning.device_table import COLUMNS as DEVICE_COLUMNS
from ddlbench.planning.device_table import read_table
from ddlbench.planning.partition.graph import (
    FIELDS,
    Chain,
    LayerGraph,
    Node,
    graph_file,
    is_input,
    is_size,
    number_of,
)
from ddlbench.planning.workload import Block

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("node", "layer", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")
_JOINING = re.compile(r"(Add|Sub|Mul|Div|Concat|Cat|Stack|__getitem__)\b.*")


def read_network(path: Path, batch_size: int | None = None) -> Chain | LayerGraph:
    """Reads a profile: ours (``.json``), a device's table, PipeDream's ``graph.txt``, or a chain.

    A chain is a table (``.csv``) of layers. Only our profile and a device's table have several
    batch sizes; without ``batch_size`` the largest is read.

    Raises:
        ConfigError: the file is missing or is no profile, its layers take no time, or the batch
            size does not suit it.
    """
    network = _network(path, batch_size)
    if not any(node.time_s for node in network.nodes):
        raise ConfigError(
            f"{path}: the passes of all its layers take 0 s, so that no cut is better than "
            "another; give a profile with measured times"
        )
    return network


def _network(path: Path, batch_size: int | None) -> Chain | LayerGraph:
    if not path.is_file():
        raise ConfigError(f"{path}: no such profile; write the path of a .json, .txt or .csv file")
    if path.suffix.lower() == ".json":
        return chain_of_profile(read_profile(path), batch_size)
    text = text_of(path)
    if text.startswith(f"{DEVICE_COLUMNS[0]},"):
        table = read_table(path, path.parent.name)
        return chain_of_blocks(table.blocks, batch_size or table.batch_sizes[-1])
    is_graph = f"{FIELDS[0]}=" in text or path.suffix.lower() == ".txt"
    if not is_graph and path.suffix.lower() != ".csv":
        raise ConfigError(
            f"{path}: a profile is our .json, PipeDream's graph.txt or a .csv table, this is none"
        )
    if batch_size is not None:
        raise ConfigError(
            f"{path}: PipeDream's profile holds one batch size; leave --batch-size out, or give "
            "our .json or a device's table"
        )
    return graph_file(text, path).layers if is_graph else _table(path, text)


def chain_of_blocks(blocks: Sequence[Block], samples: int) -> Chain:
    """Blocks with the times of passes of so many samples."""
    return Chain(
        tuple(
            Node(
                name=block.name,
                time_s=block.forward.at(samples) + block.backward.at(samples),
                output_bytes=block.output_bytes * samples,
                saved_bytes=block.saved_bytes * samples,
                parameter_bytes=float(block.parameter_bytes),
                buffer_bytes=float(block.buffer_bytes),
            )
            for block in blocks
        )
    )


def text_of(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte-order mark."""
    try:
        content = path.read_bytes()
        refuse_compressed(content, path)
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a readable text: {error}; save it as UTF-8") from error
    if "\0" in text:
        raise ConfigError(f"{path} holds bytes that are no text; save it as UTF-8")
    return text


def _table(path: Path, text: str) -> Chain:
    import pandas as pd  # noqa: PLC0415 - slow to import, and every matrix imports this module

    try:
        table = pd.read_csv(io.StringIO(text), comment="#", skipinitialspace=True)
    except ValueError as error:  # pandas' errors are ValueErrors
        raise ConfigError(f"{path}: not a readable table: {error}") from error
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise ConfigError(
            f"{path}: no column {', '.join(missing)}; a profile has {', '.join(COLUMNS)}"
        )
    names = [str(name).strip() for name in table["node"]]
    layers = [str(layer).strip() for layer in table["layer"]]
    sizes = [str(size) for size in table["activation_bytes"]]
    _check_chain(path, names, layers, sizes)
    numbers = {column: _numbers(path, table, column) for column in COLUMNS[2:]}
    nodes: list[Node] = []
    for row, layer in enumerate(layers):
        if is_input(layer):
            continue
        values = {column: float(numbers[column][row]) for column in numbers}
        passing = nodes[-1].output_bytes if nodes and is_size(layer) else 0.0
        nodes.append(
            Node(
                name=f"{names[row]} {layer}",
                time_s=(values["forward_ms"] + values["backward_ms"]) / 1000.0,
                output_bytes=values["activation_bytes"] + passing,
                saved_bytes=values["activation_bytes"],
                parameter_bytes=values["parameter_bytes"],
            )
        )
    if not nodes:
        raise ConfigError(f"{path} holds no layer; a profile has one row for each")
    return Chain(tuple(nodes))


def _check_chain(
    path: Path, names: Sequence[str], layers: Sequence[str], sizes: Sequence[str]
) -> None:
    last, after_layer = -1, False
    for name, layer, size in zip(names, layers, sizes, strict=True):
        digits = re.search(r"[0-9]{1,18}$", name)
        number = int(digits[0]) if digits else last + 1
        wrong = None
        if is_input(layer) and after_layer:
            wrong = f"node {shown(name)} is an input after a layer"
        elif number <= last:
            wrong = f"node {shown(name)} comes after node {last}"
        elif _JOINING.fullmatch(layer) or size.lstrip().startswith("["):
            wrong = f"node {shown(name)}, {shown(layer)}, takes or gives several tensors"
        if wrong:
            raise ConfigError(
                f"{path}: {wrong}, so these rows are no chain in the order of the forward pass; "
                "hand in PipeDream's graph.txt itself, which has the edges"
            )
        last, after_layer = number, after_layer or not is_input(layer)


def _numbers(path: Path, table: pd.DataFrame, column: str) -> np.ndarray[Any, Any]:
    values = np.array([number_of(str(value)) for value in table[column]])
    wrong = np.flatnonzero(~(values >= 0))
    if wrong.size:
        row = int(wrong[0])
        raise ConfigError(
            f"{path}: node {table['node'].iloc[row]}: {column} is "
            f"{str(table[column].iloc[row])[:60]}; write a number that is 0 or more"
        )
    return values


def chain_of_profile(profile: Profile, batch_size: int | None = None) -> Chain:
    """The blocks of our profile at a batch size; times are interpolated between measured sizes.

    Raises:
        ConfigError: the profile holds no blocks, or the batch size lies outside the measured ones.
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
    batch_sizes, times_s = zip(*measured, strict=True)
    return float(np.interp(batch_size, batch_sizes, times_s))
