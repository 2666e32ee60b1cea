"""Hardware that nobody measured as profile, links and site."""

import numpy as np
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.profile import ProfileKey
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.workload import Workload
from ddlbench.predict.advice import advise
from ddlbench.predict.candidate import Knowledge
from ddlbench.predict.collective_times import Groups, Library, seconds
from ddlbench.predict.hardware import DeviceSheet, Fabric, System
from ddlbench.predict.planned_cluster import (
    PlannedCluster,
    PlannedInputs,
    PlannedLinks,
    batch_ladder,
    roofline_table,
    table_profile,
)
from ddlbench.predict.question import Question
from ddlbench.predict.recommend import recommend

H100, NDR = DeviceSheet.load("h100-sxm"), Fabric.load("infiniband-400")
NCCL = Library.load("nccl")
LINKS = PlannedLinks(System(H100, NDR, 64, 8), NCCL)


def test_sums_are_those_of_the_collectives_module():
    groups = Groups.of_system(System(H100, NDR, 8, 8))
    expected = seconds(groups, np.array([1e9]), NCCL)[0]
    assert LINKS.all_reduce(8, 8, "nccl").time_s(1e9) == pytest.approx(expected)
    assert expected == pytest.approx(2 * 63 / 64 * 1e9 / (8 * 50e9), rel=0.2)


def test_a_switch_that_sums_is_faster_than_a_ring():
    inside = [LINKS.all_reduce(1, count, None).time_s(1e9) for count in (4, 8)]
    assert inside[1] < inside[0] * 1.75 / 1.5


def test_a_gather_counts_the_part_of_one_rank():
    gather = LINKS.collective("all_gather", 1, 8, None).time_s(1e8)
    scatter = LINKS.collective("reduce_scatter", 1, 8, None).time_s(8e8)
    assert gather == pytest.approx(scatter)


def test_hops():
    within, _ = LINKS.hop("p2p", (0, 0), (0, 5))
    between, _ = LINKS.hop("p2p", (0, 0), (1, 0))
    assert within.bandwidth_bytes_per_s == pytest.approx(NCCL.constant("ring_share") * 450e9)
    network_share = NCCL.constant("network_share")
    assert between.bandwidth_bytes_per_s == pytest.approx(network_share * 50e9)


@pytest.fixture
def cluster():
    return PlannedCluster.named("h100-sxm", "infiniband-400", [(1, 8), (8, 8)])


def _by_roofline(key, batch_sizes):
    return Workload(table_profile(H100, key, roofline_table(H100, key, batch_sizes)))


def test_the_profile_has_the_blocks_of_the_network():
    workload = _by_roofline(ProfileKey("imagenet", "resnet50"), [16, 64])
    costs = block_costs("resnet50", "imagenet")
    assert [block.name for block in workload.blocks] == [cost.name for cost in costs]
    assert workload.parameter_bytes == sum(cost.parameter_bytes for cost in costs)
    step = workload.step(64)
    assert step.step_s == pytest.approx(step.forward_s + step.backward_s + step.optimizer_s)
    ready = [tensor.ready_fraction for tensor in workload.tensors]
    assert ready == sorted(ready)
    assert ready[-1] == 1


POOLED = (64, 128, 256, 512, 512)  # channels of VGG-16's five pools


def test_half_precision_halves_activations_not_weights_and_indices():
    key = ProfileKey("imagenet", "vgg16", "bf16")
    half = _by_roofline(key, [8])
    whole = _by_roofline(ProfileKey("imagenet", "vgg16"), [8])
    assert half.parameter_bytes == whole.parameter_bytes
    saved = [sum(block.saved_bytes for block in workload.blocks) for workload in (half, whole)]
    indices = 8 * sum((224 >> n) ** 2 * channels for n, channels in enumerate(POOLED, 1))
    assert saved[0] - indices == pytest.approx((saved[1] - indices) / 2, rel=0.01)
    # Autocast keeps weights in half precision beside them.
    held = [sum(block.buffer_bytes for block in workload.blocks) for workload in (half, whole)]
    assert held[0] - held[1] == half.parameter_bytes / 2
    assert half.step(8).step_s < whole.step(8).step_s


def test_a_ladder_has_every_share_and_its_halves():
    ladder = batch_ladder(96, [8])
    assert {1, 96, 48, 24, 12} <= ladder
    assert {6, 3} <= ladder


def test_strategies_are_ranked_without_a_file(cluster, tmp_path, monkeypatch):
    inputs = PlannedInputs(cluster, batch_ladder(4096, [64]))
    question = Question("resnet50", "imagenet", 8, 8, 4096, {}, {})
    known = Knowledge(cluster.site, inputs, spread_of=cluster.doubt.spread)
    assert inputs.missing(question.cell("ddp")) == []
    ranking = recommend(question, known)
    ddp = next(c for c in ranking.ranked if c.strategy == "ddp")
    assert ddp.fits
    speedup = ranking.speedup(ddp).ratio  # though one device has no room for the whole batch
    assert 32 < speedup <= 64
    low, high = ranking.interval_s(ddp)
    assert low < ddp.predicted_s < high
    assert high / ddp.predicted_s < 1.6


def test_a_network_of_no_table_is_cut_by_the_roofline(cluster, monkeypatch):
    inputs = PlannedInputs(cluster, batch_ladder(1024, [4]))
    vgg16 = inputs.workload(Question("vgg16", "imagenet", 1, 4, 1024, {}, {}).cell("ddp"))
    monkeypatch.setattr(inputs, "workload", lambda cell: vgg16)
    question = Question("mynets:cnn", "imagenet", 1, 4, 1024, {}, {})
    ranking = recommend(question, Knowledge(cluster.site, inputs, spread_of=cluster.doubt.spread))
    pipelines = {"pipe-1f1b", "pipe-gpipe", "pipe-zb", "pipe-zbv", "pipe-interleaved"}
    assert pipelines <= {candidate.strategy for candidate in ranking.ranked}


def test_of_equal_chances_the_first_of_the_table_is_advised():
    cluster = PlannedCluster.named("a100-sxm-40gb", "infiniband-200", [(8, 8)])
    inputs = PlannedInputs(cluster, batch_ladder(2048, [64]))
    question = Question("resnet50", "imagenet", 8, 8, 2048, {}, {})
    known = Knowledge(cluster.site, inputs, spread_of=cluster.doubt.spread)
    ranking = recommend(question, known)
    first, *others = ranking.tied
    assert max(candidate.chance for candidate in others) > first.chance  # by a point of 100
    assert advise(question, ranking, known).recommended is first


def test_servers_of_a_node_share_its_cards():
    """Eight workers send whole gradients to the other node, all through its cards."""
    cluster = PlannedCluster.named("h100-sxm", "ethernet-100", [(2, 8), (16, 1)])
    known = Knowledge(cluster.site, PlannedInputs(cluster, batch_ladder(2048, [16])))
    gradients_bytes = sum(cost.parameter_bytes for cost in block_costs("alexnet", "imagenet"))
    card_s = gradients_bytes / (NCCL.constant("network_share") * 12.5e9)
    communication_s = {}
    for nodes, devices in ((2, 8), (16, 1)):
        options = {"parameter-server": {"servers": 8}}
        question = Question("alexnet", "imagenet", nodes, devices, 2048, {}, options)
        ranking = recommend(question, known)
        (server,) = [c for c in ranking.candidates if c.strategy == "parameter-server"]
        communication_s[nodes] = server.prediction.communication_s
        assert "do not share" not in str(server.prediction.limits)
    assert communication_s[2] >= 2 * 8 * card_s
    assert communication_s[16] == pytest.approx(2 * card_s, rel=0.05)


def test_splits_are_not_predicted_by_blocks_alone(cluster):
    inputs = PlannedInputs(cluster, batch_ladder(1024, [4]))
    question = Question("vgg16", "imagenet", 1, 4, 1024, {}, {})
    ranking = recommend(question, Knowledge(cluster.site, inputs, spread_of=cluster.doubt.spread))
    reason = next(c.reason for c in ranking.not_ranked if c.strategy == "filter")
    assert "only the blocks of vgg16 are known" in reason


def test_a_profile_of_one_device_replaces_the_roofline():
    cluster = PlannedCluster.named("v100-sxm-16gb", None, [(1, 4)], "pipedream")
    cell = Cell(dataset="imagenet", network="vgg16", strategy="sequential", batch_size=128)
    workload = PlannedInputs(cluster, [128]).workload(cell)
    assert workload.step(128).forward_s == pytest.approx(0.2339, rel=0.01)
    assert "profile of one device" in cluster.facts()[0]


def test_several_nodes_need_a_fabric():
    with pytest.raises(ConfigError, match="--fabric does not say"):
        PlannedCluster.named("h100-sxm", None, [(2, 8)])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("h100-sxn", None), "did you mean 'h100-sxm'"),
        (("h100-sxm", "infiniband-40"), "did you mean 'infiniband-400'"),
        (("h100-sxm", None, "nothing"), "is no folder of a device"),
    ],
)
def test_unknown_names_end_in_one_sentence(names, sentence):
    hardware, fabric, *profile = names
    with pytest.raises(ConfigError, match=sentence):
        PlannedCluster.named(hardware, fabric, [(1 + bool(fabric), 8)], *profile)
