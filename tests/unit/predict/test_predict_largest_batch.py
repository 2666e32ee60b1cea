"""The largest batch that fits: bisection by the model, confirmed or lowered by cells."""

from __future__ import annotations

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import DATASETS
from ddlbench.experiment.result import Glance
from ddlbench.experiment.status import Status
from ddlbench.predict.largest_batch import (
    MemoryOfBatches,
    batch_advice,
    largest_batch,
    predicted_largest,
    smallest_batch,
)


def memory(strategy: str = "ddp", capacity_bytes: float = 2e9, **options) -> MemoryOfBatches:
    return MemoryOfBatches(
        make.cell(strategy, "1x4", options=options), make.site(), make.workload(), capacity_bytes
    )


def ending(*statuses: Status):
    """A measurement that ends each cell in turn as said, and the batches it was asked for."""
    batches: list[int] = []

    def measure(cell):
        batches.append(cell.batch_size)
        status = statuses[len(batches) - 1]
        return Glance(cell, status, 10.0, 0.1 if status == Status.OK else None, None)

    return measure, batches


def nothing(_cell) -> None:
    return None


@pytest.mark.parametrize(
    ("strategy", "options", "unit"),
    [("ddp", {}, 4), ("pipe-gpipe", {}, 4), ("pipe-gpipe", {"chunks": 8, "replicas": 2}, 16)],
)
def test_the_unit_is_what_a_strategy_can_cut(strategy, options, unit) -> None:
    assert smallest_batch(make.cell(strategy, "1x4", options=options)) == unit


def test_bisection_finds_what_a_search_of_all_finds() -> None:
    ddp_memory = memory()
    most = 4000
    expected = max((b for b in range(4, most + 1, 4) if ddp_memory.fits(b)), default=0)
    assert predicted_largest(ddp_memory, 4, most) == expected
    assert ddp_memory.needed(expected) <= ddp_memory.capacity_bytes < ddp_memory.needed(
        expected + 4
    ) or (expected == most)
    assert predicted_largest(memory(capacity_bytes=1.0), 4, most) == 0


def test_a_cell_confirms_it() -> None:
    measure, batches = ending(Status.OK)
    actual = largest_batch(memory(), measure, nothing)
    assert batches == [actual.predicted] == [actual.batch_size]
    assert actual.confirmed
    assert "confirmed by a cell" in batch_advice(actual, memory())[0]


def test_out_of_memory_lowers_it() -> None:
    measure, batches = ending(Status.OUT_OF_MEMORY, Status.OUT_OF_MEMORY, Status.OK)
    actual = largest_batch(memory(), measure, nothing)
    assert batches[0] > batches[1] > batches[2] == actual.batch_size
    assert memory().needed(batches[1]) <= 0.9 * memory().needed(batches[0])
    assert [trial.status for trial in actual.trials] == ["out_of_memory", "out_of_memory", "ok"]


def test_it_gives_up_and_says_so() -> None:
    measure, batches = ending(*[Status.OUT_OF_MEMORY] * 2)
    actual = largest_batch(memory(), measure, nothing, trials=2)
    assert len(batches) == 2
    assert (actual.batch_size, actual.confirmed) == (0, False)
    assert "No batch was confirmed" in batch_advice(actual, memory())[-1]


def test_devices_of_a_process_share_its_memory() -> None:
    """On CPU the four devices of a GPipe cell share a memory, of four times the size."""
    shared = memory("gpipe")
    predicted = largest_batch(shared, None, nothing)
    assert predicted.needed_bytes <= shared.room(predicted.batch_size).held_bytes == 8e9
    assert "8.0 GB of 4 devices predicted" in batch_advice(predicted, shared)[0]
    measure, batches = ending(Status.OUT_OF_MEMORY, Status.OK)
    largest_batch(shared, measure, nothing)
    assert shared.needed(batches[1]) <= 0.9 * shared.needed(batches[0])


def test_a_dry_run_measures_nothing_and_results_are_reused() -> None:
    actual = largest_batch(memory(), None, nothing)
    assert actual.batch_size == actual.predicted > 0
    assert "predicted, not measured" in batch_advice(actual, memory())[0]
    measure, batches = ending()
    again = largest_batch(memory(), measure, lambda cell: Glance(cell, Status.OK, 10.0, 0.1, None))
    assert (batches, again.batch_size) == ([], actual.batch_size)


def test_nothing_fits_and_other_failures() -> None:
    actual = largest_batch(memory(capacity_bytes=1.0), None, nothing)
    assert actual.batch_size == 0
    assert batch_advice(actual, memory(capacity_bytes=1.0))[0].startswith(
        "No batch fits: 4 samples"
    )
    measure, _ = ending(Status.TIMEOUT)
    with pytest.raises(ConfigError, match="says nothing of its memory"):
        largest_batch(memory(), measure, nothing)


def test_an_epoch_of_the_largest_batch_has_a_round() -> None:
    for steps in (4, 8):
        huge = memory("local-sgd", capacity_bytes=1e15, average_every_steps=steps)
        largest = largest_batch(huge, None, nothing).predicted
        images = DATASETS[huge.cell.dataset].num_train
        measured = [huge.cell.epochs * (images // batch) for batch in (largest, largest + 4)]
        assert measured[0] >= steps > measured[1]
