"""PipeDream: 1F1B without a flush, with weight versions and replicated stages.

::

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

Warm-up: how many mini-batches a stage accepts before its first backward pass.

Stage ``s`` has ``r_s`` replicas; global mini-batch ``g`` belongs to replica ``g mod r_s`` of every
stage. An all-reduce joins the replicas of a stage once in ``r_s`` mini-batches, so stage ``s``
returns its first gradient only after ``demand_s`` mini-batches have entered it::

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

Model parallelism: PipeDream without input pipelining, one mini-batch at a time.

::

    rank 0   F0             B0 . F1             B1 .         . update
    rank 1      F0       B0 .       F1       B1 .
    rank 2         F0 B0 .             F1 B1 .               one rank works at a time

The weights are never stale, one version is kept. Stages cannot be replicated: the replicas of a
stage would wait for each other, each for a mini-batch that the first stage does not admit yet.

Source: DDLBench (Jansen et al., 2020), figure 5, which runs PipeDream's runtime so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules.action import Action, InvalidSchedule, Schedule
from ddlbench.planning.schedules.assemble import passes, positive, with_messages
from ddlbench.planning.schedules.flushing import alternate


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
            own = range(replica, mini_batches, count)
            updates = -(-mini_batches // count)
            listed = only_rank in (None, stage_ranks[stage][replica])
            orders.append(_replica(stage, own, counts[stage], updates, count) if listed else [])
            in_flight.append(min(counts[stage] + 1, len(own)))
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


def _replica(stage: int, own: range, warmup: int, updates: int, replicas: int) -> list[Action]:
    order = alternate(passes("forward", stage, own), passes("backward", stage, own), warmup)
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

    ``only_rank`` as in :func:`~ddlbench.planning.schedules.pipedream.pipedream`.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(stages=stages)
    schedule = pipedream(
        (1,) * stages, mini_batches, warmup_counts=(0,) * stages, only_rank=only_rank
    )
    return replace(schedule, name="model-parallel")
