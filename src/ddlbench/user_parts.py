"""The user's own networks and data, tried before any job, so that a mistake costs seconds.

::

    networks    built and run once in a process of their own; again only when their files change
    data        read and counted as the nodes will read it, where this machine sees the folder

Data is looked at in three ways::

    look                 counts, what is left out, and the digest of the data that lies there now
    with_other_data      cells whose result was measured with other data than that
    check_files          every file is opened once, and all bad ones are named
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TextIO

import click

from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError, printable
from ddlbench.common.quantities import counted, few
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.result import InvalidResult, read_result
from ddlbench.experiment.site import Site
from ddlbench.planning.expected_time import UserParts, finished_of
from ddlbench.planning.matrix import MatrixRow, more_images_or_fewer
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.planner import request_of
from ddlbench.planning.trainable import has_stages, why_never_trained
from ddlbench.planning.tried_networks import TRIED, key_of, network_digest, tried_before

if TYPE_CHECKING:
    from ddlbench.datasets.user_data import UserData
    from ddlbench.experiment.cell import Cell
    from ddlbench.experiment.dataset_spec import DataRequest

_Key = tuple[str, str]  # a dataset and a format


@dataclass(frozen=True)
class UserFolders:
    """What was seen of the data of some cells.

    Args:
        seen: by dataset and format.
        remarks: what this machine does not see, a sentence each.
    """

    seen: Mapping[_Key, UserData]
    remarks: tuple[str, ...] = ()

    def images(self, cells: Iterable[Cell]) -> dict[tuple[str, float], int]:
        """Training samples that are read, by dataset and scale."""
        return {
            (cell.dataset, cell.data_scale): self.seen[_key(cell)].train_samples(cell.data_scale)
            for cell in cells
            if _key(cell) in self.seen
        }

    def described(self) -> tuple[str, ...]:
        """A line for each dataset: samples, classes, and what is left out."""
        return tuple(f"{dataset}: {seen.described()}" for (dataset, _), seen in self.seen.items())

    def with_other_data(self, site: Site, cells: Iterable[Cell]) -> list[Cell]:
        """Cells with a result of other data than lies there now."""
        return [cell for cell in cells if self._has_other_data(site, cell)]

    def _has_other_data(self, site: Site, cell: Cell) -> bool:
        seen = self.seen.get(_key(cell))
        if seen is None:
            return False
        with suppress(InvalidResult, OSError):
            digest = read_result(result_file(site.name, cell.id)).own_data
            return digest not in (None, seen.digest)
        return False

    def other_data_remark(self, site: Site, cells: Iterable[Cell]) -> list[str]:
        """A sentence if cells were measured with other data."""
        others = self.with_other_data(site, cells)
        return _measured_with_other([cell.dataset for cell in others], "data", "lies there now")


def measured_with_other_code(site: Site, cells: Iterable[Cell]) -> list[Cell]:
    """Cells with a result of other code of their network than is here now."""
    now: dict[str, str | None] = {}
    others = []
    for cell in cells:
        digest = now.setdefault(cell.network, network_digest(cell.network))
        with suppress(InvalidResult, OSError):
            if digest is not None:
                then = read_result(result_file(site.name, cell.id)).inputs.network_digest
                if then not in (None, digest):
                    others.append(cell)
    return others


def other_code_remark(site: Site, cells: Iterable[Cell]) -> list[str]:
    """A sentence if cells were measured with other code of their network."""
    others = measured_with_other_code(site, cells)
    return _measured_with_other([cell.network for cell in others], "code", "is here now")


def _measured_with_other(names: Sequence[str], what: str, where: str) -> list[str]:
    """A sentence about cells, by their dataset or network, of other data or code; else none."""
    if not names:
        return []
    count, were = (f"{len(names)} cells", "were") if len(names) > 1 else ("1 cell", "was")
    return [
        f"{count} of {', '.join(dict.fromkeys(names))} {were} measured with other {what} than "
        f"{where}, and no ratio to cells of this {what} is drawn; to measure with this {what}: "
        f"ddlbench status forget --state other-{what}"
    ]


def _key(cell: Cell) -> _Key:
    return cell.dataset, cell.data_format


def look(site: Site, cells: Iterable[Cell], waiting: Collection[str] | None = None) -> UserFolders:
    """Look at the data of cells that read the user's own.

    Args:
        site: where they run.
        cells: of any data.
        waiting: ids of those that are still to be measured; None for all of them.

    Raises:
        ConfigError: data of a waiting cell lies on this machine and cannot be read. Data that no
            cell waits for gets a remark instead.
    """
    real = [cell for cell in cells if cell.data_source == "real"]
    if not real:
        return UserFolders({})
    from ddlbench.datasets.files import (  # noqa: PLC0415 - imports NumPy
        DataError,
        source_folder,
    )
    from ddlbench.datasets.user_data import inspect_user_data  # noqa: PLC0415

    seen: dict[_Key, UserData] = {}
    remarks: dict[str, None] = {}
    for cell in {_key(cell): cell for cell in real}.values():
        request = replace(request_of(cell, site), scale=1.0)
        where = f"data.{cell.dataset}" if request.spec.source else f"real_data.{cell.dataset}"
        root = None
        is_needed = waiting is None or any(
            other.id in waiting for other in real if _key(other) == _key(cell)
        )
        try:
            root = source_folder(request)
        except DataError as error:
            if site.launcher != "slurm" and is_needed:
                raise ConfigError(str(error)) from error
        if root is None or (site.launcher == "slurm" and not root.exists()):
            place = f"{root or request.source} ({cell.dataset})"
            remarks[f"{place} is not on this machine; the nodes will look at it"] = None
            continue
        try:
            seen[_key(cell)] = inspect_user_data(request)
        except DataError as error:
            if is_needed:
                raise ConfigError(f"{where}: {error}") from error
            remarks[f"{where}: {error}"] = None
    return UserFolders(seen, tuple(remarks))


@dataclass(frozen=True)
class CheckedData:
    """What was seen of one dataset, of which every file was opened.

    Args:
        dataset: its name.
        folder: where it lies.
        described: samples, classes and what is left out; None if it cannot be read as a whole.
        read: samples that can be read.
        faults: a sentence each.
    """

    dataset: str
    folder: str
    described: str | None
    read: int
    faults: list[str]


_ADVICE = ", and find others like it: ddlbench check --data"


def check_files(request: DataRequest) -> CheckedData:
    """Open every file of the user's own data once."""
    from ddlbench.datasets.files import DataError  # noqa: PLC0415 - numpy
    from ddlbench.datasets.user_data import faults, inspect_user_data  # noqa: PLC0415

    sentences: list[str] = []
    read = 0
    for fault in faults(request):
        if fault is None:
            read += 1
        else:
            sentences.append(printable(fault).removesuffix(_ADVICE))
    described = None
    try:
        described = printable(inspect_user_data(request).described())
    except DataError as error:
        if not sentences:
            sentences.append(printable(str(error)))
    return CheckedData(request.dataset, request.source, described, read, sentences)


_Pair = tuple[str, str]  # a network and a dataset
_TRY = ("-m", "ddlbench.common.program", "ddlbench.networks.factory")
_TRY_TIMEOUT_S = 600.0  # of a network; login nodes are busy
_QUIET_S = 5.0
_POLL_S = 0.05
_EVEN_SHARE = 0.5  # of the work; more than that leaves one of two stages waiting


def try_user_parts(site: Site, rows: Sequence[MatrixRow]) -> UserParts:
    """Try the user's own networks and data, before any job, where cells without a result use them.

    A network is built and run once, in a process of its own, and again only when its files change.

    Raises:
        ConfigError: a network or a folder of data cannot work; the sentence says why.
    """
    cells = [row.cell for row in rows if row.unsupported is None]
    not_built_in = [cell for cell in cells if cell.network not in NETWORKS.built_in]
    pairs = {(cell.network, cell.dataset) for cell in not_built_in}
    real = [cell for cell in cells if cell.data_source == "real"]
    if not pairs and not real:
        return UserParts()
    waiting = finished_of((c.id for c in cells), site.name).waiting(c.id for c in cells)
    used = {(cell.network, cell.dataset) for cell in cells if cell.id in waiting}
    remarks = dict.fromkeys(other_code_remark(site, not_built_in))
    tried = _try_networks(sorted(pairs & used), site, remarks)
    # Zero operations stand for a network whose operations cannot be counted.
    counted = {pair: int(answer["operations"]) for pair, answer in tried.items()}
    operations = {pair: count for pair, count in counted.items() if count}
    to_run = [cell for cell in cells if cell.id in waiting]
    remarks.update(dict.fromkeys(_network_remarks(tried, to_run)))
    folders = look(site, real, waiting)
    remarks.update(dict.fromkeys((*folders.remarks, *folders.other_data_remark(site, real))))
    images = folders.images(real)
    _check_counts(site, [cell for cell in real if cell.id in waiting], images)
    unsupported = dict(_unsupported(tried, to_run, site))
    return UserParts(operations, images, tuple(remarks), folders.described(), unsupported)


def _check_counts(
    site: Site, waiting: Sequence[Cell], images: Mapping[tuple[str, float], int]
) -> None:
    """Refuse cells whose mini-batch has more samples than are read."""
    for cell in waiting:
        count = images.get((cell.dataset, cell.data_scale))
        if count is not None and count < cell.batch_size:
            source = request_of(cell, site).source
            raise ConfigError(
                f"{cell.dataset}: {counted(count, 'training sample')} of {source} for a mini-batch "
                f"of {cell.batch_size}; {more_images_or_fewer(cell)}"
            )


def _network_remarks(
    tried: Mapping[_Pair, Mapping[str, Any]], waiting: Sequence[Cell]
) -> Iterator[str]:
    """What keeps strategies from being fast with a network, or the network from learning."""
    for network, dataset in dict.fromkeys((cell.network, cell.dataset) for cell in waiting):
        answer = tried.get((network, dataset))
        if answer is None:
            continue
        traits = NetworkTraits.from_dict(answer["traits"])
        of_pair = [c for c in waiting if (c.network, c.dataset) == (network, dataset)]
        block, share = answer.get("largest", ("", 0.0))
        if share > _EVEN_SHARE and any(has_stages(cell) for cell in of_pair):
            yield (
                f"{network} on {dataset}: {share:.0%} of its work is in block {block}, which "
                "cannot be cut, so stages cannot share it evenly"
            )
        # What some samples use must stay.
        unused = [name for name in traits.unused if name not in traits.irregular]
        if unused:
            yield (
                f"{network} on {dataset}: {few(unused)} get no gradient, for which ddp "
                "looks at each step; leave them out (auxiliary heads: aux_logits=false)"
            )
        if traits.normalised_by:
            yield (
                f"{network} on {dataset}: its outputs pass a {traits.normalised_by}; the loss, "
                "cross entropy, has a softmax of its own, so the network learns slowly; leave it "
                "out of the network"
            )


def _unsupported(
    tried: Mapping[_Pair, Mapping[str, Any]], waiting: Sequence[Cell], site: Site
) -> Iterator[tuple[str, str]]:
    """Ids of the cells that cannot train their network, and why."""
    for cell in waiting:
        answer = tried.get((cell.network, cell.dataset))
        traits = None if answer is None else NetworkTraits.from_dict(answer["traits"])
        if traits is not None and (why := why_never_trained(cell, traits, site)) is not None:
            yield cell.id, why


def check_can_be_built(network: str, dataset: str, site: Site) -> None:
    """Try a user's or a library's network, where this machine can tell.

    Raises:
        ConfigError: it does not exist or cannot be built; the sentence says why.
    """
    if network not in NETWORKS.built_in:
        _try_networks([(network, dataset)], site, {})


def _try_networks(
    pairs: list[_Pair], site: Site, remarks: dict[str, None]
) -> dict[_Pair, dict[str, Any]]:
    """Operations of a sample's forward pass, and traits, of each pair of network and dataset.

    Nothing is tried where the nodes have another environment (a container) or take the network from
    a profile (an accelerator), or where no torch is.
    """
    elsewhere = site.container is not None or site.accelerator is not None
    if not pairs or elsewhere or importlib.util.find_spec("torch") is None:
        return {}
    tried = tried_before()
    keys = {pair: key_of(*pair) for pair in pairs}
    new = [pair for pair in pairs if keys[pair] not in tried]
    if new:
        try:
            for pair, answer in zip(new, _build_and_run(new), strict=True):
                if "operations" in answer:
                    tried[keys[pair]] = answer
                elif site.device == "cuda" and answer["on_cpu"]:
                    says = f"{answer['error']}; the CPU of this machine said so, a GPU may not"
                    remarks[says] = None
                else:
                    raise ConfigError(answer["error"])
        finally:  # what was tried before a fault is not tried again
            write_json(TRIED, tried)
    # Networks of earlier calls too: their cells tell how fast this site is. The newest comes last.
    answers = {}
    for key in (*tried, *keys.values()):
        if key in tried:
            network, dataset, _ = key.split()
            answers[network, dataset] = tried[key]
    return answers


def _build_and_run(pairs: Sequence[_Pair]) -> Iterator[dict[str, Any]]:
    """Build and run networks in a process of their own; its answer for each pair, as it comes.

    ::

        this process    reads a line        reads a line        ends the other
                          ^                   ^
        the other       network 1 .......... network 2 ...      prints what it likes, reads nothing

    Raises:
        ConfigError: the process ends early, or a network takes too long.
    """
    with TemporaryDirectory() as folder:
        file, errors = Path(folder) / "answers.jsonl", Path(folder) / "errors.txt"
        file.touch()
        command = [sys.executable, *_TRY, json.dumps(pairs), str(file)]
        with (
            errors.open("wb") as output,
            file.open(encoding="utf-8") as answers,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=_patient(),
            ) as process,
        ):
            try:
                for network, dataset in pairs:
                    line = _next_line(answers, process, f"{network} on {dataset}")
                    if not line:
                        why = _last_words(errors, process.wait())
                        raise ConfigError(f"{network}: the process that builds it ended: {why}")
                    yield json.loads(line)
                with suppress(subprocess.TimeoutExpired):  # what networks clean up at the end
                    process.wait(_QUIET_S)
            finally:
                process.kill()


def _last_words(errors: Path, status: int) -> str:
    """The last line of a process's errors, and its exit status if a signal ended it."""
    words = errors.read_text(errors="replace").strip().splitlines()[-1:]
    if status < 0 or not words:
        words.append(f"exit status {status}")
    return "; ".join(words)


def _next_line(answers: TextIO, process: subprocess.Popen[bytes], name: str) -> str:
    """The next whole line; empty if the process ended without it."""
    line, began_s, shown = "", time.monotonic(), False
    while True:
        has_ended = process.poll() is not None
        line += answers.readline()
        if line.endswith("\n"):
            return line
        if has_ended:
            return ""
        waited_s = time.monotonic() - began_s
        if waited_s > _TRY_TIMEOUT_S:
            raise ConfigError(
                f"{name}: not built and run within {_TRY_TIMEOUT_S / 60:g} minutes; download and "
                "compute nothing in the function, or try it where the machine is not busy"
            )
        if waited_s > _QUIET_S and not shown:
            click.echo(f"trying {name}, which is done once ...", err=True)
            shown = True
        time.sleep(_POLL_S)


def _patient() -> dict[str, str]:
    """The environment of a process whose threads do not compute while they wait for each other."""
    return {**os.environ, "OMP_WAIT_POLICY": "passive"}
