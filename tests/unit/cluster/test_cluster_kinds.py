"""Which kind of node a site is of: what a careful person would choose, of clusters as they are."""

from __future__ import annotations

import pytest

from ddlbench.cluster.init import choose
from ddlbench.cluster.kind_choice import fitting_accounts
from ddlbench.common.errors import ConfigError
from ddlbench.slurm.partition_limits import PartitionLimits
from ddlbench.slurm.partitions import parse_kinds


def rows(*lines, default=None):
    """Kinds of node; what a row leaves out of nodes, cores, memory, limit and features is usual."""
    usual = ("gpu", "4", "48", "500000", "gpu:a100:4", "1-00:00:00", "up", "(null)", "idle")
    text = "\n".join(
        "|".join(given.get(at, usual[at]) for at in range(len(usual)))
        for given in (
            {_COLUMNS.index(key): str(value) for key, value in line.items()} for line in lines
        )
    )
    return parse_kinds(text, default)


_COLUMNS = ("name", "nodes", "cpus", "mb", "gres", "limit", "up", "features", "state")
MIG = "a100_1g.5gb"
MIG_ROW = {"gres": f"gpu:{MIG}:28", "nodes": 60, "features": "mig"}


def taken(selection):
    offer = selection.offer
    return offer.kind.partition, offer.gpu_type, selection.nodes, selection.devices_per_node


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (rows(MIG_ROW, {}), ("gpu", "a100", 4, 4)),
        (rows({**MIG_ROW, "name": "mig"}, {}, default="mig"), ("gpu", "a100", 4, 4)),
        (rows({"gres": f"gpu:a100:2,gpu:{MIG}:14"}), ("gpu", "a100", 4, 2)),
        (rows(MIG_ROW), ("gpu", MIG, 60, 1)),
        (
            rows({"gres": f"gpu:{MIG}:7(S:0),gpu:a100_3g.20gb:2(S:1)"}),
            ("gpu", "a100_3g.20gb", 4, 1),
        ),
        (
            rows({"name": "cpu", "gres": "(null)", "nodes": 900}, {}, default="cpu"),
            ("gpu", "a100", 4, 4),
        ),
        (rows({"nodes": 2}, {"nodes": 3, "gres": "gpu:a100:4(S:0-1)"}), ("gpu", "a100", 5, 4)),
        (rows({"name": "b"}, {"name": "a", "nodes": 9}, default="b"), ("b", "a100", 4, 4)),
        (rows({"gres": "gpu:a6000:8", "nodes": 2}, {"nodes": 11}), ("gpu", "a100", 11, 4)),
        (rows({"name": "old", "up": "down", "nodes": 99}, {}), ("gpu", "a100", 4, 4)),
        (rows({"name": "old", "state": "drained", "nodes": 99}, {}), ("gpu", "a100", 4, 4)),
        (rows({"name": "e", "nodes": 0, "gres": "(null)"}, {}, default="e"), ("gpu", "a100", 4, 4)),
        (
            rows({"name": "debug", "limit": "30:00", "nodes": 9}, {}, default="debug"),
            ("gpu", "a100", 4, 4),
        ),
        (
            rows({"nodes": 12, "state": "draining"}, {"nodes": 5, "state": "maint"}, {"nodes": 10}),
            ("gpu", "a100", 10, 4),
        ),
        (rows({"gres": "gpu:h100:no_consume:4"}), ("gpu", "h100", 4, 4)),
        (rows({"gres": "gpu:8"}), ("gpu", "", 4, 8)),
        (rows({"gres": "(null)"}, {"gres": "(null)", "cpus": 32}), ("gpu", None, 8, 32)),
    ],
)
def test_what_is_suggested(kinds, expected):
    assert taken(choose(kinds)) == expected


@pytest.mark.parametrize(
    ("kinds", "options", "expected"),
    [
        (rows(MIG_ROW, {}), {"gpu": MIG}, ("gpu", MIG, 60, 1)),
        (rows(MIG_ROW, {}), {"gpu": MIG, "devices_per_node": 3}, ("gpu", MIG, 60, 3)),
        (rows(MIG_ROW, {}), {"gpu": "A100"}, ("gpu", "a100", 4, 4)),
        (
            rows({"gres": "gpu:nvidia_a100-sxm4-80gb:4"}, MIG_ROW),
            {"gpu": "a100"},
            ("gpu", "nvidia_a100-sxm4-80gb", 4, 4),
        ),
        (rows({"name": "old", "up": "down"}, {}), {"partition_name": "old"}, ("old", "a100", 4, 4)),
        (
            rows({"nodes": 90}, {"gres": "gpu:a100:8"}),
            {"devices_per_node": 6},
            ("gpu", "a100", 4, 6),
        ),
        (
            rows({"name": "cpu", "gres": "(null)"}, {"nodes": 9}),
            {"device": "cpu"},
            ("cpu", None, 4, 48),
        ),
        (rows({"gres": "(null)"}), {"device": "cuda", "devices_per_node": 4}, ("gpu", None, 4, 4)),
    ],
)
def test_what_the_user_names_is_taken(kinds, options, expected):
    assert taken(choose(kinds, **options)) == expected


TWO_SIZES = (
    {"nodes": 10, "mb": 515000, "features": "ib,rack1,a100_40gb"},
    {"nodes": 6, "mb": 980000, "features": "ib,rack1,a100_80gb"},
)


@pytest.mark.parametrize(
    ("options", "constraint", "nodes", "memory_mb"),
    [
        ({}, "a100_40gb", 10, 515000),
        ({"constraint": "a100_80gb"}, "a100_80gb", 6, 980000),
        ({"constraint": "ib"}, "ib", 16, 515000),
    ],
)
def test_kinds_of_one_type_are_told_apart_by_a_feature(options, constraint, nodes, memory_mb):
    chosen = choose(rows(*TWO_SIZES), **options)
    assert (chosen.constraint, chosen.nodes, chosen.memory_mb) == (constraint, nodes, memory_mb)


@pytest.mark.parametrize(
    ("limits", "nodes", "cpus", "memory_mb", "remark"),
    [
        ({}, 4, 48, 500_000, ""),
        ({"nodes": 9, "cpus_per_node": 64}, 4, 48, 500_000, ""),
        ({"nodes": 2}, 2, 48, 500_000, "at most 2 of 4 nodes"),
        ({"cpus_per_node": 12}, 4, 12, 500_000, "at most 12 of 48 cores of a node"),
        ({"memory_per_cpu_mb": 1000}, 4, 48, 48_000, "at most 48000 of 500000 MB of a node"),
    ],
)
def test_a_site_has_no_more_than_a_job_may_have(limits, nodes, cpus, memory_mb, remark):
    chosen = choose(rows({}), limits_of=lambda names: [PartitionLimits(names[0], **limits)])
    assert (chosen.nodes, chosen.cpus_per_node, chosen.memory_mb) == (nodes, cpus, memory_mb)
    assert remark in " ".join(chosen.remarks)


def test_an_untyped_gpu_is_named_by_a_feature():
    kinds = rows(
        {"gres": "gpu:4", "features": "ib,v100", "nodes": 9},
        {"gres": "gpu:4", "features": "ib,a40"},
    )
    chosen = choose(kinds, gpu="A40")
    assert (chosen.constraint, chosen.nodes) == ("a40", 4)
    assert choose(kinds).constraint == "v100"


def test_a_feature_that_no_constraint_can_hold_is_not_used():
    kinds = rows({"features": "nic: ib", "nodes": 9}, {"features": 'say"no"'})
    chosen = choose(kinds)
    assert (chosen.constraint, chosen.nodes) == (None, 13)
    assert "no feature leaves the others out" in chosen.remarks[-1]


def test_where_nothing_tells_nodes_apart_the_smallest_counts():
    chosen = choose(rows({"mb": 980000, "nodes": 9, "cpus": 128}, {"mb": 515000, "cpus": 64}))
    assert (chosen.nodes, chosen.memory_mb, chosen.cpus_per_node) == (13, 515000, 64)
    assert "no feature leaves the others out" in chosen.remarks[-1]
    assert choose(rows({"mb": 1}, {"nodes": 9})).memory_mb is None


def test_nodes_with_more_of_a_gpu_are_not_counted():
    chosen = choose(rows({"nodes": 40}, {"gres": "gpu:a100:8", "nodes": 2}))
    assert (chosen.nodes, chosen.devices_per_node) == (40, 4)
    assert "8x a100" in chosen.remarks[-1]


def test_nodes_that_are_not_usable_are_named_and_counted_only_where_there_are_no_others():
    drained = {"nodes": 3, "state": "drained*"}
    chosen = choose(rows({"nodes": 7}, drained))
    assert chosen.nodes == 7
    assert chosen.remarks == ("not counted: 3 of 10 nodes (3 drained)",)
    assert choose(rows(drained), partition_name="gpu").nodes == 3


@pytest.mark.parametrize(
    ("kinds", "options", "sentence"),
    [
        (rows({}), {"gpu": "b200"}, "--gpu b200: no node has it; write one of a100"),
        (
            rows({}, {"gres": "gpu:a100l:4"}),
            {"gpu": "a1"},
            "several types hold it; write one of a100, a100l",
        ),
        (rows({}), {"partition_name": "gpuu"}, "no partition 'gpuu'; write one of gpu"),
        (
            rows({}, {"name": "e", "nodes": 0}),
            {"partition_name": "e"},
            "partition 'e' has no nodes",
        ),
        (rows({}), {"devices_per_node": 5}, "write at most 4, of 4x a100 in partition gpu"),
        (rows({}), {"constraint": "ib"}, "no such node has it; nodes have no features"),
        (rows({}), {"constraint": "a|b"}, "write one feature, or several as a&b"),
        (
            rows({"up": "down"}, {"name": "x", "state": "resv"}),
            {},
            "takes jobs now (gpu: down; x: 4 reserved)",
        ),
        (rows({"gres": "(null)"}), {"device": "cuda"}, "SLURM counts no GPUs"),
        (rows({"nodes": 0}), {}, "no partition has a node"),
        ([], {}, "sinfo lists no partition"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(kinds, options, sentence):
    with pytest.raises(ConfigError) as caught:
        choose(kinds, **options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("names", "gpu_type", "first"),
    [
        (["def-x_cpu", "def-x_gpu"], "a100", "def-x_gpu"),
        (["def-x_cpu", "def-x_gpu"], "", "def-x_gpu"),
        (["def-x_cpu", "def-x_gpu"], None, "def-x_cpu"),
        (["lab@cpu", "lab@h100", "lab@v100"], "v100", "lab@v100"),
        (["acpu", "lab"], "a100", "lab"),
        (["gpu-lab", "lab"], None, "lab"),
        (["b", "a"], "a100", "b"),
    ],
)
def test_the_account_that_fits_comes_first(names, gpu_type, first):
    assert fitting_accounts(names, gpu_type, ["v100", "h100", "a100"])[0] == first
