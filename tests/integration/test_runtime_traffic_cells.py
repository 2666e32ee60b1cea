"""Bytes that ranks send and receive, against the strategies' formulas; and what a plan rests on."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path

import pytest
from counted_bytes import STEPS, assert_sent, count_bytes
from local_cells import DDP, local_site, run_one

from ddlbench.common.document import digest_of
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import links_file, profile_file
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.planning.planner import measured_digests

BATCH = 256
FLOAT_BYTES = 4


def _cell(strategy, devices=2, network="mlp", **options):
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=BATCH - BATCH % devices,
        devices_per_node=devices,
        epochs=1,
        max_steps=STEPS,
        warmup_steps=1,
        data_scale=0.02,
        learning_rate=0.01,
        options=tuple(sorted(options.items())),
    )


def _measure(tmp_path, cell, name="local"):
    site = dataclasses.replace(local_site(tmp_path, devices=cell.devices), name=name)
    result, _ = run_one(cell, site, tmp_path)
    assert result["status"] == "ok", result["reason"]
    return result


def _ring(ranks, size):
    """Bytes that each rank sends in an all-reduce of ``size`` bytes."""
    return 2 * (ranks - 1) / ranks * size


def test_a_whole_cell_says_what_it_moved(shared_cells):
    result = shared_cells.run(DDP).result
    communication = result["communication"]
    assert (communication["counted_by"], communication["steps"]) == ("tcp_info", DDP.max_steps)
    assert [rank["rank"] for rank in communication["ranks"]] == [0, 1]
    per_step = [rank["sent_bytes_per_step"] for rank in communication["ranks"]]
    gradient_bytes = result["ranks"][0]["parameter_bytes"]
    assert per_step == pytest.approx([_ring(2, gradient_bytes)] * 2, rel=0.02)
    sent_bytes = [rank["sent_bytes"] for rank in communication["ranks"]]
    assert sent_bytes == [each * DDP.max_steps for each in per_step]
    received_bytes = sum(rank["received_bytes"] for rank in communication["ranks"])
    assert received_bytes == pytest.approx(sum(sent_bytes), rel=0.001)
    assert result["inputs"]["links_digest"] is result["inputs"]["profile_digest"] is None


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_an_all_reduce_moves_what_a_ring_moves(strategy, ranks):
    if strategy == "horovod":
        pytest.importorskip("horovod.torch")
    (actual,) = count_bytes(_cell(strategy, ranks))
    assert_sent(actual, [_ring(ranks, actual[0].parameter_bytes)] * ranks)


def test_shares_are_gathered_and_summed():
    """Of W ranks each sends (W - 1) / W of what is gathered; gloo sums by all-reduces."""
    ranks = 3
    frees, keeps = count_bytes(
        _cell("fsdp", ranks, reshard_after_forward=True),
        _cell("fsdp", ranks, reshard_after_forward=False),
    )
    whole_bytes = frees[0].parameter_bytes
    last_bytes = (64 + 1) * 10 * FLOAT_BYTES  # the classifier's are kept
    for actual, gathered in ((frees, 2 * whole_bytes - last_bytes), (keeps, whole_bytes)):
        assert_sent(actual, [(ranks - 1) / ranks * (gathered + 2 * whole_bytes)] * ranks)


@pytest.mark.parametrize(
    ("network", "dataset", "ranks", "groups"),
    [("gpt-tiny", "tokens", 2, 1), ("vit-tiny", "mnist", 3, 1), ("gpt-tiny", "tokens", 4, 2)],
)
def test_each_pair_of_linear_layers_is_summed_once_each_way(network, dataset, ranks, groups):
    """Two pairs a layer; and with several groups, gradients of what each rank has of the weights.

    A ring of p ranks sends 2 (p - 1) / p of an all-reduce's bytes: of two, as many as it has.
    """
    group = ranks // groups
    cell = _cell("tensor-parallel", ranks, network)
    if groups > 1:
        cell = _cell("data-tensor", ranks, network, group=group)
    (actual,) = count_bytes(cell.with_(dataset=dataset, batch_size=4 * groups))
    shape = transformer_shape(network, dataset)
    tokens_bytes = 4 * shape["sequence_length"] * shape["hidden_size"] * FLOAT_BYTES
    sent = _ring(group, 4 * shape["layers"] * tokens_bytes)
    if groups > 1:
        width = shape["hidden_size"]
        split_bytes = shape["layers"] * (4 * width**2 + 3 * width + 8 * width**2 + 4 * width)
        whole_bytes = actual[0].parameter_bytes - split_bytes * FLOAT_BYTES
        sent += whole_bytes + split_bytes * FLOAT_BYTES / group  # over two groups
    assert_sent(actual, [sent] * ranks)


def test_weights_move_once_a_round():
    ranks, steps = 3, STEPS // 2
    cells = [
        _cell("local-sgd", ranks, average_every_steps=steps, outer_optimizer=outer)
        for outer in ("average", "nesterov")
    ]
    for actual in count_bytes(*cells):
        assert_sent(actual, [_ring(ranks, actual[0].parameter_bytes) / steps] * ranks)


def test_a_pipeline_moves_activations_and_gradients_across_its_cut():
    cut_bytes = BATCH * 128 * FLOAT_BYTES  # of a mini-batch, behind the first hidden layer
    cells = [_cell("pipe-1f1b", balance="3+3", chunks=4), _cell("pipedream", balance="3+3")]
    for actual in count_bytes(*cells):
        assert_sent(actual, [cut_bytes] * 2)


def test_a_result_says_what_its_plan_was_made_from(tmp_path, monkeypatch):
    """PipeDream's stages and replicas, from a profile and links."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "unit" / "planning"))
    factory = importlib.import_module("planning_factory")
    times = [
        {"batch_size": samples, "time_s": 1e-4 * samples, "interval_s": None}
        for samples in (BATCH // 4, BATCH, 2 * BATCH)
    ]
    blocks = [factory.block(n, forward=times, backward=times) for n in range(6)]
    factory.write_site(blocks, network="mlp")
    cell = _cell("pipedream", balance="profile")
    result = _measure(tmp_path, cell, name=factory.SITE_NAME)
    profile = profile_file(factory.SITE_NAME, "mnist/mlp/fp32-1t")
    assert {key: result["inputs"][key] for key in ("links_digest", "profile_digest")} == {
        "links_digest": digest_of(json.loads(links_file(factory.SITE_NAME, "default").read_text())),
        "profile_digest": digest_of(json.loads(profile.read_text())),
    }
    assert result["communication"]["steps"] == STEPS
    profile.unlink()
    assert measured_digests(cell, factory.SITE_NAME)["profile_digest"] is None
