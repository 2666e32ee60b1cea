"""A device as data: a table per network, of the times and bytes of its blocks.

::

    config/accelerators/<device>/device.yaml                where its numbers come from
                                /<dataset>/<network>.csv    a row per block, in forward order

    block,parameters,buffer_bytes,output_bytes,...,forward_s_at_8,forward_s_at_16,backward_s_at_8,...
    conv1,weight=6912 bias=256,0,262144,...,0.0012,0.0023,0.0031,...

``parameters`` are the tensors of the block with their bytes, in the order in which a network
registers them. Outputs and what a forward pass saves are bytes of one sample. ``input_share`` and
``weight_share`` are the shares of the backward pass where a schedule runs its two halves apart;
both together may take longer than the pass (:mod:`ddlbench.planning.workload`). Times are seconds
of a pass at the batch size in the column's name; with one batch size they are in proportion.

Emulated accelerators take these times (:mod:`ddlbench.networks.emulated`). A table is parsed, never
executed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddlbench.common.document import csv_text, read_once, write_text
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.fits import Timing
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import Profile
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.workload import FLOAT32_BYTES, Block, Workload

_BYTES = ("buffer_bytes", "output_bytes", "saved_bytes")
_SHARES = ("input_share", "weight_share")
COLUMNS = ("block", "parameters", *_BYTES, *_SHARES)
_TIMES = re.compile(r"(forward|backward)_s_at_([1-9]\d{0,8})")
_NAME = re.compile(r"[\w-]{1,200}")
_TENSOR = re.compile(r"(\w{1,200})=([1-9]\d{0,14})", re.ASCII)
HOST_PARTS = "The optimiser and loading: they run on the host, as fast as it is."
"""What no table of a device has."""
_LARGEST = 1e15  # bytes or seconds; more is a mistake
_DIGITS = 9  # of a time: below the resolution of every timer


@dataclass(frozen=True)
class DeviceTable:
    """One network with one dataset on one device.

    Args:
        batch_sizes: at which all blocks were timed, ascending.
        blocks: in forward order.
        parameters: of each block, bytes of each of its tensors by name.
    """

    batch_sizes: tuple[int, ...]
    blocks: tuple[Block, ...]
    parameters: tuple[Mapping[str, int], ...]

    @property
    def parameter_bytes(self) -> int:
        return sum(block.parameter_bytes for block in self.blocks)

    @property
    def tensors(self) -> int:
        return sum(map(len, self.parameters))

    def pass_s(self, batch_size: float) -> tuple[float, float]:
        """Seconds of the forward pass and of the backward pass of all blocks."""
        return (
            sum(block.forward.at(batch_size) for block in self.blocks),
            sum(block.backward.at(batch_size) for block in self.blocks),
        )

    def faster(self, factor: float) -> DeviceTable:
        """The table of a device that takes every block's time divided by a factor."""
        blocks = (
            replace(
                block,
                forward=block.forward.divided(factor),
                backward=block.backward.divided(factor),
            )
            for block in self.blocks
        )
        return replace(self, blocks=tuple(blocks))


def table_for(accelerator: Accelerator, dataset: str, network: str) -> DeviceTable:
    """The table of a network on an emulated device.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    return read_table(accelerator.table_file(dataset, network), dataset)


@read_once(64)
def read_table(path: Path, dataset: str) -> DeviceTable:
    """Read and check the table of a network with that dataset.

    Raises:
        ConfigError: there is none, or it is wrong; the sentence names the line.
    """
    rows = _rows(path)
    header = next(rows, None)
    if header is None:
        raise ConfigError(f"{path} is empty; a table begins with the columns {_written(COLUMNS)}")
    _, columns = header
    batch_sizes = _batch_sizes(path, columns)
    blocks: list[Block] = []
    parameters: list[Mapping[str, int]] = []
    lines: dict[str, int] = {}
    entering = float(DATASETS[dataset].input_bytes) if dataset in DATASETS else 0.0
    for line, values in rows:
        where = f"{path}, line {line}"
        if len(values) != len(columns):
            raise ConfigError(
                f"{where} has {len(values)} values for {len(columns)} columns; write one each"
            )
        row = dict(zip(columns, values, strict=True))
        tensors = _tensors(row["parameters"], where)
        block = _block(row, tensors, batch_sizes, entering, where)
        if block.name in lines:
            raise ConfigError(
                f"{where}: block {block.name} is also in line {lines[block.name]}; "
                "give each block a name of its own"
            )
        lines[block.name] = line
        blocks.append(block)
        parameters.append(tensors)
        entering = block.output_bytes
    if not blocks:
        raise ConfigError(f"{path} holds no block; write a row for each")
    return DeviceTable(batch_sizes, tuple(blocks), tuple(parameters))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such table; make it with: ddlbench site accelerator "
            f"{path.parents[1].name} --site SITE, from profiles measured on the device"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; save the table as CSV in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for values in reader:
            if any(map(str.strip, values)):
                yield reader.line_num, [value.strip() for value in values]
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num} is no CSV: {error}") from None


def _batch_sizes(path: Path, columns: Sequence[str]) -> tuple[int, ...]:
    """Batch sizes by the columns of times.

    Raises:
        ConfigError: a column is missing, unknown, or there twice.
    """
    timed: dict[str, set[int]] = {"forward": set(), "backward": set()}
    for number, column in enumerate(columns):
        if column in columns[:number]:
            raise ConfigError(f"{path}: column {shown(column)} is there twice; leave one out")
        named = _TIMES.fullmatch(column)
        if named is not None:
            timed[named[1]].add(int(named[2]))
        elif column not in COLUMNS:
            raise ConfigError(
                f"{path}: {shown(column)} is no column of a table; it has {_written(COLUMNS)}, and "
                "forward_s_at_N and backward_s_at_N for each batch size N"
            )
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise ConfigError(f"{path}: column {missing[0]} is missing; add it")
    lacking = [
        f"{kind}_s_at_{size}"
        for kind, other in (("forward", "backward"), ("backward", "forward"))
        for size in sorted(timed[other] - timed[kind])
    ]
    if lacking:
        raise ConfigError(f"{path}: column {lacking[0]} is missing; add it")
    if not timed["forward"]:
        raise ConfigError(
            f"{path}: no column of times; add forward_s_at_N and backward_s_at_N, N the batch size"
        )
    return tuple(sorted(timed["forward"]))


def _written(columns: Sequence[str]) -> str:
    return ", ".join(columns)


def _tensors(text: str, where: str) -> dict[str, int]:
    tensors: dict[str, int] = {}
    for part in text.split():
        tensor = _TENSOR.fullmatch(part)
        if tensor is None or int(tensor[2]) % FLOAT32_BYTES:
            raise ConfigError(
                f"{where}: parameters: {shown(part)} is no tensor of float32; write its name and "
                "its bytes, as weight=7168"
            )
        if tensor[1] in tensors:
            raise ConfigError(f"{where}: parameters: {tensor[1]} is there twice; rename one")
        tensors[tensor[1]] = int(tensor[2])
    return tensors


def _block(
    row: Mapping[str, str],
    tensors: Mapping[str, int],
    batch_sizes: Sequence[int],
    entering: float,
    where: str,
) -> Block:
    if _NAME.fullmatch(row["block"]) is None:
        raise ConfigError(
            f"{where}: {shown(row['block'])} cannot be the name of a block; write letters, digits, "
            "- and _ only"
        )
    numbers = {column: _number(row, column, where) for column in (*_BYTES, *_SHARES)}
    if numbers["output_bytes"] < FLOAT32_BYTES:
        raise ConfigError(f"{where}: output_bytes is {row['output_bytes']}; write 4 or more")
    shares = [numbers[share] for share in _SHARES]
    if not any(shares):
        raise ConfigError(
            f"{where}: input_share {row['input_share']} and weight_share {row['weight_share']} are "
            "no shares of a backward pass; write numbers that are not both 0"
        )
    times = {
        kind: Timing.through(
            [(size, _number(row, f"{kind}_s_at_{size}", where)) for size in batch_sizes],
            f"{where}: {kind} pass",
        )
        for kind in ("forward", "backward")
    }
    return Block(
        name=row["block"],
        parameter_bytes=sum(tensors.values()),
        buffer_bytes=int(numbers["buffer_bytes"]),
        input_bytes=entering,
        output_bytes=numbers["output_bytes"],
        saved_bytes=numbers["saved_bytes"],
        forward=times["forward"],
        backward=times["backward"],
        input_share=numbers["input_share"],
        weight_share=numbers["weight_share"],
    )


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST:
        raise ConfigError(
            f"{where}: {column} is {shown(row[column])}; write a number that is 0 or more"
        )
    return value


def write_table(path: Path, table: DeviceTable) -> None:
    """Write a table atomically; :func:`read_table` gives the same."""
    kinds = ("forward", "backward")
    times = [f"{kind}_s_at_{size}" for kind in kinds for size in table.batch_sizes]
    rows: list[tuple[str, ...]] = [(*COLUMNS, *times)]
    for block, tensors in zip(table.blocks, table.parameters, strict=True):
        seconds = [
            timing.at(size)
            for timing in (block.forward, block.backward)
            for size in table.batch_sizes
        ]
        rows.append(
            (
                block.name,
                " ".join(f"{name}={size}" for name, size in tensors.items()),
                *(_exact(getattr(block, column)) for column in _BYTES),
                *(f"{getattr(block, share):.{_DIGITS}g}" for share in _SHARES),
                *(f"{value:.{_DIGITS}g}" for value in seconds),
            )
        )
    write_text(path, csv_text(rows))


def _exact(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def table_of_profile(profile: Profile, where: str) -> DeviceTable:
    """The blocks of a measured profile, at the batch sizes at which all of them were timed.

    Raises:
        ConfigError: blocks were not timed, or not at one batch size.
    """
    if not profile.blocks:
        raise ConfigError(f"{where}: blocks were not timed; measure the profile again")
    blocks = Workload(profile.to_dict(), where).blocks
    timed = [
        set(timing.measured_s) for block in blocks for timing in (block.forward, block.backward)
    ]
    batch_sizes = tuple(sorted(set.intersection(*timed)))
    if not batch_sizes:
        raise ConfigError(
            f"{where}: no batch size at which all blocks were timed; measure the profile again"
        )
    tensors: list[dict[str, int]] = [{} for _ in blocks]
    for tensor in profile.tensors:
        within = tensors[tensor.block]
        name = re.sub(r"\W", "_", tensor.name.partition(".")[2], flags=re.ASCII) or "weight"
        within[name if name not in within else f"{name}_{len(within)}"] = tensor.bytes
    return DeviceTable(batch_sizes, blocks, tuple(tensors))
