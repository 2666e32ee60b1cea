"""Read the JSON of NVIDIA's nccl-tests (``all_reduce_perf -J out.json``, version 2.17 on).

Facts from its source (nccl-tests, ``src/util.cu``, version 2 of the JSON):

* each function writes the same values to the text and to the JSON, so that this module puts the
  JSON into the lines of the text, and :mod:`.nccl_tests` reads these with all its checks;
* times are microseconds, ``alg_bw`` and ``bus_bw`` GB/s, ``nwrong`` is null without a check;
* ``devices`` has the first device of each process only. A process has ``nthreads`` times
  ``ngpus`` of them, with the ranks that follow;
* ``cpu_time`` stands for ``time`` where the program reports the time of the processor (``-C 1``);
* ``out_of_place`` is null where only in-place times were measured;
* nothing but ``args`` names the program, and ``end_time`` is written at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ddlbench.common.captured_text import JsonObject, json_at
from ddlbench.common.errors import ConfigError, shown
from ddlbench.interconnect.nccl_tests import NcclTest, NoWholeRowError, parse_nccl_tests

_REMEDY = "run the test again with -J FILE, or give the text that it printed"
_NO_TIMES = " " * 40
_MOST_DEVICES = 1024  # of a process


def is_nccl_json(text: str) -> bool:
    """Whether a text is JSON with the version of NCCL and the command, as nccl-tests begins it."""
    return text.lstrip().startswith("{") and '"nccl_version"' in text and '"args"' in text


def parse_nccl_json(text: str, where: str, operation: str | None = None) -> NcclTest:
    """Parse the JSON of one test.

    Args:
        text: of the file.
        where: its name, for messages.
        operation: of the test, where the file is not to tell.

    Raises:
        ConfigError: the JSON is cut off, lacks results or devices, or is of no known operation.
    """
    value, _ = json_at(text.index("{"), text, where, "all_reduce_perf -J FILE")
    lines = list(_lines(JsonObject(value, where, _REMEDY)))
    try:
        return parse_nccl_tests("\n".join(lines), where, operation)
    except NoWholeRowError:
        raise ConfigError(
            f"{where}: none of its results has a time that fits its size and rate; {_REMEDY}"
        ) from None


def _lines(document: JsonObject) -> Iterator[str]:
    """What the test printed."""
    args, config = document.take("args", list), document.inner("config")
    yield f"# Collective test starting: {PurePath(str(args[0])).name if args else ''}"
    yield "# nThread {} nGpus {}".format(*(config.take(key, int) for key in ("nthreads", "ngpus")))
    yield from _rank_lines(config)
    results = [(row, list(_halves(row))) for row in document.each("results")]
    keys = {_time_key(half) for _, halves in results for half in halves if half is not None}
    yield f"# size count type redop root {' '.join(keys).replace('_', '')}"
    for row, halves in results:
        head = [row.take("size", int), row.take("count", int)]
        head += [row.take(key, str) for key in ("type", "redop", "root")]
        yield " ".join(map(str, head)) + " " + " ".join(map(_numbers, halves))
    failed = document.value.get("out_of_bounds")
    if isinstance(failed, dict) and failed.get("count"):
        yield f"# Out of bounds values : {failed['count']} FAILED"
    if "end_time" in document.value:
        yield "# Avg bus bandwidth :"


def _rank_lines(config: JsonObject) -> Iterator[str]:
    """A line per rank; the devices listed are the first ones of their processes."""
    devices = list(config.each("devices"))
    of_process = config.take("nthreads", int) * config.take("ngpus", int)
    if not 0 < of_process <= _MOST_DEVICES:
        raise ConfigError(f"{config.where}: nthreads x ngpus is {shown(of_process)}; {_REMEDY}")
    if any(device.take("rank", int) % of_process for device in devices):
        of_process = 1  # all are listed
    for device in devices:
        host, name = device.take("hostname", str), device.take("device_info", str)
        group, pid = (device.take(key, int) for key in ("group", "pid"))
        for place in range(of_process):
            rank, number = (device.take(key, int) + place for key in ("rank", "device"))
            yield f"# Rank {rank} Group {group} Pid {pid} on {host} device {number} [] {name}"


def _halves(row: JsonObject) -> Iterator[JsonObject | None]:
    """The times out of place and in place; None for those that were not measured."""
    for key in ("out_of_place", "in_place"):
        yield row.inner(key) if row.value.get(key) is not None else None


def _numbers(half: JsonObject | None) -> str:
    if half is None:
        return _NO_TIMES
    words = [half.take(key, float, int, str) for key in (_time_key(half), "alg_bw", "bus_bw")]
    wrong = half.take("nwrong", float, int) if half.value.get("nwrong") is not None else None
    return " ".join(map(str, [*words, "N/A" if wrong is None else int(wrong)]))


def _time_key(half: JsonObject) -> str:
    return "cpu_time" if "cpu_time" in half.value else "time"
