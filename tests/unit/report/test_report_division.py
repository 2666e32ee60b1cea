"""PipeDream's mini-batches: who gets which in the release, the thesis and this project."""

from __future__ import annotations

from itertools import chain, product

import pytest
from figure_checks import assert_no_overlap, assert_readable

from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules import InvalidSchedule, pipedream
from ddlbench.planning.schedules.check import (
    mini_batches_of,
    release_receives,
    thesis_per_loader,
    why_release_stops,
)
from ddlbench.report.style import style
from ddlbench.report.timeline.figure import Lesson, division_sentences, draw_schedule, show_division

PIPELINES = [
    replicas
    for stages in (2, 3, 4)
    for replicas in product(range(1, 8), repeat=stages)
    if sum(replicas) <= 8
]


def test_3_2_stops_and_is_mended_as_in_the_thesis() -> None:
    """Nine mini-batches stop the release; six of them divide, three by three (Fig. 7.3)."""
    assert why_release_stops((3, 2), 3) == "9 mini-batches over 2 replicas of stage 1 leave 1"
    assert thesis_per_loader((3, 2), 3) == 2
    assert why_release_stops((3, 2), 2) == ""
    received = [release_receives((3, 2), 1, replica, 2) for replica in range(2)]
    assert received == [[0, 2, 4], [1, 3, 5]]
    # The senders that the release's messaging schedule visits: 0, 2, 1 and 1, 0, 2.
    assert [[number % 3 for number in ids] for ids in received] == [[0, 2, 1], [1, 0, 2]]


def test_our_schedule_divides_3_2_as_the_mended_release_does() -> None:
    release = [release_receives((3, 2), stage, i, 2) for stage, i in
               ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))]  # fmt: skip
    assert mini_batches_of(pipedream((3, 2), 6)) == release
    assert mini_batches_of(pipedream((3, 2), 9))[3:] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def test_the_thesis_mends_all_but_ten_of_154_pipelines() -> None:
    stop = [r for r in PIPELINES if why_release_stops(r, thesis_per_loader(r, 12))]
    assert len(PIPELINES) == 154
    assert len(stop) == 10
    assert {(1, 2, 4), (1, 3, 3), (1, 4, 2), (2, 3, 3)} <= set(stop)


@pytest.mark.parametrize("replicas", PIPELINES[::7])
def test_no_mini_batch_is_lost_or_computed_twice(replicas) -> None:
    per_loader = thesis_per_loader(replicas, 24)
    whole = list(range(per_loader * replicas[0]))
    for stage, count in enumerate(replicas):
        if not why_release_stops(replicas, per_loader):
            got = [release_receives(replicas, stage, i, per_loader) for i in range(count)]
            assert sorted(chain.from_iterable(got)) == whole
            assert {len(ids) for ids in got} == {len(whole) // count}
        else:
            with pytest.raises(InvalidSchedule, match="leave"):
                release_receives(replicas, stage, 0, per_loader)


def test_the_picture_has_what_each_of_them_does() -> None:
    lesson = Lesson("pipedream", stages=2, batches=9, replicas=(3, 2), division=True)
    release, thesis, here = show_division(lesson)
    assert release.window.planned is None
    assert "stops before the first pass" in release.heading
    assert release.not_planned == why_release_stops((3, 2), 3)
    numbers = [{box.mini_batch for box in shown.window.planned.boxes} for shown in (thesis, here)]
    assert numbers == [set(range(6)), set(range(9))]
    assert "other mini-batches" not in " ".join(division_sentences(lesson))
    elsewhere = Lesson("pipedream", stages=2, batches=8, replicas=(4, 2), division=True)
    assert "other mini-batches" in " ".join(division_sentences(elsewhere))


@pytest.mark.parametrize(
    ("lesson", "says"),
    [
        (Lesson("gpipe", division=True), "--division: gpipe has no replicas of a stage"),
        (Lesson("pipedream", stages=2, batches=8, replicas=(3, 2)), "write a multiple of 3"),
        (Lesson("pipedream", stages=3, batches=6, replicas=(3, 2)), "leave --stages out"),
    ],
)
def test_numbers_that_do_not_fit_are_one_sentence(lesson, says) -> None:
    with pytest.raises(ConfigError, match=says):
        show_division(lesson)


@pytest.mark.parametrize("replicas", [(3, 2), (2, 3, 3), (1, 3), (7, 1)])
def test_the_picture_can_be_read(replicas) -> None:
    lesson = Lesson(
        "pipedream", stages=len(replicas), batches=3 * replicas[0], replicas=replicas, division=True
    )
    with style():
        figure, _ = draw_schedule(lesson)
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)


def test_too_few_mini_batches_are_said_so() -> None:
    lesson = Lesson("pipedream", stages=2, batches=1, replicas=(1, 3), division=True)
    release, thesis, _ = show_division(lesson)
    assert "leave 1" in release.not_planned
    assert "too few" in thesis.not_planned
