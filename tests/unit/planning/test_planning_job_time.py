"""A cell's job asks for the time of its data too, and what init writes fits the partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlbench.experiment.site import load_site
from ddlbench.planning.budget import SPARE_MINUTES, job_minutes, request, timeouts_within

HOUR_S = 3600


def site(stage_timeout_s, cell_timeout_s):
    example = load_site("slurm-example", as_example=True)
    return replace(example, stage_timeout_s=stage_timeout_s, cell_timeout_s=cell_timeout_s)


@pytest.mark.parametrize(
    ("stage_s", "cell_s", "minutes"), [(1800, 3600, 95), (60, 60, 7), (61, 90, 9), (1, 1, 7)]
)
def test_the_job_asks_for_its_data_the_cell_and_spare_minutes(stage_s, cell_s, minutes):
    """By hand: minutes rounded up, and five to spare."""
    resources = request(2, 4, site(stage_s, cell_s))
    assert resources.runtime_min == minutes
    assert job_minutes(site(stage_s, cell_s)) == minutes


@pytest.mark.parametrize(
    ("limit_s", "wished", "timeouts"),
    [
        (None, (1800, 3600), (1800, 3600)),
        (24 * HOUR_S, (1800, 3600), (1800, 3600)),
        (95 * 60, (1800, 3600), (1800, 3600)),  # to the minute
        (94 * 60, (1800, 3600), (29 * 60, 3600)),  # staging gives up time first
        (HOUR_S, (1800, 3600), (18 * 60, 37 * 60)),  # 55 minutes, a third of it for staging
        (5 * 24 * HOUR_S, (1800, 999_999), (1800, 429_900)),
        (HOUR_S, (100, 3600), (100, 53 * 60)),
        (60, (1800, 3600), (60, 60)),  # nothing fits
    ],
)
def test_timeouts_that_fit(limit_s, wished, timeouts):
    assert timeouts_within(limit_s, *wished) == timeouts


@pytest.mark.parametrize("limit_s", range((SPARE_MINUTES + 2) * 60, 3 * HOUR_S, 37))
def test_the_job_of_such_timeouts_fits_every_limit(limit_s):
    assert job_minutes(site(*timeouts_within(limit_s, 1800, HOUR_S))) * 60 <= limit_s
