"""Link conditions, as people write them and as results hold them."""

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition


def test_units_are_those_of_the_names():
    condition = LinkCondition.from_mapping(
        {"latency_ms": 10, "bandwidth_mbit_per_s": 500, "loss_percent": 1}, "here"
    )
    assert condition == LinkCondition(0.01, 500e6, 0.01)
    assert condition.to_dict() == {
        "latency_s": 0.01,
        "bandwidth_bits_per_s": 500e6,
        "loss": 0.01,
        "mtu": 1500,
        "congestion_control": "cubic",
        "backend": "auto",
    }
    assert LinkCondition(**condition.to_dict()) == condition


def test_no_rate_is_no_limit():
    for values in ({"latency_ms": 0}, {"latency_ms": 0, "bandwidth_mbit_per_s": None}):
        assert LinkCondition.from_mapping(values, "here").bandwidth_bits_per_s is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "here: 'latency_ms' is missing"),
        ({"latency": 1}, "'latency' is not a key here; did you mean 'latency_ms'?"),
        ({"latency_ms": -1}, "latency_ms: -1 is too small"),
        ({"latency_ms": float("nan")}, "latency_ms: nan is not a number"),
        ({"latency_ms": "10"}, "latency_ms: '10' is not a number; write 10"),
        ({"latency_ms": 1, "loss_percent": 100}, "loss_percent: 100 is too large"),
        ({"latency_ms": 1, "bandwidth_mbit_per_s": 0}, "bandwidth_mbit_per_s: 0 is too small"),
        ({"latency_ms": 1, "mtu": 100}, "mtu: 100 is too small"),
        ({"latency_ms": 1, "backend": "tbf"}, "backend: 'tbf' is not allowed"),
        ({"latency_ms": 1, "congestion_control": "cubic; reboot"}, "congestion_control"),
        (10, "here: 10 is no link condition"),
    ],
)
def test_what_cannot_be_is_one_sentence(values, sentence):
    with pytest.raises(ConfigError) as error:
        LinkCondition.from_mapping(values, "here")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


INSIDE = {"latency_ms": 0.02, "bandwidth_mbit_per_s": 8000}


def test_links_inside_nodes_are_a_condition_of_their_own():
    both = LinkCondition.from_mapping(
        {"latency_ms": 0.05, "bandwidth_mbit_per_s": 40_000, "mtu": 9000, "inside": INSIDE}, "here"
    )
    assert both.inside == LinkCondition(0.02e-3, 8e9, 0.0, mtu=9000)
    assert both.backend == "relay"  # netem makes none
    values = both.to_dict()
    assert values["inside"] == {"latency_s": 0.02e-3, "bandwidth_bits_per_s": 8e9}
    only = LinkCondition.from_mapping({"inside": INSIDE}, "here")
    assert (only.latency_s, only.bandwidth_bits_per_s, only.loss) == (0.0, None, 0.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"inside": {}}, "here: inside: 'latency_ms' is missing"),
        ({"inside": {"latency_ms": 1, "loss_percent": 1}}, "'loss_percent' is not a key here"),
        ({"inside": INSIDE, "bandwidth_mbit_per_s": 1}, "here: 'latency_ms' is missing"),
        ({"inside": INSIDE, "loss_percent": 1}, "here: 'latency_ms' is missing"),
        ({"inside": INSIDE, "backend": "netem"}, "here: backend: netem makes no links inside"),
        ({"inside": 8000}, "inside: 8000"),
    ],
)
def test_links_inside_nodes_that_cannot_be_are_one_sentence(values, sentence):
    with pytest.raises(ConfigError) as error:
        LinkCondition.from_mapping(values, "here")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_slow_and_small_devices_have_slow_and_narrow_links_of_both_kinds():
    both = LinkCondition.from_mapping(
        {"latency_ms": 1, "bandwidth_mbit_per_s": 1000, "inside": INSIDE}, "here"
    )
    slow = both.slowed(4).shrunk(10)
    assert (slow.latency_s, slow.bandwidth_bits_per_s) == pytest.approx((4e-3, 25e6))
    assert slow.inside is not None
    assert slow.inside.latency_s == pytest.approx(0.08e-3)
    assert slow.inside.bandwidth_bits_per_s == pytest.approx(200e6)
    assert slow.burst_s == slow.inside.burst_s == pytest.approx(4 * both.burst_s)
    free = LinkCondition(0.0, None, 0.0).slowed(4).shrunk(10)
    assert free.bandwidth_bits_per_s is None


@pytest.mark.parametrize(
    ("values", "shaped", "unshaped"),
    [
        ({"latency_ms": 1}, ["2x1", "2x4"], ["1x1", "1x4"]),
        ({"inside": INSIDE}, ["1x2", "2x4"], ["1x1", "4x1"]),
        ({"latency_ms": 1, "inside": INSIDE}, ["1x2", "2x1", "2x4"], ["1x1"]),
    ],
)
def test_a_condition_shapes_geometries_that_have_such_links(values, shaped, unshaped):
    condition = LinkCondition.from_mapping(values, "here")
    for geometry in (*shaped, *unshaped):
        assert condition.shapes(*map(int, geometry.split("x"))) == (geometry in shaped), geometry
