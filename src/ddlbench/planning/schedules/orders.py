"""The schedules of pipelines: the order of the passes of each rank.

Most flush: every step ends with an update, and the pipeline drains before it.

GPipe has all forward passes, then all backward passes (fill and drain)::

    rank 0   F0 F1 F2 F3                         B3 B2 B1 B0   update
    rank 1      F0 F1 F2 F3                B3 B2 B1 B0         update
    rank 2         F0 F1 F2 F3       B3 B2 B1 B0               update
    rank 3            F0 F1 F2 F3 B3 B2 B1 B0                  update

With m micro-batches on p equal stages m / (m + p - 1) of the time is work. A rank holds all m
micro-batches, unless it recomputes activations.

Source: GPipe (Huang et al., NeurIPS 2019), figure 2c, where backward passes start with the last
micro-batch; torch.distributed.pipelining starts with the first (``last_first=False``).

1F1B has a forward pass and a backward pass in turn::

    rank 0   F0 F1 F2 F3             B0 F4 B1 F5 B2    B3    B4    B5   update
    rank 1      F0 F1 F2          B0 F3 B1 F4 B2 F5 B3    B4    B5      update
    rank 2         F0 F1       B0 F2 B1 F3 B2 F4 B3 F5 B4    B5         update
    rank 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5               update

The bubble is GPipe's, m / (m + p - 1) of the time is work, but rank s holds only p - s
micro-batches.

Sources: PipeDream-Flush (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML
2021) and Megatron-LM (Narayanan et al., SC 2021), figure 4 above.

In interleaved 1F1B each rank holds several chunks of the network, so the pipeline fills sooner::

    stages    0  1  2  3  on ranks  0  1  0  1       (p = 2 ranks, v = 2 chunks, F3.2 = stage 2)

    rank 0    F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0
    rank 1         F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1

Micro-batches go in rounds of p: a round passes the first chunk, then the second, and backwards the
other way round. The bubble is v times shorter than 1F1B's, for v times the messages.

Source: Megatron-LM (Narayanan et al., SC 2021), section 2.2 and figure 4 below; the number of
rounds for micro-batches that p does not divide is torch.distributed.pipelining's.

In zero-bubble schedules the weights' share of a backward pass waits for an idle moment::

    backward B = I (gradient of the input, the rank before waits for it) + W (of the weights)

    rank 0   F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 ...
    rank 1      F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 ...          rank k lets k weight passes wait,
    rank 2         F0 F1 I0 F2 I1 F3 I2 W0 ...             and does them in the drain
    rank 3            F0 I0 F1 I1 F2 I2 F3 I3 W0 ...

A rank holds the activations of a micro-batch until its W. All ranks hold the same number.

Sources: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), schedule ZB-H1, on interleaved
stages as torch.distributed.pipelining has it (``ScheduleInterleavedZeroBubble``).

ZB-V has two chunks a rank, laid out as a V, so that the first rank also computes the loss::

    stages    0  1  2  3        forward passes go down the left arm of the V and up the right;
              7  6  5  4        rank r holds stages r and 2p - 1 - r        (p = 4)
    rank      0  1  2  3

    rank 0    F F F F F F F | f i w  f i w  f i w  f i w | F I W f i w ...   F, I, W of stage r
    rank 3    F | f F f F f F | f i w | F I W f i w ...                     f, i, w of the other

There is no bubble where F, I and W take equal time and messages none; a rank never holds more
than 2p halves, as much as 1F1B's first rank.

Source: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), section 6, in the four phases of
torch.distributed.pipelining (``ScheduleZBVZeroBubble``).

PipeDream is 1F1B without a flush, with weight versions and replicated stages::

    r = (1, 1, 1, 1), W = 3, 2, 1, 0         the update follows every backward pass
    rank 0   F0 F1 F2 F3          B0 F4 B1 F5 B2 F6 ...
    rank 1      F0 F1 F2       B0 F3 B1 F4 B2 F5 ...          steady state: no bubble
    rank 2         F0 F1    B0 F2 B1 F3 B2 F4 ...
    rank 3            F0 B0 F1 B1 F2 B2 F3 ...

    r = (2, 1, 1), W = 1, 1, 0               g runs on replica g mod r_s of stage s
    stage 0, replica 0   F0 F2          B0 . F4   B2 . F6 ...         . all-reduce of replicas
    stage 0, replica 1   F1 F3          B1 . F5   B3 . F7 ...
    stage 1                 F0 F1    B0 F2 B1 F3 ...
    stage 2                    F0 B0 F1 B1 F2 B2 ...

A replica's b-th mini-batch uses the weights after ``max(0, b - W_s)`` updates, forwards and
backwards, so ``W_s + 1`` versions are kept. Update t of a stage averages mini-batches
``t r_s .. (t + 1) r_s - 1``. In the last update, a replica without a mini-batch adds zeros, so no
mini-batch is dropped and no rank waits for ever.

A replica sends its gradient to the previous stage before it joins the all-reduce, so replicas that
wait for each other delay no other stage.

Sources: PipeDream (Narayanan et al., SOSP 2019), sections 3.2 and 3.3, figures 4 and 8. This
project differs in its warm-up (below), and routes by global number: the release's per-replica
counters need r_s r_{s+1} to divide the number of mini-batches.

PipeDream's warm-up is the number of mini-batches that a stage accepts before its first backward
pass. Stage ``s`` has ``r_s`` replicas; global mini-batch ``g`` belongs to replica ``g mod r_s`` of
every stage. An all-reduce joins the replicas of a stage once in ``r_s`` mini-batches, so stage
``s`` returns its first gradient only after ``demand_s`` mini-batches have entered it::

    demand_{S-1} = r_{S-1}
    demand_s     = r_s + r_s * ceil(demand_{s+1} / r_s)
    warm-up W_s  = demand_s / r_s - 1            (W_s + 1 mini-batches and weight versions)

    r = (1, 3, 1):  demand = 7, 6, 1   W = 6, 1, 0
                    released rule      W = 4, 1, 0  <- stage 0 stops before stage 1 has its 6

For pipelines that never widen this is the released rule, ``W_s + 1 = ceil(R_{>=s} / r_s)`` with
``R_{>=s}`` the ranks from stage ``s`` on, which for stage 0 is the paper's NOAM.

Sources: PipeDream (Narayanan et al., SOSP 2019), section 3.2, and ``runtime/runtime.py`` of its
release. The demand rule is this project's: with the released one and an all-reduce within the
backward pass, as torch's DDP has it, 25 of the 154 pipelines of 2 to 4 stages on up to 8 ranks
deadlock.

Model parallelism is PipeDream without input pipelining, one mini-batch at a time::

    rank 0   F0             B0 . F1             B1 .         . update
    rank 1      F0       B0 .       F1       B1 .
    rank 2         F0 B0 .             F1 B1 .               one rank works at a time

The weights are never stale, one version is kept. Stages cannot be replicated: the replicas of a
stage would wait for each other, each for a mini-batch that the first stage does not admit yet.

Source: DDLBench (Jansen et al., 2020), figure 5, which runs PipeDream's runtime so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules.schedule import (
    Action,
    InvalidSchedule,
    Kind,
    Schedule,
    positive,
    with_messages,
)


def _passes(kind: Kind, stage: int, micro_batches: Sequence[int]) -> list[Action]:
    """The same pass for several micro-batches of one stage."""
    return [Action(kind, stage, number) for number in micro_batches]


def _with_update(actions: Sequence[Action], stages: Sequence[int]) -> list[Action]:
    """Adds one update of each of a rank's stages at the end, for schedules that flush."""
    return [*actions, *(Action("update", stage, 0) for stage in stages)]


def gpipe(stages: int, micro_batches: int, last_first: bool = True) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    orders = []
    for stage in range(stages):
        forwards = _passes("forward", stage, numbers)
        backwards = _passes("backward", stage, numbers[::-1] if last_first else numbers)
        orders.append(_with_update([*forwards, *backwards], [stage]))
    return _one_stage_a_rank("gpipe", micro_batches, orders, (micro_batches,) * stages)


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    orders = []
    for stage in range(stages):
        forwards = _passes("forward", stage, numbers)
        backwards = _passes("backward", stage, numbers)
        order = alternate(forwards, backwards, stages - 1 - stage)
        orders.append(_with_update(order, [stage]))
    in_flight = tuple(min(micro_batches, stages - stage) for stage in range(stages))
    return _one_stage_a_rank("1f1b", micro_batches, orders, in_flight)


def _one_stage_a_rank(
    name: str, micro_batches: int, orders: list[list[Action]], in_flight: tuple[int, ...]
) -> Schedule:
    stage_ranks = _looped_ranks(len(orders), chunks=1)
    actions = with_messages(orders, stage_ranks)
    return Schedule(name, micro_batches, stage_ranks, actions, in_flight)


def alternate(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """``warmup`` forward passes, then one forward and one backward in turn, then the rest."""
    warmup = min(warmup, len(forwards))
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warmup :]


def interleaved_1f1b(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Args:
        ranks: processes.
        chunks: stages of each process; stage s is on rank ``s mod ranks``.
        micro_batches: a multiple of its number of rounds, ``max(1, micro_batches // ranks)``.

    Raises:
        InvalidSchedule: a count does not fit.
    """
    return looped(ranks, chunks, micro_batches, backward="backward", hop=2)


def looped(
    ranks: int,
    chunks: int,
    micro_batches: int,
    *,
    backward: Kind,
    hop: int,
    finish: Callable[[list[Action], int], list[Action]] | None = None,
) -> Schedule:
    """Chunks of a rank in rounds of micro-batches.

    Args:
        ranks: as of :func:`interleaved_1f1b`, whose errors it raises.
        chunks: likewise.
        micro_batches: likewise.
        backward: the pass that follows each forward pass in turn.
        hop: further forward passes before the first backward, for each rank before the last.
        finish: adds passes to the order of a rank, which then holds as many more as its number.
    """
    positive(ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise InvalidSchedule(
            f"{micro_batches} micro-batches do not divide into {rounds} rounds for {ranks} ranks; "
            f"write a multiple of {ranks}"
        )
    size, stage_ranks = micro_batches // rounds, _looped_ranks(ranks, chunks)
    orders, in_flight = [], []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = _round_order("forward", stages, micro_batches, size)
        backwards = _round_order(backward, stages[::-1], micro_batches, size)
        warmup = (chunks - 1) * size + hop * (ranks - 1 - rank)
        order = alternate(forwards, backwards, warmup)
        orders.append(_with_update(finish(order, rank) if finish else order, stages))
        in_flight.append(min(warmup + 1 + (rank if finish else 0), len(forwards)))
    actions = with_messages(orders, stage_ranks)
    return Schedule(
        "interleaved-1f1b", micro_batches, stage_ranks, actions, tuple(in_flight), receives_ahead=1
    )


def _round_order(kind: Kind, stages: range, micro_batches: int, size: int) -> list[Action]:
    return [
        Action(kind, stage, first + number)
        for first in range(0, micro_batches, size)
        for stage in stages
        for number in range(size)
    ]


def _looped_ranks(ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    return tuple((stage % ranks,) for stage in range(ranks * chunks))


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step; arguments and errors as of ``interleaved_1f1b``."""
    return replace(
        looped(
            ranks, chunks, micro_batches, backward="backward_input", hop=1, finish=_with_weights
        ),
        name="interleaved-zero-bubble",
        receives_ahead=ranks - 1,
    )


def _with_weights(order: list[Action], waiting: int) -> list[Action]:
    """Adds each weight pass ``waiting`` input passes after its own; the rest at the end."""
    result: list[Action] = []
    due: list[Action] = []
    for action in order:
        result.append(action)
        if action.kind == "backward_input":
            due.append(Action("backward_weight", action.stage, action.micro_batch))
            if len(due) > waiting:
                result.append(due.pop(0))
    return result + due


def zero_bubble_v(ranks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(ranks=ranks, micro_batches=micro_batches)
    last = 2 * ranks - 1
    stage_ranks = tuple((min(stage, last - stage),) for stage in range(last + 1))
    orders = []
    for rank in range(ranks):
        # The phases need 2p - 1 micro-batches; with fewer, the missing ones are left out.
        arms = _Arms(rank, last - rank, micro_batches)
        order = arms.order(rank, ranks, max(last, micro_batches))
        orders.append(_with_update(order, (rank, last - rank)))
    return Schedule(
        name="zero-bubble-v",
        micro_batches=micro_batches,
        stage_ranks=stage_ranks,
        actions=with_messages(orders, stage_ranks),
        in_flight=(min(2 * ranks, 2 * micro_batches),) * ranks,
        receives_ahead=1,
    )


class _Arms:
    """The passes of a rank's two stages; each kind counts from micro-batch 0.

    Those of micro-batches from ``kept`` on only count.
    """

    def __init__(self, down: int, up: int, kept: int) -> None:
        self._stages, self._kept = {"down": down, "up": up}, kept
        self._counts: Counter[tuple[str, str]] = Counter()
        self._order: list[Action] = []

    def _do(self, arm: str, *kinds: Kind) -> None:
        for kind in kinds:
            number = self._counts[arm, kind]
            self._counts[arm, kind] = number + 1
            if number < self._kept:
                self._order.append(Action(kind, self._stages[arm], number))

    def order(self, rank: int, ranks: int, micro_batches: int) -> list[Action]:
        for _ in range(2 * (ranks - rank) - 1):
            self._do("down", "forward")
        for _ in range(rank):
            self._do("up", "forward")
            self._do("down", "forward")
        for _ in range(ranks - rank):
            self._do("up", "forward", "backward_input", "backward_weight")
        started = 2 * ranks - 1 - rank  # forward passes of the down arm so far
        for number in range(started, started + micro_batches - ranks):
            if number < micro_batches:
                self._do("down", "forward")
            self._do("down", "backward_input", "backward_weight")
            self._do("up", "forward", "backward_input", "backward_weight")
        for _ in range(rank):
            self._do("down", "backward_input")
            self._do("up", "backward_input")
        for _ in range(ranks - rank):
            self._do("down", "backward_input", "backward_weight")
        for _ in range(rank):
            self._do("up", "backward_weight")
        for _ in range(rank):
            self._do("down", "backward_weight")
        return self._order


def warmups(replicas: Sequence[int], extra: int = 0) -> tuple[int, ...]:
    """Warm-up mini-batches of one replica of each stage, free of deadlock.

    Args:
        replicas: replicas of each stage, first stage first.
        extra: more mini-batches in flight on every stage but the last (and as many more as a
            stage's successor then needs). They hide waits for other replicas and cost as many
            weight versions.

    Raises:
        ConfigError: there is no stage, or a count is out of range.
    """
    check_replicas(replicas)
    if extra < 0:
        raise ConfigError(f"extra_warmup is {extra}; write 0 or more")
    counts = [0]
    least_demand = demand = replicas[-1]  # by the rule alone, and with the extra ones
    for count in reversed(replicas[:-1]):
        least = -(-least_demand // count)
        waiting = max(least + extra, -(-demand // count))
        least_demand, demand = count * (least + 1), count * (waiting + 1)
        counts.append(waiting)
    return tuple(reversed(counts))


def check_replicas(replicas: Sequence[int]) -> None:
    """Raises ConfigError unless every stage has at least one replica."""
    if not replicas or min(replicas) < 1:
        raise ConfigError(
            f"replicas {list(replicas)}: write one positive number for each stage, first to last"
        )


def pipedream(
    replicas: Sequence[int],
    mini_batches: int,
    extra_warmup: int = 0,
    warmup_counts: Sequence[int] | None = None,
    only_rank: int | None = None,
) -> Schedule:
    """The schedule of ``mini_batches`` mini-batches; ranks are numbered stage by stage.

    Args:
        replicas: of each stage, first to last.
        mini_batches: of all replicas together; any number.
        extra_warmup: more mini-batches in flight on every stage but the last.
        warmup_counts: warm-up of each stage instead of the rule's, for studying other rules;
            check such a schedule before it is run.
        only_rank: list the actions of this rank only, for one process of a long run; such a
            schedule can be run, but not checked or replayed.

    Raises:
        ConfigError: a count does not fit.
    """
    check_replicas(replicas)
    positive(mini_batches=mini_batches)
    counts = tuple(warmups(replicas, extra_warmup) if warmup_counts is None else warmup_counts)
    if len(counts) != len(replicas) or min(counts) < 0:
        raise InvalidSchedule(f"warm-ups {list(counts)}: write one, 0 or more, for each stage")
    stage_ranks, orders, in_flight = _ranks(replicas), [], []
    for stage, count in enumerate(replicas):
        for replica in range(count):
            numbers = range(replica, mini_batches, count)
            updates = -(-mini_batches // count)
            listed = only_rank in (None, stage_ranks[stage][replica])
            orders.append(_replica(stage, numbers, counts[stage], updates, count) if listed else [])
            in_flight.append(min(counts[stage] + 1, len(numbers)))
    return Schedule(
        name="pipedream",
        micro_batches=mini_batches,
        stage_ranks=stage_ranks,
        actions=with_messages(orders, stage_ranks),
        in_flight=tuple(in_flight),
        warmups=counts,
        receives_ahead=max(counts) + 1,  # as many as a sender can have under way
    )


def weight_version(schedule: Schedule, stage: int, mini_batch: int) -> int:
    """Number of updates in the weights that a mini-batch uses on a stage, both ways."""
    local = mini_batch // len(schedule.stage_ranks[stage])
    return max(0, local - schedule.warmups[stage])


def _ranks(replicas: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    starts = [sum(replicas[:stage]) for stage in range(len(replicas))]
    return tuple(
        tuple(range(start, start + count)) for start, count in zip(starts, replicas, strict=True)
    )


def _replica(stage: int, numbers: range, warmup: int, updates: int, replicas: int) -> list[Action]:
    order = alternate(
        _passes("forward", stage, numbers), _passes("backward", stage, numbers), warmup
    )
    actions: list[Action] = []
    done = 0
    for action in order:
        actions.append(action)
        if action.kind == "backward":
            actions += _update(stage, done, replicas)
            done += 1
    for number in range(done, updates):  # the tail: others have one mini-batch more
        actions += _update(stage, number, replicas)
    return actions


def _update(stage: int, number: int, replicas: int) -> list[Action]:
    sums = [Action("all_reduce", stage, number)] if replicas > 1 else []
    return [*sums, Action("update", stage, number)]


def model_parallel(stages: int, mini_batches: int, only_rank: int | None = None) -> Schedule:
    """The schedule of ``mini_batches`` mini-batches, with an update after each.

    ``only_rank`` as in :func:`pipedream`.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages)
    schedule = pipedream(
        (1,) * stages, mini_batches, warmup_counts=(0,) * stages, only_rank=only_rank
    )
    return replace(schedule, name="model-parallel")
