"""Steps of DDP with its options, worked by hand."""

from __future__ import annotations

import predict_factory as make
import pytest

from ddlbench.predict.prediction import NotPredictable, predictor_of
from ddlbench.strategies.ddp.descriptor import bytes_in_turns, turns_of_broadcasts

# All-reduces take 2 ms + 1 s a GB, broadcasts 1 ms + 1 s a GB.
SWEEPS = (
    make.sweep(2e-3, 1e9, 4),
    make.sweep(1e-3, 1e9, 4, operation="broadcast"),
)
# Blocks have 10, 20, 30, 40 MB of weights, and each is a bucket.
SLOWDOWN = 1.6  # of four replicas
ALL = ["ddlbench", "ddp-serial", "ddp-all-reduce", "ddp-buckets"]


def prediction_of(predictor="ddp-serial", batch_size=32, sweeps=SWEEPS, workload=None, **options):
    """A step of 4 ranks, whose all-reduces nothing hides."""
    workload = workload or make.workload()
    values = make.links(make.pair([0, 0, 0, 0], method="gloo"), sweeps=sweeps)
    plan = make.plan("ddp", "1x4", batch_size, options={"bucket_cap_bytes": 1, **options})
    links = make.LinkTable(make.Links.from_dict(values))
    return predictor_of(predictor).predict(workload, links, plan, plan.cell, [])


def sequential_s(samples: int) -> float:
    """Of a whole step; a twentieth of it is the update."""
    return 0.1 + 0.01 * samples


@pytest.mark.parametrize("predictor", ALL)
def test_updated_weights_are_gathered_after_the_update(predictor):
    plain, sharded = prediction_of(predictor), prediction_of(predictor, shard="optimizer")
    # Rank 0 updates 40 MB, and the update takes so much less.
    saved_s = (1 - 0.4) * 0.05 * sequential_s(8)
    slowdown = 1.0 if predictor == "ddp-buckets" else SLOWDOWN
    assert plain.compute_s - sharded.compute_s == pytest.approx(slowdown * saved_s)
    # Four broadcasts that share a node, of 100 MB together; or three hops of a ring.
    gathered_s = 3 * (1e-4 + 0.025) if predictor == "ddp-buckets" else 4 * (1e-3 + 0.025)
    for part in ("communication_s", "exposed_communication_s"):
        assert getattr(sharded, part) - getattr(plain, part) == pytest.approx(gathered_s)


@pytest.mark.parametrize("predictor", ALL)
def test_micro_batches_follow_each_other_and_update_once(predictor):
    actual = prediction_of(predictor, 128, accumulate=4)  # micro-batches of 8
    slowdown = 1.0 if predictor == "ddp-buckets" else SLOWDOWN
    update_s = 0.05 * sequential_s(8)
    assert actual.compute_s == pytest.approx(slowdown * (4 * sequential_s(8) - 3 * update_s))
    # Gradients leave once, in a backward pass of 8 samples.
    once = prediction_of(predictor, 32)
    assert actual.communication_s == pytest.approx(once.communication_s)
    assert actual.exposed_communication_s == pytest.approx(once.exposed_communication_s)
    assert actual.interval_s == pytest.approx(
        [side * actual.compute_s + actual.exposed_communication_s for side in (0.98, 1.02)]
    )


def test_fp16_gradients_are_messages_of_half_the_bytes():
    # Four all-reduces of 5 to 20 MB.
    assert prediction_of(hook="fp16").communication_s == pytest.approx(4 * 2e-3 + 0.05)


@pytest.mark.parametrize("predictor", ALL)
def test_factors_are_all_reduced_one_after_the_other(predictor):
    with pytest.raises(ValueError, match="no shapes of tensors"):
        prediction_of(predictor, hook="powersgd")
    tensors = make.profile()["tensors"]
    shapes = [[10_000, tensor["bytes"] // 40_000] for tensor in tensors]
    shaped = make.workload(
        tensors=[{**tensor, "shape": shape} for tensor, shape in zip(tensors, shapes, strict=True)]
    )
    actual = prediction_of(predictor, workload=shaped, hook="powersgd", hook_rank=2)
    factors = [8 * side for shape in shapes for side in shape]
    if predictor == "ddp-serial":
        assert actual.communication_s == pytest.approx(8 * 2e-3 + sum(factors) / 1e9)
    assert 0 < actual.communication_s < prediction_of(predictor).communication_s


@pytest.mark.parametrize(
    ("roots", "at_once", "turns"),
    [
        ([0, 0, 0, 0], 2, 4),  # on one node
        ([0, 0, 1, 1], 2, 4),  # two at once begin on one node
        ([0, 1, 2, 3], 2, 2),  # on a node each
        ([0, 1, 2], 2, 2),
        ([0, 1, 2, 3], 1, 4),  # NCCL: one after the other
    ],
)
def test_broadcasts_that_begin_on_one_node_take_turns(roots, at_once, turns):
    assert turns_of_broadcasts(roots, at_once) == turns


def test_broadcasts_of_unequal_shares_send_all_weights_once():
    assert bytes_in_turns([40, 30, 20, 10], [0, 0, 1, 1], 1) == 100
    assert bytes_in_turns([40, 30, 20, 10], [0, 1, 0, 1], 2) == 40 + 20  # two nodes at once


def test_a_gather_that_was_not_swept_is_named():
    with pytest.raises(ValueError, match="no broadcast through gloo was swept"):
        prediction_of(sweeps=SWEEPS[:1], shard="optimizer")


@pytest.mark.parametrize(
    "options", [{"shard": "optimizer"}, {"accumulate": 2}, {"hook": "fp16"}], ids=str
)
@pytest.mark.parametrize("predictor", ["paradl-authors", "paradl-corrected"])
def test_paradl_has_no_row_for_them(predictor, options):
    assert prediction_of(predictor).step_s > 0
    with pytest.raises(NotPredictable, match="data parallelism computes a share at once"):
        prediction_of(predictor, **options)
