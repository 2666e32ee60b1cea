"""Options of DDP: weights of sequential training, bytes that ranks keep, bytes that they send."""

from __future__ import annotations

import pytest
from counted_bytes import assert_sent, count_bytes

from ddlbench.experiment.cell import Cell
from ddlbench.planning.workload import Tensor
from ddlbench.strategies.ddp.descriptor import bucket_bytes, shares
from ddlbench.testing import assert_cell_equals_sequential
from ddlbench.testing.training import assert_same_weights, network_of, reference, train

STEPS = 4
FLOAT_BYTES = 4
RUNS = ((0, STEPS),)
SHARDED = {"shard": "optimizer"}


def cell_of(devices: int, network: str = "residual", **options) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy="ddp",
        batch_size=16,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


def sizes_of(cell: Cell) -> list[int]:
    """Bytes of each tensor of weights."""
    return [parameter.nbytes for parameter in network_of(cell).parameters()]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_sharded_optimiser_trains_as_one_device_does(devices):
    assert_cell_equals_sequential(cell_of(devices, **SHARDED), devices)


@pytest.mark.parametrize(
    ("devices", "network", "options"),
    [
        (2, "small_networks:transformer", {"accumulate": 2}),
        (1, "residual", {"accumulate": 4}),
        (2, "residual", {"accumulate": 4, **SHARDED}),
        (2, "residual", {"accumulate": 2, "bucket_view": True, **SHARDED}),
    ],
    ids=str,
)
def test_accumulation_trains_as_one_device_does(devices, network, options):
    """Batch norm sees micro-batches, as the reference does."""
    parts = devices * options["accumulate"]
    assert_cell_equals_sequential(cell_of(devices, network, **options), parts)


def test_without_batch_norm_accumulation_changes_nothing():
    cell = cell_of(2, "small_networks:linear", accumulate=4)
    expected, losses = reference(cell, 2, STEPS)
    (ranks,) = train([cell], RUNS)
    for rank in ranks:
        assert_same_weights(rank["state"], expected)
    means = [
        sum(rank_losses) / 2 for rank_losses in zip(*(rank["loss"] for rank in ranks), strict=True)
    ]
    assert means == pytest.approx(losses)


def test_gradients_that_lie_in_buckets_train_the_same():
    options = {"bucket_cap_bytes": 256}
    plain, view = train([cell_of(2, **options), cell_of(2, bucket_view=True, **options)], RUNS)
    for first, second in zip(plain, view, strict=True):
        assert_same_weights(second["state"], first["state"], rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "bucket_view": True, **SHARDED}])
def test_fp16_gradients_train_as_one_device_does_but_for_rounding(options):
    cell = cell_of(2, "small_networks:transformer", hook="fp16", bucket_cap_bytes=4096, **options)
    expected, _ = reference(cell, 2 * options.get("accumulate", 1), STEPS)
    (ranks,) = train([cell], RUNS)
    for rank in ranks:
        assert_same_weights(rank["state"], ranks[0]["state"], rtol=0, atol=0)
        # fp16 has eleven bits; steps of 0.05 make the weights' error smaller than the gradients'.
        assert_same_weights(rank["state"], expected, rtol=2**-11, atol=2**-11)
    with pytest.raises(AssertionError):
        assert_same_weights(ranks[0]["state"], expected)


def test_low_rank_gradients_are_exact_for_two_steps_and_then_not():
    cell = cell_of(2, "small_networks:transformer", hook="powersgd", bucket_cap_bytes=4096)
    (exact,), (ranks,) = train([cell], ((0, 2),)), train([cell], RUNS)
    for rank in exact:
        assert_same_weights(rank["state"], reference(cell, 2, 2)[0])
    assert_same_weights(ranks[1]["state"], ranks[0]["state"], rtol=0, atol=0)
    with pytest.raises(AssertionError):
        assert_same_weights(ranks[0]["state"], reference(cell, 2, STEPS)[0], rtol=1e-3, atol=1e-3)


def test_low_rank_gradients_are_exact_where_gradients_are_of_low_rank():
    """The loss of ``linear`` weighs all outputs alike, so its gradient has rank one."""
    cell = cell_of(2, "small_networks:linear", hook="powersgd")
    expected, _ = reference(cell, 2, STEPS)
    (ranks,) = train([cell], RUNS)
    factors = bucket_bytes([Tensor("head", 8 * 7840, 1.0, (10, 784))], 1)
    for rank in ranks:
        assert_same_weights(rank["state"], expected, rtol=1e-6, atol=1e-8)
        # Weights, gradients, momentum, what was not sent, and both factors.
        assert rank["kept_bytes"] == 4 * sum(sizes_of(cell)) + factors.left + factors.right


def test_ranks_without_weights_of_their_own_get_them_from_others():
    """Two tensors on four ranks; in float64 nothing but the order of sums differs."""
    cell = cell_of(4, "small_networks:linear", **SHARDED)
    expected, _ = reference(cell, 4, STEPS)
    (ranks,) = train([cell], RUNS)
    for rank in ranks:
        assert_same_weights(rank["state"], expected)


def test_each_rank_keeps_the_momentum_of_its_own_weights():
    whole, sharded = cell_of(2), cell_of(2, **SHARDED)
    plain, shared = train([whole, sharded], RUNS)
    sizes = sizes_of(whole)
    for share, before, after in zip(shares(sizes, 2), plain, shared, strict=True):
        assert before["kept_bytes"] - after["kept_bytes"] == sum(sizes) - share


# Bytes that cross the network -------------------------------------------------------------------

RANKS, BATCH = 3, 255


def all_reduced(size: float) -> float:
    """Bytes that each rank of a ring sends."""
    return 2 * (RANKS - 1) / RANKS * size


def test_options_send_what_their_formulas_say():
    """gloo broadcasts along a binomial tree: of three ranks the owner sends to both others."""
    rank = 32
    options = [
        {"accumulate": 5},
        {"hook": "fp16"},
        {"hook": "powersgd", "hook_rank": rank},
        SHARDED,
    ]
    cells = [cell_of(RANKS, "mlp", **each).with_(batch_size=BATCH) for each in options]
    sizes = [FLOAT_BYTES * weight.numel() for weight in network_of(cells[0]).parameters()]
    # Of 784 x 128 weights; the other two matrices and all biases would gain too little.
    numbers = (784 + 128) * rank + 128 * 64 + 64 * 10 + 128 + 64 + 10
    whole = all_reduced(sum(sizes))
    once, halves, factors, sharded = count_bytes(*cells)
    assert_sent(once, [whole] * RANKS)
    assert_sent(halves, [whole / 2] * RANKS)
    assert_sent(factors, [all_reduced(FLOAT_BYTES * numbers)] * RANKS)
    assert_sent(sharded, [whole + (RANKS - 1) * share for share in shares(sizes, RANKS)])
