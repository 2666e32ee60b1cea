"""How often to repeat, so that a profile takes about as long as it may."""

from __future__ import annotations

__all__ = ["SHARES", "passes", "steps_per_window"]

# Parts of the budget. Whole steps get most: the sequential predictor rests on them alone.
SHARES = {"steps": 0.5, "replicas": 0.2, "blocks": 0.18, "leaves": 0.12}

# A median of windows this long is no median of lucky moments: control groups that give a process
# part of a core stop it every 20 to 100 ms.
WINDOW_S = 0.2
_WINDOWS = 6  # the fewest that have a 95 % interval


def passes(share_s: float, pass_s: float, fewest: int, most: int) -> int:
    """Passes of ``pass_s`` seconds that fit into a share of the budget, within limits."""
    return max(fewest, min(most, int(share_s / max(pass_s, 1e-9))))


def steps_per_window(step_s: float, count: int) -> int:
    """Consecutive steps that make one sample of ``count`` steps of about ``step_s`` seconds."""
    long_enough = int(-(-WINDOW_S // max(step_s, 1e-9)))
    return max(1, min(long_enough, count // _WINDOWS))
