"""Which links are refused, and in what words."""

import pytest

from ddlbench.emulation import LinkMissed, require
from ddlbench.emulation.probe import misses

SETTING = {"latency_s": 0.01, "bandwidth_bits_per_s": 500e6, "loss": 0.01}


def measured(delay_s=0.0102, rate=490e6, low=0.008, high=0.012):
    interval = {"low": low, "high": high, "confidence": 0.999}
    return {
        "pairs": [
            {"from": 0, "to": 1, "one_way_delay_s": delay_s, "rate_bits_per_s": rate},
            {"from": 1, "to": 0, "one_way_delay_s": 0.01, "rate_bits_per_s": 500e6},
        ],
        "loss": {"sent": 20_000, "lost": 200, "wide_interval": interval},
    }


def test_a_good_link_passes():
    assert misses(SETTING, measured()) == []
    require({"misses": []})


@pytest.mark.parametrize("share", [0.91, 1.09])
def test_ten_percent_may_be_off(share):
    assert misses(SETTING, measured(delay_s=0.01 * share, rate=500e6 * share)) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"delay_s": 0.0115},
            "the one-way delay from node0 to node1 is 11.5 ms, the setting is 10 ms (+15%",
        ),
        ({"delay_s": 0.008}, "is 8 ms, the setting is 10 ms (-20%"),
        ({"delay_s": None}, "no echo came back from node0 to node1"),
        (
            {"rate": 400e6},
            "the rate from node0 to node1 is 400 Mbit/s, the setting is 500 Mbit/s (-20%",
        ),
        ({"rate": None}, "the rate from node0 to node1 could not be measured"),
        (
            {"low": 0.02, "high": 0.03},
            "200 of 20000 packets were lost, the setting is 1.000% (99.9% interval 2.000%",
        ),
    ],
)
def test_a_miss_is_one_sentence(changes, sentence):
    actual = misses(SETTING, measured(**changes))
    assert len(actual) == 1
    assert sentence in actual[0]
    with pytest.raises(LinkMissed) as error:
        require({"misses": actual})
    assert str(error.value) == actual[0]


def test_links_inside_a_node_are_judged_by_their_own_setting():
    setting = {**SETTING, "inside": {"latency_s": 0.001, "bandwidth_bits_per_s": 8e9}}
    pair = {"node": 1, "from": 0, "to": 3, "one_way_delay_s": 0.001, "rate_bits_per_s": 8e9}
    actual = {**measured(), "inside": {"pairs": [pair]}}
    assert misses(setting, actual) == []
    slow = {**actual, "inside": {"pairs": [{**pair, "rate_bits_per_s": 4e9}]}}
    (sentence,) = misses(setting, slow)
    assert "the rate from device 0 to device 3 of node1 is 4000 Mbit/s" in sentence


def test_one_node_has_no_link_that_loses_packets():
    inside = {"latency_s": 0.001, "bandwidth_bits_per_s": None}
    pair = {"node": 0, "from": 0, "to": 1, "one_way_delay_s": 0.002, "rate_bits_per_s": None}
    actual = {"pairs": [], "loss": None, "inside": {"pairs": [pair]}}
    (sentence,) = misses({**SETTING, "inside": inside}, actual)
    assert "the one-way delay from device 0 to device 1 of node0 is 2 ms" in sentence


def test_what_is_not_set_is_not_judged():
    free = {"latency_s": 0.0, "bandwidth_bits_per_s": None, "loss": 0.0}
    assert misses(free, measured(delay_s=0.0001, rate=None, low=0.0, high=0.0004)) == []
