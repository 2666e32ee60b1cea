"""What the validation counts, where it stands in the loop, and what the result says of it."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from cases.rank_reports import rank_report
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint import CPU, IDENTITY, Counting, checkpoints
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.training import EpochAccuracy
from ddlbench.runtime import loop, meters, rendezvous, validation
from ddlbench.runtime.checkpoint.store import newest
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.rank_report import Score
from ddlbench.runtime.rendezvous import TcpTraffic
from ddlbench.runtime.result import accuracies, drain_notes, timing_of
from ddlbench.runtime.validation import Validator, classify, fill, send_parts
from ddlbench.strategies.executor import Unsupported

LABELS = [0, 1, 2, 1, 0, 2, 2]
SHOWN = [0, 1, 2, 0, 0, 1, 2]  # what the images say: five of seven are their labels


class Planted:
    """An image is one pixel, its brightness ten times what it shows."""

    shape, num_classes = (1, 1, 1), 3

    def __len__(self):
        return len(LABELS)

    def gather(self, sample_ids, *, pin_memory=False):
        images = torch.tensor(SHOWN, dtype=torch.uint8)[sample_ids].view(-1, 1, 1, 1) * 10
        return images, torch.tensor(LABELS)[sample_ids]


class Reads(nn.Module):
    """Gives 2.0 to the class that an image shows, and 0.0 to the others."""

    def forward(self, inputs):
        shown = ((inputs.flatten() + 2) * 255 / 40).round().long()
        return 2.0 * nn.functional.one_hot(shown, 3).float()


@pytest.mark.parametrize("batch", [1, 3, 7, 100])
def test_a_network_that_is_known_gives_the_exact_count_and_loss(batch):
    alive = []
    correct, loss, labels = classify(
        Reads(), Planted(), torch.device("cpu"), batch, alive=lambda: alive.append(1)
    )
    assert (correct, labels) == (5, 7)
    total = math.log(math.exp(2) + 2)
    assert loss == pytest.approx((5 * (total - 2) + 2 * total) / 7)
    assert len(alive) == math.ceil(7 / batch)


def test_dropout_and_statistics_of_a_batch_are_off():
    network = nn.Sequential(Reads(), nn.BatchNorm1d(3, affine=False), nn.Dropout(0.9))
    before = torch.get_rng_state()
    assert classify(network, Planted(), torch.device("cpu"), 2)[0] == 5
    assert torch.equal(torch.get_rng_state(), before)
    assert not network[1].running_mean.any()


def test_a_loss_that_is_no_number_is_none():
    class Diverged(Reads):
        def forward(self, inputs):
            return super().forward(inputs) * math.nan

    assert classify(Diverged(), Planted(), torch.device("cpu"), 4)[1] is None


def plain():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))


def test_the_whole_network_is_put_together_from_parts(monkeypatch):
    """Rank 2 has a statistic that rank 1 has too: the lower rank's is taken."""
    monkeypatch.setattr(validation, "_CHUNK_BYTES", 5)
    trained = plain().state_dict()
    trained["1.num_batches_tracked"] += 7
    first = {name: trained[name] for name in ("0.weight", "1.running_mean")}
    second = {name: tensor for name, tensor in trained.items() if name[0] != "0"}
    third = {"0.bias": trained["0.bias"], "1.running_var": torch.full((2,), 9.0), "message_0": None}
    store = torch.distributed.HashStore()
    senders = [
        threading.Thread(target=send_parts, args=(part, store, rank, "v"))
        for rank, part in ((1, second), (2, third))
    ]
    for sender in senders:
        sender.start()
    network = plain()
    fill(network, first, "v", store, world_size=3)
    for sender in senders:
        sender.join()
    for name, value in network.state_dict().items():
        assert torch.equal(value, trained[name]), name


def test_weights_that_no_rank_holds_are_named():
    weights = {name: value for name, value in plain().state_dict().items() if name != "2.weight"}
    with pytest.raises(Unsupported, match=r"no rank gives the weights 2\.weight") as raised:
        fill(plain(), weights, "v")
    assert raised.value.args[0].code == "no_validation"


class Without:
    """An executor of another package that does not give its weights."""


class Held(Counting):
    """A trained network that reads the planted images."""

    def state_dict(self):
        return {"network": Reads().state_dict()}


def validator(**changes):
    values = {"rank": 0, "world_size": 1, "store": None, "devices": CPU, "batch": 3}
    return Validator(Reads, Planted(), **{**values, **changes})


def test_an_executor_without_weights_is_unsupported():
    with pytest.raises(Unsupported, match="Without has no state_dict"):
        validator().score(Without(), 4, None)


@given(
    st.integers(0, 3), st.integers(1, 4), st.integers(1, 9), st.integers(0, 12), st.integers(0, 12)
)
def test_segments_end_behind_epochs_and_checkpoints(warmup, epochs, steps, every, done):
    extent = Extent(warmup, epochs, steps, every, validate_every_steps=steps)
    done = min(done, epochs * steps)
    segments = extent.segments(done)
    covered = [number for part in segments for number in part]
    assert covered == list(range(warmup + done, warmup + epochs * steps))
    ends = {part.stop - warmup for part in segments}
    whole = range(done + 1, epochs * steps + 1)
    wanted = {n for n in whole if n % steps == 0 or (every and n % every == 0)}
    assert ends == wanted | ({epochs * steps} if segments else set())


class Log:
    """Notes what happens, in order."""

    def __init__(self, monkeypatch):
        self.events = []
        monkeypatch.setattr(loop, "Utilisation", self.utilisation)
        self.usage = meters.Usage(0.0, None, None)

    def utilisation(self, _devices, _threads, _energy):
        return self

    def __enter__(self):
        self.events.append("timed")
        return self

    def __exit__(self, *_):
        self.events.append("not timed")

    def start(self, done):
        self.events.append(f"count from {done}")

    def stop(self, done):
        self.events.append(f"stop at {done}")

    def score(self, executor, steps, traffic):
        self.events.append(f"validate {steps}")
        return (Score(steps, 7, 5, 1.0),)

    def save(self, executor, so_far):
        self.events.append(f"save {so_far.steps} with {len(so_far.scores)}")

    resumes = False


def test_neither_steps_nor_utilisation_hold_the_validation_and_checkpoints_hold_its_score(
    monkeypatch,
):
    log, done = Log(monkeypatch), []
    executor = Counting()
    extent = Extent(1, 2, 4, checkpoint_every_steps=4, validate_every_steps=4)
    actual = measure(
        executor, extent, CPU, 1, checkpoints=log, validation=log, segment_done=done.append
    )
    run = ["timed", "not timed"]
    assert log.events == [*run, "validate 4", "save 4 with 1", *run, "validate 8", "save 8 with 2"]
    assert executor.runs == [(0, 1), (1, 4), (5, 4)]
    assert [score.steps for score in actual.scores] == [4, 8]
    assert len(actual.measured.step_s) == sum(done) == 8


def test_no_rank_counts_bytes_while_any_validates(monkeypatch):
    log = Log(monkeypatch)
    monkeypatch.setattr(validation, "barrier", lambda *at: log.events.append(at[1]))
    monkeypatch.setattr(
        validation, "classify", lambda *_: log.events.append("classify") or (5, 1, 7)
    )
    scores = validator().score(Held(), 8, log)
    assert scores == (Score(8, 7, 5, 1),)
    assert log.events == [
        "stop at 8", "stopped 8", "classify", "validated 8", "count from 8", "started 8",
    ]  # fmt: skip


def test_bytes_between_stop_and_start_do_not_count(monkeypatch):
    moved = iter([{"a": (10, 1)}, {"a": (30, 2)}, {"a": (900, 900)}, {"a": (905, 907)}])
    monkeypatch.setattr(rendezvous, "connection_bytes", lambda _port: next(moved))
    traffic = TcpTraffic(1)
    traffic.start(0)
    traffic.stop(4)
    traffic.start(4)
    traffic.stop(6)
    counted = traffic.report()
    assert (counted.steps, counted.sent_bytes, counted.received_bytes) == (6, 25, 8)


def test_without_validation_nothing_is_scored():
    actual = measure(Counting(), Extent(1, 2, 3), CPU, 1)
    assert actual.scores == ()


def test_a_resumed_run_keeps_the_scores_of_the_epochs_before(tmp_path):
    extent = Extent(1, 3, 4, checkpoint_every_steps=3, validate_every_steps=4)

    def run(name, resume=None):
        saved = checkpoints(tmp_path, name, resume)
        return measure(Held(), extent, CPU, 1, checkpoints=saved, validation=validator())

    whole = run("1")
    assert newest(tmp_path, IDENTITY).steps == 12
    again = run("2", resume="step-00000009-1")
    assert again.scores == whole.scores
    assert [(score.steps, score.correct, score.samples) for score in again.scores] == [
        (4, 5, 7), (8, 5, 7), (12, 5, 7),
    ]  # fmt: skip


CELL = Cell("mnist", "tiny", "ddp", batch_size=8, devices_per_node=2, epochs=2, validate=True)
SCORES = (Score(2, 10, 4, 1.5), Score(4, 10, 9, None))


def timed(step_s, scores=()):
    return rank_report(step_s=step_s, load_s=[0.0] * len(step_s), scores=scores)


def test_training_time_is_that_of_the_slowest_rank_in_the_epochs_so_far():
    reports = [timed([1.0, 2.0, 1.0, 1.0], SCORES), timed([2.0, 2.0, 1.0, 0.5])]
    timing = timing_of(CELL, reports, "cpu")
    assert accuracies(reports, timing) == (
        EpochAccuracy(1, 4.0, 10, 4, 0.4, 1.5),
        EpochAccuracy(2, 6.0, 10, 9, 0.9, None),
    )
    assert accuracies(reports[1:], timing) == ()


def test_a_pipeline_that_is_emptied_for_the_validation_says_so():
    (note,) = drain_notes(CELL, synchronous=False, validations=2)
    assert "finished for the validation" in note
    assert drain_notes(CELL, synchronous=True, validations=2) == []
    assert drain_notes(CELL, synchronous=False, validations=1) == []


def test_every_image_is_read_once():
    read_ids = []

    class WatchedPlanted(Planted):
        def gather(self, sample_ids, *, pin_memory=False):
            read_ids.append(sample_ids)
            return super().gather(sample_ids)

    classify(Reads(), WatchedPlanted(), torch.device("cpu"), 3)
    assert np.concatenate(read_ids).tolist() == list(range(7))
