"""How many mini-batches a PipeDream stage takes in before its first backward pass.

``r_s`` replicas of stage ``s``; global mini-batch ``g`` belongs to replica ``g mod r_s`` of every
stage. The replicas of a stage meet in an all-reduce once in ``r_s`` mini-batches, so stage ``s``
gives its first gradient back only after ``demand_s`` mini-batches have entered it::

    demand_{S-1} = r_{S-1}
    demand_s     = r_s + r_s * ceil(demand_{s+1} / r_s)
    warm-up W_s  = demand_s / r_s - 1            (W_s + 1 mini-batches and weight versions)

    r = (1, 3, 1):  demand = 7, 6, 1   W = 6, 1, 0
                    released rule      W = 4, 1, 0  <- stage 0 stops before stage 1 has its 6

For pipelines that never widen this is the released rule, ``W_s + 1 = ceil(R_{>=s} / r_s)`` with
``R_{>=s}`` the ranks from stage ``s`` on, which for stage 0 is the paper's NOAM.

Sources: PipeDream (Narayanan et al., SOSP 2019), section 3.2, and ``runtime/runtime.py`` of its
release. The demand rule is this project's: with the released one, replicas that meet within the
backward pass, as torch's DDP does, wait for ever in 25 of the 154 pipelines of 2 to 4 stages on up
to 8 ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.experiment.errors import ConfigError

__all__ = ["check_replicas", "released_warmups", "warmups"]


def warmups(replicas: Sequence[int], extra: int = 0) -> tuple[int, ...]:
    """Warm-up mini-batches of one replica of each stage, free of deadlock.

    Args:
        replicas: replicas of each stage, first stage first.
        extra: more mini-batches in flight on every stage but the last (still more on a stage
            whose successor would otherwise ask for what it may not yet send); costs as many
            weight versions and hides the wait for other replicas.

    Raises:
        ConfigError: there is no stage, or a count is not what it must be.
    """
    check_replicas(replicas)
    if extra < 0:
        raise ConfigError(f"extra_warmup is {extra}; write 0 or more")
    found = [0]
    least_demand = demand = replicas[-1]  # by the rule alone, and with the extra ones
    for count in reversed(replicas[:-1]):
        least = -(-least_demand // count)
        waiting = max(least + extra, -(-demand // count))
        least_demand, demand = count * (least + 1), count * (waiting + 1)
        found.append(waiting)
    return tuple(reversed(found))


def released_warmups(replicas: Sequence[int]) -> tuple[int, ...]:
    """Warm-up counts of the released runtime: ``R_{>s} // r_s`` for each stage.

    The paper's NOAM rounds up, the release's code rounds ``(R - 1 - ranks before s) / r_s`` down;
    both are the same number.

    Raises:
        ConfigError: there is no stage, or a count is not what it must be.
    """
    check_replicas(replicas)
    ranks = sum(replicas)
    found = []
    for stage, count in enumerate(replicas):
        found.append((ranks - 1 - sum(replicas[:stage])) // count)
    return tuple(found)


def check_replicas(replicas: Sequence[int]) -> None:
    """Raise ConfigError unless every stage has at least one replica."""
    if not replicas or min(replicas) < 1:
        raise ConfigError(
            f"replicas {list(replicas)}: write one positive number for each stage, first to last"
        )
