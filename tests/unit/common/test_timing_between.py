"""A whole step between measured batch sizes."""

import pytest

from ddlbench.common.fits import Timing

# 4 ms of launches hide the work of small batches; then 0.1 ms a sample.
KINKED = Timing.through([(b, max(4e-3, 1e-4 * b)) for b in (8, 16, 32, 64, 128)], "step")


@pytest.mark.parametrize("batch", [8, 32, 128])
def test_measured_sizes_are_exact(batch: int) -> None:
    assert KINKED.between(batch) == KINKED.measured_s[batch]


@pytest.mark.parametrize("batch", [12, 24, 96])
def test_between_them_a_step_follows_its_bend(batch: int) -> None:
    assert KINKED.between(batch) == pytest.approx(max(4e-3, 1e-4 * batch))


@pytest.mark.parametrize(("outside", "end"), [(127.999 + 0.002, 128), (7.999, 8)])
def test_outside_them_it_begins_at_the_nearest(outside: float, end: int) -> None:
    assert KINKED.between(outside) == pytest.approx(KINKED.measured_s[end], rel=1e-3)


def test_a_line_goes_on_beyond_its_end() -> None:
    line = Timing.through([(b, 1e-3 + 1e-4 * b) for b in (8, 16, 32)], "step")
    assert line.between(64) == pytest.approx(7.4e-3)


def test_a_single_size_is_a_proportion() -> None:
    assert Timing.through([(8, 8e-3)], "step").between(4) == pytest.approx(4e-3)
