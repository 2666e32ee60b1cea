"""Pauses of a process, from planted ticks."""

from __future__ import annotations

import time

import pytest

from ddlbench.runtime.pauses import (
    SHORTEST_S,
    TICK_S,
    MeasuredTimes,
    Pause,
    PauseMeter,
    ProcessState,
    clock_s,
    within,
)


class Planted:
    """A clock and a process that a test moves by hand."""

    def __init__(self):
        self.now_s, self.cpu_s, self.stopped, self.gone = 1000.0, 5.0, False, False
        self.meter = PauseMeter(self.state, lambda: self.now_s)
        self.meter.tick()

    def state(self):
        return None if self.gone else ProcessState(self.stopped, self.cpu_s)

    def go(self, seconds=TICK_S, computing=1.0):
        """Tick after ``seconds``, of which the process computes a share (above 1: in threads)."""
        self.now_s += seconds
        self.cpu_s += seconds * computing
        self.meter.tick()

    def pauses(self):
        self.meter.finish()
        return [(pause.begin_s, pause.seconds) for pause in self.meter.pauses]


@pytest.fixture
def planted():
    return Planted()


@pytest.mark.parametrize("computing", [0.0, 0.5, 8.0])
def test_a_late_tick_of_an_idle_rank_is_a_pause(planted, computing):
    for _ in range(20):
        planted.go(computing=computing)
    begin_s = planted.now_s
    planted.go(15.0, computing=0.0)
    for _ in range(20):
        planted.go(computing=computing)
    assert planted.pauses() == [(begin_s + TICK_S, 15.0 - TICK_S)]


def test_what_a_rank_computed_until_the_tick_was_due_makes_no_difference(planted):
    for _ in range(20):
        planted.go(computing=16.0)
    planted.cpu_s += 16.0 * TICK_S
    planted.go(4.0, computing=0.0)
    assert len(planted.pauses()) == 1


@pytest.mark.parametrize("computing", [0.5, 1.0, 8.0])
def test_a_late_tick_of_a_rank_that_computes_on_is_none(planted, computing):
    for _ in range(20):
        planted.go(computing=computing)
    planted.go(5.0, computing=computing)
    assert planted.pauses() == []


def test_a_tick_that_is_a_little_late_is_none(planted):
    planted.go(TICK_S + SHORTEST_S - 0.1, computing=0.0)
    assert planted.pauses() == []


def test_a_rank_that_is_stopped_alone_is_a_pause_of_its_length(planted):
    planted.go()
    planted.stopped = True
    for _ in range(12):
        planted.go(computing=0.0)
    planted.stopped = False
    planted.go()
    assert planted.pauses() == [(1000.0 + 2 * TICK_S, 12 * TICK_S)]


def test_a_rank_that_is_stopped_for_a_moment_is_none(planted):
    planted.stopped = True
    planted.go(computing=0.0)
    planted.stopped = False
    planted.go()
    planted.go()
    assert planted.pauses() == []


def test_a_rank_that_stays_stopped_behind_the_guard_is_one_pause(planted):
    """SLURM stops and continues the processes of a job one after the other."""
    planted.go()
    planted.stopped = True
    planted.go(computing=0.0)
    planted.go(10.0, computing=0.0)
    planted.go(computing=0.0)
    planted.stopped = False
    planted.go(computing=0.0)
    planted.go()
    ((begin_s, seconds),) = planted.pauses()
    assert begin_s == 1000.0 + 2 * TICK_S
    assert seconds == 10.0 + 2 * TICK_S


def test_two_pauses_are_two(planted):
    for _ in range(2):
        planted.go(3.0, computing=0.0)
        planted.go()
    assert [seconds for _, seconds in planted.pauses()] == [3.0 - TICK_S] * 2


def test_a_rank_that_is_gone_pauses_no_more(planted):
    planted.gone = True
    planted.go()
    planted.go()
    assert planted.pauses() == []


def test_only_measured_steps_count():
    pauses = [Pause(10.0, 5.0), Pause(30.0, 4.0)]
    assert within(pauses, [(0.0, 9.0), (16.0, 29.0)]) == ()
    assert within(pauses, [(0.0, 12.0), (12.0, 20.0)]) == (Pause(10.0, 2.0), Pause(12.0, 3.0))
    assert within(pauses, [(33.9, 50.0)]) == ()  # less than is known of its end
    assert within(pauses, [(0.0, 50.0)]) == tuple(pauses)


def test_stretches_of_measured_steps():
    times = MeasuredTimes()
    before_s = clock_s()
    for _ in range(2):
        with times:
            pass
    ends = [end for stretch in times.stretches for end in stretch]
    assert ends == sorted(ends)
    assert before_s <= ends[0]
    assert ends[-1] <= clock_s()
    assert times.from_s == pytest.approx(time.time(), abs=60)
