"""How long a cell's job asks to run: one answer for the request, ``init`` and ``doctor``.

::

    one SLURM job   | stage: stage_timeout_s | cell: cell_timeout_s | spare |

Rules ``stage`` and ``cell`` are one group. They run one after the other, so Snakemake adds up what
they ask for. The spare minutes start and end the processes and write the result.
"""

from __future__ import annotations

import math

from ddlbench.experiment.site import Site

__all__ = ["SPARE_MINUTES", "cell_minutes", "job_minutes", "stage_minutes", "timeouts_within"]

SPARE_MINUTES = 5


def stage_minutes(site: Site) -> int:
    """What rule ``stage`` asks for."""
    return math.ceil(site.stage_timeout_s / 60)


def cell_minutes(site: Site) -> int:
    """What rule ``cell`` asks for."""
    return math.ceil(site.cell_timeout_s / 60) + SPARE_MINUTES


def job_minutes(site: Site) -> int:
    """What the job of a cell asks for: both."""
    return stage_minutes(site) + cell_minutes(site)


def timeouts_within(
    limit_s: float | None, stage_timeout_s: float, cell_timeout_s: float
) -> tuple[int, int]:
    """Both timeouts in seconds, cut so that the job fits; whole minutes where they are cut.

    Staging gives up time first, down to a third of the job. No timeout is under a minute, so a job
    of less than two minutes and the spare ones never fits.

    Args:
        limit_s: of the partition; None where there is none.
        stage_timeout_s: as wished.
        cell_timeout_s: as wished.
    """
    if limit_s is None:
        return int(stage_timeout_s), int(cell_timeout_s)
    room = int(limit_s // 60) - SPARE_MINUTES
    cell = math.ceil(cell_timeout_s / 60)
    stage = min(math.ceil(stage_timeout_s / 60), max(room - cell, room // 3, 1))
    cell = min(cell, max(room - stage, 1))
    return min(int(stage_timeout_s), stage * 60), min(int(cell_timeout_s), cell * 60)
