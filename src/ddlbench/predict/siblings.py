"""What a measured step says of steps that are only predicted.

Predictions of one case err alike: what slows one pipeline down on a machine slows its siblings down
too. So a measured candidate moves the others::

    log step = log predicted + error        error ~ N(0, S R S)

    S    spread of each prediction (:mod:`ddlbench.predict.belief`)
    R    correlation of two errors: how alike the candidates are

    given the errors r of the measured ones M (each known to the spread of its runs, E):

    mean of the others      C_oM (C_MM + E)^-1 r
    covariance of them      C_oo - C_oM (C_MM + E)^-1 C_Mo           C = S R S

This is the regression that Gaussian processes make (Rasmussen and Williams 2006, eq. 2.22 to 2.24)
with the prediction as their mean. An error beyond three spreads counts as three: it tells of its
own candidate more than of the others. What stays correlated among the others is left out
afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ddlbench.predict.belief import Belief

SAME_FAMILY = 0.7
OTHER_FAMILY = 0.3
_LEAST_SPREAD = 0.01
_SURPRISE = 3.0  # spreads


def alike(families: Sequence[str]) -> np.ndarray:
    """Correlation of the errors of strategies, by family; an assumption until cells tell."""
    names = np.asarray(families)
    same = names[:, None] == names[None, :]
    matrix = np.where(same, SAME_FAMILY, OTHER_FAMILY).astype(float)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def informed(
    expected: Sequence[Belief], measured: Mapping[int, Belief], correlation: np.ndarray
) -> list[Belief]:
    """Beliefs after some candidates were measured.

    Args:
        expected: each candidate's step by its prediction alone.
        measured: what runs say, by the candidate's index.
        correlation: of the errors of predictions, (candidates, candidates).

    Returns:
        Measured candidates as they were measured; the others moved, and better known.
    """
    if not measured:
        return list(expected)
    spreads = np.array([belief.spread for belief in expected])
    covariance = correlation * np.outer(spreads, spreads)
    known = sorted(measured)
    errors = np.array([math.log(measured[i].step_s / expected[i].step_s) for i in known])
    noise = np.diag([measured[i].spread ** 2 for i in known])
    most = _SURPRISE * np.sqrt(np.diag(covariance)[known] + np.diag(noise))
    errors = np.clip(errors, -most, most)
    gain = np.linalg.solve(covariance[np.ix_(known, known)] + noise, covariance[known]).T
    shift = gain @ errors
    variance = np.diag(covariance) - np.einsum("ij,ji->i", gain, covariance[known])
    return [
        measured[i]
        if i in measured
        else replace(
            belief,
            step_s=belief.step_s * math.exp(shift[i]),
            spread=max(_LEAST_SPREAD, math.sqrt(max(0.0, variance[i]))),
        )
        for i, belief in enumerate(expected)
    ]
