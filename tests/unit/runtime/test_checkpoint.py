"""One rank's checkpoints in the timed loop, with an executor that only counts."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.runtime.checkpoint.rank import (
    Checkpointer,
    RefusedCheckpoint,
    open_checkpoints,
    write_state,
)
from ddlbench.runtime.checkpoint.store import (
    Order,
    journal_file,
    newest,
    rank_file,
    read_journal,
    read_set,
)
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.meters import Usage, mean_usage
from ddlbench.runtime.watchdog import Reporter
from ddlbench.strategies.executor import RunRecord, Unsupported

CPU = [torch.device("cpu")]
IDENTITY = {"ranks": 1}


class Counting:
    """Its state is the sum of all that it trained, and of a random number a step."""

    def __init__(self, progress=lambda _done: None):
        self.total = torch.zeros(1, dtype=torch.float64)
        self.runs: list[tuple[int, int]] = []
        self.progress = progress

    def run(self, first, count):
        self.runs.append((first, count))
        record = RunRecord()
        for done, number in enumerate(range(first, first + count), 1):
            self.total += number + torch.rand(1)
            record.ids.append(number)
            record.step_s.append(number / 8)
            record.load_s.append(0.0)
            record.loss.append(float(self.total))
            record.spans.append(("forward", number, 0.0, 1.0))
            self.progress(done)
        record.communication_wait_s = float(count)
        return record

    def details(self):
        return {"blocks_per_device": [3, 4]}

    def checkpoint_state(self):
        return {"total": self.total}

    def load_checkpoint_state(self, state):
        self.total.copy_(state["total"])


def order(folder: Path, run: str, resume: str | None = None) -> Order:
    return Order(str(folder), IDENTITY, run, resume, "ddlbench 1")


def checkpoints(folder, run, resume=None, *, rank=0, world_size=1, store=None) -> Checkpointer:
    return Checkpointer(order(folder, run, resume), rank, world_size, store, CPU)


def train(executor, extent, saved=None):
    return measure(executor, extent, CPU, 1, checkpoints=saved)


@given(
    st.integers(0, 3), st.integers(1, 4), st.integers(1, 9), st.integers(0, 12), st.integers(0, 5)
)
def test_segments_end_behind_checkpoints(warmup, epochs, steps, every, checkpoint):
    extent = Extent(warmup, epochs, steps, every)
    done = min(checkpoint * every, epochs * steps)
    segments = extent.segments(done)
    covered = [number for part in segments for number in part]
    assert covered == list(range(warmup + done, warmup + epochs * steps))
    ends = [part.stop - warmup for part in segments]
    if every:
        assert all(end % every == 0 for end in ends[:-1])
        assert all(len(part) <= every for part in segments)
    else:
        assert len(segments) <= 1


def test_without_checkpoints_the_measured_region_is_one_run():
    executor = Counting()
    actual = train(executor, Extent(2, 2, 5))
    assert executor.runs == [(0, 2), (2, 10)]
    assert (actual.steps, actual.measured.ids) == (10, list(range(2, 12)))


def test_a_resumed_run_ends_as_one_that_was_never_interrupted(tmp_path):
    extent = Extent(2, 2, 5, 3)
    torch.manual_seed(1)
    plain = Counting()
    expected = train(plain, Extent(2, 2, 5))

    torch.manual_seed(1)
    first = Counting()
    whole = train(first, extent, checkpoints(tmp_path, "1"))
    assert first.runs == [(0, 2), (2, 3), (5, 3), (8, 3), (11, 1)]
    assert whole.measured.loss == expected.measured.loss

    actual = newest(tmp_path, IDENTITY)
    assert (actual.steps, actual.folder.name) == (9, "step-00000009-1")
    assert len(list(tmp_path.glob("step-*"))) == 2
    second = Counting()
    saved = checkpoints(tmp_path, "2", resume="step-00000006-1")
    assert saved.fixed() == {"blocks_per_device": [3, 4]}
    again = train(second, extent, saved)
    assert second.runs == [(0, 2), (8, 3), (11, 1)]  # a rehearsal, then what was missing
    assert torch.equal(second.total, plain.total)
    for name in ("ids", "step_s", "load_s", "loss"):
        assert getattr(again.measured, name) == getattr(expected.measured, name), name
        assert getattr(again.warmup, name) == getattr(expected.warmup, name), name
    assert again.measured.communication_wait_s == 10.0
    assert again.measured.spans[0][1] == 8  # spans of the run before are by another clock
    report = saved.report()
    assert len(report.save_s) == 3
    assert report.bytes == rank_file(tmp_path / "step-00000009-2", 0).stat().st_size
    assert report.restore_s > 0


def test_a_checkpoint_behind_the_last_step_leaves_nothing_to_train(tmp_path):
    extent = Extent(1, 1, 4, 2)
    torch.manual_seed(1)
    first = Counting()
    train(first, extent, checkpoints(tmp_path, "1"))
    second = Counting()
    again = train(second, extent, checkpoints(tmp_path, "2", resume="step-00000004-1"))
    assert second.runs == [(0, 1)]
    assert torch.equal(second.total, first.total)
    assert (again.steps, len(again.measured.step_s)) == (4, 4)


def test_there_is_a_rehearsal_even_where_nothing_is_dropped(tmp_path):
    extent = Extent(0, 1, 4, 2)
    train(Counting(), extent, checkpoints(tmp_path, "1"))
    second = Counting()
    train(second, extent, checkpoints(tmp_path, "2", resume="step-00000002-1"))
    assert second.runs == [(0, 1), (2, 2)]


def test_rank_0_leaves_a_trail(tmp_path):
    reporter, extent = Reporter(8, 4), Extent(2, 1, 6, 4)
    seen = []

    def progress(done):
        reporter(done)
        actual = read_journal(journal_file(tmp_path))
        seen.append(actual and actual.steps)

    saved = checkpoints(tmp_path, "1")

    def rendezvous():
        reporter.phase_done(extent.warmup_steps)
        saved.follow(reporter, extent)

    measure(
        Counting(progress),
        extent,
        CPU,
        1,
        rendezvous,
        checkpoints=saved,
        segment_done=reporter.phase_done,
    )
    assert seen == [None, None, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_is_gone_leaves_the_set_torn(tmp_path, absent):
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=0.5))
    saved = checkpoints(tmp_path, "1", rank=1 - absent, world_size=2, store=store)
    executor = Counting()
    with pytest.raises(RuntimeError):
        train(executor, Extent(0, 1, 4, 2), saved)
    assert executor.runs == [(0, 0), (0, 2)]
    assert rank_file(tmp_path / "step-00000002-1", 1 - absent).is_file()
    assert newest(tmp_path, IDENTITY) is None


def test_no_rank_goes_on_before_the_set_is_complete(tmp_path):
    store = torch.distributed.HashStore()
    complete_at_return = []

    def train_and_save(rank):
        saved = checkpoints(tmp_path, "1", rank=rank, world_size=3, store=store)
        so_far = train(Counting(), Extent(0, 1, 2))
        saved.save(Counting(), so_far)
        complete_at_return.append(read_set(tmp_path / "step-00000002-1") is not None)

    ranks = [threading.Thread(target=train_and_save, args=(rank,)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
    assert complete_at_return == [True] * 3


class Narrow(Counting):
    def load_checkpoint_state(self, state):
        raise RuntimeError("size mismatch for head.weight:\n copying a param with shape [10]")


def test_a_state_that_does_not_fit_is_refused_in_one_line(tmp_path):
    extent = Extent(1, 1, 4, 2)
    train(Counting(), extent, checkpoints(tmp_path, "1"))
    saved = checkpoints(tmp_path, "2", resume="step-00000002-1")
    with pytest.raises(RefusedCheckpoint, match="does not fit this cell: size mismatch") as refused:
        train(Narrow(), extent, saved)
    assert "\n" not in str(refused.value)


def test_a_file_of_another_kind_is_refused(tmp_path):
    extent = Extent(1, 1, 4, 2)
    train(Counting(), extent, checkpoints(tmp_path, "1"))
    path = rank_file(tmp_path / "step-00000002-1", 0)
    size = path.stat().st_size
    path.write_bytes(b"\x80\x04" * (size // 2) + b"." * (size % 2))
    saved = checkpoints(tmp_path, "2", resume="step-00000002-1")
    with pytest.raises(RefusedCheckpoint, match="is no checkpoint that can be read"):
        saved.fixed()
    write_state(path, {"executor": {"total": torch.zeros(1)}})
    with pytest.raises(RefusedCheckpoint, match="no complete checkpoint any more"):
        checkpoints(tmp_path, "3", resume="step-00000002-1")


class Silent:
    """An executor of somebody who has not heard of checkpoints."""


class Hooked(Counting):
    def checkpoint_state(self):
        return {"hook": print}


def test_what_cannot_be_checkpointed_is_unsupported(tmp_path):
    with pytest.raises(Unsupported, match="Silent has no checkpoint_state.*_every_steps to 0"):
        open_checkpoints(order(tmp_path, "1"), Silent(), 0, 1, store=None, devices=CPU)
    assert open_checkpoints(None, Silent(), 0, 1, store=None, devices=CPU) is None
    with pytest.raises(Unsupported, match="builtin_function_or_method in /executor/hook"):
        train(Hooked(), Extent(0, 1, 4, 2), checkpoints(tmp_path, "1"))


def test_usage_is_weighted_by_time():
    parts = [Usage(1.0, 0.5, None), Usage(3.0, 0.9, 0.4)]
    actual = mean_usage(parts)
    assert (actual.wall_s, actual.cpu, actual.gpu) == (4.0, pytest.approx(0.8), pytest.approx(0.4))
    assert mean_usage(()) == Usage(0, None, None)


def test_records_are_joined_in_order():
    first = RunRecord([1], [0.1], [0.0], [2.0], [("forward", 1, 0.0, 1.0)], 0.5)
    second = RunRecord([2], [0.2], [0.0], [1.0], [("forward", 2, 5.0, 6.0)], None)
    joined = first.followed_by(second)
    assert (joined.ids, joined.step_s, joined.loss) == ([1, 2], [0.1, 0.2], [2.0, 1.0])
    assert joined.spans == first.spans
    assert joined.communication_wait_s is None
    assert RunRecord().followed_by(first) == first
