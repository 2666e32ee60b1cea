"""Measured steps that something disturbed, and uneven ones that are as they should be."""

from __future__ import annotations

import numpy as np
import pytest
from cases.rank_reports import rank_report

from ddlbench.experiment.cell import Cell
from ddlbench.runtime.disturbance import WITHIN, disturbance_of, stalls
from ddlbench.runtime.pauses import Pause
from ddlbench.runtime.result import timing_of

CELL = Cell("mnist", "tiny", "ddp", batch_size=4, devices_per_node=2, epochs=1)


def even(steps=20, step_s=0.26):
    """Steps that differ by some per cent."""
    return [step_s * (1 + 0.05 * ((7 * step) % 5)) for step in range(steps)]


def with_stall(steps, at, seconds):
    return [*steps[:at], seconds, *steps[at + 1 :]]


def judged(step_s, cell=CELL, load_s=None, *, lossy=False, suspended_s=None, **changes):
    changes = {"steps_per_epoch": len(step_s) // cell.epochs, **changes}
    load_s = [0.0] * len(step_s) if load_s is None else load_s
    reports = [
        rank_report(step_s=tuple(step_s), load_s=tuple(load_s), **changes),
        rank_report(rank=1, step_s=tuple(even(len(step_s), 0.1)), load_s=tuple(load_s)),
    ]
    return disturbance_of(cell, reports, lossy=lossy, suspended_s=suspended_s)


def test_even_steps_are_not_disturbed():
    actual = judged(even())
    assert (actual.sentence, actual.stalled_steps) == (None, ())
    assert (actual.pauses.count, actual.pauses.total_s, actual.pauses.ranks) == (0, 0, ())


def test_one_stalled_step_is_named_with_its_neighbours():
    """As it was seen: 20 steps of 0.26 s, a job that was suspended for 15 s."""
    actual = judged(with_stall([0.26] * 20, 13, 15.1))
    assert actual.stalled_steps == (14,)
    assert actual.sentence == "step 14 took 15.1 s, its neighbours 0.26 s"


def test_the_last_step_has_neighbours_on_one_side():
    assert judged(with_stall(even(), 19, 15.1)).stalled_steps == (20,)


def test_several_stalls_are_counted():
    actual = judged(with_stall(with_stall(even(200), 20, 15.1), 24, 30.0))
    assert actual.stalled_steps == (21, 25)
    assert actual.sentence is not None
    assert actual.sentence.startswith("step 25 took 30 s")
    assert actual.sentence.endswith("(1 more took many times the usual)")


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        (even(), 2.0),  # not 8 times as long
        (even(20, 0.02), 0.9),  # not a second longer
        (even(2000), 15.1),  # not 5 % of the time
    ],
)
def test_what_changes_little_is_no_stall(steps, seconds):
    assert judged(with_stall(steps, 13, seconds)).sentence is None


@pytest.mark.parametrize("steps", [[0.2, 15.0], [0.2, 0.2, 15.0]])
def test_of_few_steps_nothing_is_said(steps):
    assert judged(steps).sentence is None


def test_four_steps_are_enough():
    assert judged([0.2, 0.2, 0.2, 15.0]).stalled_steps == (4,)


def test_lost_packets_are_what_is_measured():
    stalled = with_stall(even(), 13, 15.1)
    assert judged(stalled, lossy=True).sentence is None
    pauses = (Pause(1.0, 14.0),)
    assert judged(stalled, lossy=True, pauses=pauses).sentence == "rank 0 stood still for 14 s"


def test_the_first_step_of_every_epoch_may_be_long():
    cell = CELL.with_(epochs=4)
    steps = [5.0 if step % 10 == 0 else 0.26 for step in range(40)]
    assert judged(steps, cell).sentence is None
    assert judged(with_stall(steps, 20, 60.0), cell).stalled_steps == (21,)
    assert judged(with_stall(steps, 25, 60.0), cell).stalled_steps == (26,)


def test_the_first_step_after_each_checkpoint_may_be_long():
    cell = CELL.with_(checkpoint_every_steps=7)
    steps = [5.0 if step % 7 == 0 else 0.26 for step in range(40)]
    assert judged(steps, cell).sentence is None


def test_the_first_step_of_all_may_be_long():
    assert judged(with_stall(even(), 0, 15.1)).sentence is None


def test_long_steps_at_many_places_are_how_the_cell_is():
    assert judged([5.0 if step % 10 == 4 else 0.26 for step in range(100)]).sentence is None


@pytest.mark.parametrize("workers", [4, 8])
def test_batches_of_loading_processes_come_at_once(workers):
    cell = CELL.with_(loader_workers=workers)
    load_s = [4.0 if step % workers == 0 else 0.0 for step in range(7 * workers)]
    steps = [0.05 + seconds for seconds in load_s]
    assert judged(steps, cell, load_s).sentence is None
    at = 5 * workers + 1
    actual = judged(with_stall(steps, at, 60.0), cell, load_s)
    assert actual.stalled_steps == tuple(range(5 * workers + 1, 6 * workers + 1))
    assert actual.sentence is not None
    assert actual.sentence.startswith(f"steps {5 * workers + 1} to {6 * workers} took 6")


def test_rounds_are_compared_as_a_whole():
    cell = CELL.with_(strategy="local-sgd", options=(("average_every_steps", 5),))
    steps = [5.0 if step % 5 == 4 else 0.1 for step in range(40)]
    assert judged(steps, cell).sentence is None
    assert judged(with_stall(steps, 22, 60.0), cell).stalled_steps == (21, 22, 23, 24, 25)


def test_a_pipeline_without_a_flush_is_uneven():
    """A replica's update has no time of its own; the first one waits for the pipeline to fill."""
    cell = CELL.with_(strategy="pipedream", devices_per_node=4)
    steps = [8.0, 8.0, *[2.0, 0.1, 0.1, 0.1] * 10]
    assert judged(steps, cell).sentence is None
    assert judged(with_stall(steps, 22, 60.0), cell).stalled_steps == (21, 22, 23, 24)


def test_an_asynchronous_server_completes_mini_batches_at_once():
    cell = CELL.with_(strategy="parameter-server", devices_per_node=4, options=(("mode", "async"),))
    assert judged([4.0, 0.01, 0.01, 0.01] * 10, cell).sentence is None


def test_a_random_lognormal_run_is_not_disturbed():
    random = np.random.default_rng(20261201)
    for _ in range(200):
        assert stalls(random.lognormal(0, 0.4, 60), [WITHIN] * 60) == []


def test_pauses_name_the_ranks_and_the_longest():
    pauses = (Pause(1.0, 2.0), Pause(5.0, 3.0))
    actual = judged(even(200), pauses=pauses)
    assert (actual.pauses.count, actual.pauses.total_s, actual.pauses.ranks) == (2, 5.0, (0,))
    assert actual.sentence == "rank 0 stood still for 5 s"
    reports = [
        rank_report(rank=rank, step_s=(1.0,) * 20, load_s=(0.0,) * 20, pauses=pauses)
        for rank in range(2)
    ]
    both = disturbance_of(CELL, reports, lossy=False, suspended_s=None)
    assert both.sentence == "all 2 ranks stood still for 5 s"


def test_a_short_pause_in_a_long_run_is_told_but_no_reason():
    actual = judged(even(2000), pauses=(Pause(1.0, 2.0),))
    assert actual.pauses.total_s == 2.0
    assert actual.sentence is None


def test_slurm_s_seconds_count_like_a_pause():
    assert judged(even(), suspended_s=15.0).sentence == "SLURM suspended the job for 15 s"
    assert judged(even(), suspended_s=0.0).sentence is None
    assert judged(even(), suspended_s=None).suspended_s is None


def test_the_timing_holds_it_and_both_rates():
    steps = with_stall([0.25] * 20, 13, 15.25)
    report = rank_report(step_s=tuple(steps), load_s=(0.0,) * 20, steps_per_epoch=20)
    timing = timing_of(CELL, [report], "cpu")
    assert timing.samples_per_s == pytest.approx(4.0)
    assert timing.median_samples_per_s == pytest.approx(16.0)
    assert timing.stalled_steps == (14,)
    assert timing.disturbed == "step 14 took 15.2 s, its neighbours 0.25 s"
    assert timing.noisy is False  # the spread of the quartiles cannot tell
