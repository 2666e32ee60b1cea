"""``ddlbench oracle partition``: cut a profiled network into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ddlbench.commands.options import JSON
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import BYTES, TIMES, counted, duration_text, in_one_unit
from ddlbench.common.screen import Number, WholeNumber, examples, paragraph, show, table
from ddlbench.planning.partition import (
    COST_MODELS,
    Chain,
    LayerGraph,
    Level,
    MemoryLimit,
    Partition,
    partition_graph,
    read_network,
    stage_memory_bytes,
)
from ddlbench.planning.partition import partition as cut
from ddlbench.planning.schedules.orders import warmups

LISTS = ("--machines", "--bandwidth")


class _ListCommand(click.Command):
    """A command whose list options may be written ``--machines 4 4`` (click wants one each)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _one_each(args))


def _one_each(args: Sequence[str]) -> list[str]:
    """``--machines 4 4`` as ``--machines 4 --machines 4``."""
    spread: list[str] = []
    current: str | None = None
    for arg in args:
        name, equals, value = arg.partition("=")
        if name in LISTS:
            current = name
            spread += [name, value] if equals else []
        elif current is not None and _is_number(arg):
            spread += [current, arg]
        else:
            if current is not None and current not in spread:
                spread.append(current)  # without a number: let click say so
            current = None
            spread.append(arg)
    if current is not None and current not in spread:
        spread.append(current)
    return spread


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@click.command(
    "partition",
    cls=_ListCommand,
    epilog=examples("ddlbench oracle partition graph.txt --machines 4 2 --bandwidth 32e9 5e9"),
)
@click.argument("profile", type=click.Path(path_type=Path))
@click.option(
    "--machines",
    type=WholeNumber(),
    multiple=True,
    required=True,
    metavar="N [N ...]",
    help="Devices of a node, then nodes, and so on outwards.",
)
@click.option(
    "--bandwidth",
    type=Number(),
    multiple=True,
    required=True,
    metavar="B [B ...]",
    help="Bytes per second of the links of each level.",
)
@click.option(
    "--cost-model",
    type=click.Choice(list(COST_MODELS)),
    default="released",
    show_default=True,
    help="The released optimizer's formula, or the paper's.",
)
@click.option("--straight", is_flag=True, help="A stage a device, no replication.")
@click.option("--memory-bytes", type=Number(), help="Memory of one device; no limit if left out.")
@click.option(
    "--optimizer-states",
    type=Number(0),
    default=1.0,
    show_default=True,
    help="Tensors as large as the weights that the optimizer keeps (SGD with momentum: 1).",
)
@click.option(
    "--extra-warmup",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    help="More mini-batches in flight than the schedule needs; counts towards memory.",
)
@click.option(
    "--batch-size",
    type=WholeNumber(1),
    help="Samples of a mini-batch (a .json profile only); the largest measured if left out.",
)
@JSON
def partition(
    *,
    profile: Path,
    machines: tuple[int, ...],
    bandwidth: tuple[float, ...],
    cost_model: str,
    straight: bool,
    memory_bytes: float | None,
    optimizer_states: float,
    extra_warmup: int,
    batch_size: int | None,
    as_json: bool,
) -> None:
    """Cut a profiled network into pipeline stages, as PipeDream does.

    PROFILE is a profile.json of this project, a table of config/accelerators, PipeDream's
    graph.txt, or a .csv table of a chain.

    A row is a stage: the layers of the profile that it runs, counted from 0 without its Input, and
    its replicas. JSON has [first, last, replicas], where last is the first layer of the next stage.
    Layers of a graph.txt are counted stage by stage, and named.
    """
    if len(machines) != len(bandwidth):
        raise ConfigError(
            f"--machines has {counted(len(machines), 'level')} and --bandwidth {len(bandwidth)}; "
            "write one bandwidth for each number of machines"
        )
    levels = [Level(count, link) for count, link in zip(machines, bandwidth, strict=True)]
    limit = None
    if memory_bytes is not None:
        limit = MemoryLimit(memory_bytes, optimizer_states, extra_warmup)
    network = read_network(profile, batch_size)
    names: list[list[str]] = []  # of the nodes in each stage; a chain has them in the file's order
    if isinstance(network, LayerGraph):
        chain, stages = partition_graph(network, levels, cost_model, straight, limit)
        inside = [chain.nodes[stage.first : stage.last] for stage in stages.stages]
        names = [[node.name for node in nodes] for nodes in inside]
    else:
        chain, stages = network, cut(network, levels, cost_model, straight, limit)
    terms = limit or MemoryLimit(float("inf"), optimizer_states, extra_warmup)
    values = stages.to_dict() | ({"nodes": names} if names else {})
    show(values, [*_lines(stages, chain, terms), *_holdings(names)], as_json=as_json)


def _lines(stages: Partition, chain: Chain, terms: MemoryLimit) -> list[str]:
    alone_s = float(chain.time_s[0, -1])
    speedup = f", {alone_s / stages.period_s:.2f}x one device" if stages.period_s else ""
    period = f"{duration_text(stages.period_s)} a mini-batch{speedup}"
    first = stages.stages[0]
    if len(stages.stages) == 1 and first.replicas > 1:
        period = f"1 stage, {first.replicas} replicas: this is data parallelism. {period}"
    headings = "> stage | layers | > replicas | > computing | > weights | > in flight | > memory"
    waiting = warmups(stages.replicas, terms.extra_warmup)
    memory = stage_memory_bytes(stages, chain, terms)
    inside = [(stage.first, stage.last - 1) for stage in stages.stages]
    rows = zip(
        [str(number) for number in range(len(stages.stages))],
        [f"{first} .. {last}" for first, last in inside],
        [str(stage.replicas) for stage in stages.stages],
        in_one_unit([float(chain.time_s[ends]) for ends in inside], TIMES),
        in_one_unit([float(chain.parameter_bytes[ends]) for ends in inside], BYTES),
        [str(waiting[number] + 1) for number in range(len(stages.stages))],
        in_one_unit([float(count) for count in memory], BYTES),
        strict=True,
    )
    below = "Of one device: computing a mini-batch, weights, mini-batches in flight, memory."
    return [*paragraph(period), *table(headings, rows), *paragraph(below)]


def _holdings(names: Sequence[Sequence[str]]) -> list[str]:
    """What each stage holds, ``node2 .. node9`` for names whose numbers follow each other."""
    lines: list[str] = []
    for number, held in enumerate(names):
        runs: list[list[str]] = []
        for name in held:
            if runs and _follows(runs[-1][-1], name):
                runs[-1].append(name)
            else:
                runs.append([name])
        texts = [run[0] if len(run) == 1 else f"{run[0]} .. {run[-1]}" for run in runs]
        lines += paragraph(f"Stage {number}: {', '.join(texts)}", hanging="  ")
    return lines


def _follows(name: str, after: str) -> bool:
    """Whether two names differ by one in the number at their end."""
    stem = name.rstrip("0123456789")
    digits, following = name[len(stem) :], after[len(stem) :]
    if not after.startswith(stem) or not (digits.isascii() and digits.isdecimal()):
        return False
    return len(digits) < 19 and following == str(int(digits) + 1)
