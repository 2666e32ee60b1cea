"""Cuts a network into the stages of a pipeline, for given replicas of each stage.

::

    balance    work, size, blocks   a table of blocks    |
               5+9                  by hand              |-> stages [[first, last, replicas], ...]
               profile              the site's profile   |

``work`` balances floating-point operations, which take most of a convolutional network's time and
need no measurement. Only a profile knows how long batch norm and ReLU take, and how fast a device
runs each kernel. Of blocks that only the table of an emulated device knows, ``work`` balances its
times. Tables of blocks: :func:`ddlbench.planning.block_costs.blocks_of`.

::

    blocks    | a | b | c | d | e | f |
    replicas  |   2   |   1   |   1   |       dearest stage: max over s of cost_s / r_s

``r_s`` replicas take every ``r_s``-th mini-batch each, so the stage costs ``cost_s / r_s`` of a
mini-batch. The dearest stage is the period of a pipeline without a bubble. Among the cuts with the
least period, the one that sends least is taken.

Unlike :func:`ddlbench.planning.partition.partition` this needs no profile and no links.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import making_command
from ddlbench.experiment.paths import links_file, profile_file
from ddlbench.experiment.profile import Profile, ProfileKey, read_profile
from ddlbench.experiment.status import Reason
from ddlbench.planning.block_costs import BlockCost
from ddlbench.planning.layer_table import known_block_count
from ddlbench.planning.pipeline import Stage
from ddlbench.planning.plan import BlockSource, Options, RuleText, Tried
from ddlbench.planning.tried_networks import tried_block_count

if TYPE_CHECKING:
    from ddlbench.planning.partition import Chain


def even_costs(
    costs: Iterable[float], sent: Iterable[float], replicas: Sequence[int]
) -> tuple[int, ...]:
    """Number of blocks of each stage that makes the dearest stage cheapest.

    ``costs`` are of each block, at least as many as stages; ``sent`` is what crosses a cut after
    each block. Both have any unit.
    """
    return _even_costs(tuple(costs), tuple(sent), tuple(replicas))


@lru_cache(maxsize=4096)
def _even_costs(
    costs: tuple[float, ...], sent: tuple[float, ...], replicas: tuple[int, ...]
) -> tuple[int, ...]:
    until = [0.0, *accumulate(costs)]

    def share(first: int, last: int, count: int) -> float:
        return (until[last] - until[first]) / count

    period, _ = _best(len(costs), replicas, share, max)
    within = period * (1 + 1e-12)  # sums of floats

    def leaves(first: int, last: int, count: int) -> float:
        if share(first, last, count) > within:
            return math.inf
        return sent[last - 1] if last < len(costs) else 0.0

    return _best(len(costs), replicas, leaves, operator.add)[1]


def _best(
    blocks: int,
    replicas: Sequence[int],
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """The least joined cost of all stages, and their lengths; the earliest cut among equal ones.

    ``cost`` takes a stage's first block, the block after its last, and its replicas.
    """
    first, *others = replicas
    # best[n]: the first n blocks in the stages so far, and the lengths of these.
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        n: (cost(0, n, first), (n,)) for n in range(1, blocks + 1)
    }
    for count in others:
        best = {
            n: min(
                (join(before, cost(k, n, count)), (*lengths, n - k))
                for k, (before, lengths) in best.items()
                if k < n
            )
            for n in range(min(best) + 1, blocks + 1)
        }
    return best[blocks]


def even_blocks(blocks: int, replicas: Sequence[int]) -> tuple[int, ...]:
    """About as many blocks for each replica, at least one; the first stages have one more."""
    devices = sum(replicas)
    each, more = divmod(blocks, devices)
    ends = [each * until + min(until, more) for until in accumulate(replicas)]
    return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))


@dataclass(frozen=True, kw_only=True)
class StageOptions(Options):
    """Options of every strategy that cuts a network into stages."""

    balance: Annotated[
        str | int, RuleText(r"^(work|size|blocks|profile|[1-9]\d*(\+[1-9]\d*)*)$"), Tried("profile")
    ] = "work"
    """How blocks are dealt to stages: 'work' evens out floating-point operations, 'size'
    parameters, 'blocks' their number, 'profile' measured times, '5+9' says it by hand. A network
    that is not built in takes 'profile'."""


Stages = tuple[Stage, ...]
Costs = Sequence[BlockCost]


class TooFewBlocks(ConfigError):  # noqa: N818 - what the plan lacks
    """The profile of the network has fewer blocks than there are stages."""


class NeedsProfile(ConfigError):  # noqa: N818 - what the plan asks for
    """The stages come from a profile, and the site is unknown or has no such profile."""


def why_no_stages(
    cell: Cell, balance: str, replicas: Sequence[int], costs: Costs | None
) -> str | None:
    """Why the network cannot be cut, as far as is known without a profile; None if it can.

    ``costs`` are of the network's blocks at the site; None if no table knows them.
    """
    count = _block_count(cell, costs)
    parts = balance.split("+")
    if parts[0].isdigit():
        return _why_not_dealt(cell, list(map(int, parts)), len(replicas), count)
    if costs is None and balance not in ("profile", "blocks"):
        return Reason(
            "unknown_blocks",
            f"balance {balance} reads a table of the built-in networks, and {cell.network} is not "
            "one of them; write balance: profile, balance: blocks, or the blocks of each stage, as "
            "balance: 5+9",
        )
    least = sum(replicas) if balance == "blocks" else len(replicas)
    if count is not None and count < least:
        return Reason(
            "too_few_blocks",
            f"{cell.network} has {counted(count, 'block')}, too few for {least} "
            f"{'devices' if balance == 'blocks' else 'stages'}; use fewer devices or replicate "
            "stages",
        )
    return None


def _block_count(cell: Cell, costs: Costs | None) -> int | None:
    """How many blocks the network has, as far as a table or an earlier trial tells."""
    if costs is not None:
        return len(costs)
    names = cell.network, cell.dataset
    return known_block_count(*names) or tried_block_count(*names)


def _why_not_dealt(cell: Cell, dealt: Sequence[int], stages: int, count: int | None) -> str | None:
    written = "+".join(map(str, dealt))
    if len(dealt) != stages:
        return Reason(
            "wrong_balance",
            f"balance {written} has {counted(len(dealt), 'part')} for {counted(stages, 'stage')}; "
            "write a number of blocks per stage, as 5+9",
        )
    if count is not None and sum(dealt) != count:
        return Reason(
            "wrong_balance",
            f"balance {written} deals {counted(sum(dealt), 'block')}, {cell.network} has {count}",
        )
    return None


def stages_of(
    cell: Cell,
    balance: str,
    replicas: Sequence[int] | None,
    costs: Costs | None,
    *,
    source: BlockSource,
    samples: int | None = None,
) -> tuple[Stages, float | None]:
    """The stages of a cell to which :func:`why_no_stages` has no objection.

    Args:
        cell: the cell.
        balance: the rule.
        replicas: of each stage; None if PipeDream's partitioner chooses them, which requires
            balance ``profile``.
        costs: of the network's blocks at the site; None if no table knows them.
        source: a site whose profile and links are read, or a function that gives the blocks.
        samples: of one forward pass, at which times are read; by default a whole mini-batch.

    Returns:
        The stages, and the partitioner's seconds per mini-batch if it made them.

    Raises:
        NeedsProfile: no site is given, or it has no profile of the network.
        ConfigError: a file is wrong, or no partition exists.
    """
    if balance == "profile":
        chain = measured_chain(cell, source, samples or cell.batch_size)
        if replicas is None:
            if callable(source):
                raise NeedsProfile(
                    "PipeDream's partitioner needs measured links, which data sheets lack; write "
                    "the replicas of each stage (pipedream.replicas=1+1)"
                )
            from ddlbench.planning.partition.stages import partition_at  # noqa: PLC0415 - of few

            best = partition_at(cell, chain, _profile(cell, source), str(source))
            return best.stages, best.period_s
        check_enough(cell, len(chain), len(replicas))
        times = [node.time_s for node in chain.nodes]
        counts = even_costs(times, [node.output_bytes for node in chain.nodes], replicas)
        return _stages(counts, replicas), None
    assert replicas is not None
    return _stages(_counts(cell, balance, replicas, costs), replicas), None


def _counts(
    cell: Cell, balance: str, replicas: Sequence[int], costs: Costs | None
) -> tuple[int, ...]:
    parts = balance.split("+")
    if parts[0].isdigit():
        return tuple(map(int, parts))
    if balance == "blocks":
        count = _block_count(cell, costs)
        if count is None:
            raise ConfigError(
                f"balance blocks needs the number of blocks of {cell.network}, which was not tried "
                "here; try it with: ddlbench plan, or write balance: profile"
            )
        check_enough(cell, count, sum(replicas))
        return even_blocks(count, replicas)
    assert costs is not None
    chosen = [cost.work if balance == "work" else cost.parameter_bytes for cost in costs]
    return even_costs(chosen, [cost.output_bytes for cost in costs], replicas)


def _stages(counts: Sequence[int], replicas: Sequence[int]) -> Stages:
    ends = pairwise([0, *accumulate(counts)])
    return tuple(Stage(a, b, count) for (a, b), count in zip(ends, replicas, strict=True))


def check_enough(cell: Cell, blocks: int, stages: int) -> None:
    """Raises TooFewBlocks unless there is a block for every stage."""
    if blocks < stages:
        have = "is one block" if blocks == 1 else f"has {blocks} blocks"
        raise TooFewBlocks(f"{cell.network} {have}, too few for {stages} stages")


def measured_files(cell: Cell, site: str, with_links: bool = False) -> tuple[Path, ...]:
    """Files of a site from which stages with balance ``profile`` are planned."""
    profile = profile_file(site, ProfileKey.of(cell).id)
    return (profile, links_file(site, cell.fabric)) if with_links else (profile,)


def measured_chain(cell: Cell, source: BlockSource, samples: int) -> Chain:
    """The cell's blocks as a site measured them, at ``samples`` samples a pass.

    Raises:
        NeedsProfile: no site is given, or it has no profile of the network.
        ConfigError: the profile is wrong, or was not measured around that many samples.
    """
    from ddlbench.planning.partition.profiles import (  # noqa: PLC0415 - of few
        chain_of_blocks,
        chain_of_profile,
    )
    from ddlbench.planning.recomputation import RecomputedWorkload, recomputes  # noqa: PLC0415
    from ddlbench.planning.workload import Workload  # noqa: PLC0415 - of few

    if callable(source):
        return source(samples)
    profile = _profile(cell, source)
    chain = chain_of_profile(profile, samples)
    if not recomputes(cell):
        return chain
    blocks = RecomputedWorkload(Workload(profile.to_dict(), profile.profile_id)).blocks
    return replace(chain, nodes=chain_of_blocks(blocks, samples).nodes)


def _profile(cell: Cell, site: str | None) -> Profile:
    if site is None:
        raise NeedsProfile(
            f"balance profile of {cell.network} is planned from a site's measurements, and no site "
            "is given; plan it where the site is known, or write balance: work"
        )
    (path,) = measured_files(cell, site)
    if not path.is_file():
        raise NeedsProfile(
            f"balance profile needs the profile of {cell.network} on {cell.dataset} at site "
            f"{site}; make it with: {making_command(site, [path])}"
        )
    return read_profile(path)
