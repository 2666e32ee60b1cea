"""Link conditions, as people write them and as results hold them."""

import pytest

from ddlbench.experiment.errors import ConfigError
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
