"""`ddlbench links probe`: what it asks for, what it prints, how it ends."""

import json

import pytest
from click.testing import CliRunner

from ddlbench.commands import links
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition

SENTENCE = "the rate from node0 to node1 is 400 Mbit/s, the setting is 500 Mbit/s"


class Nodes:
    """Stands in for emulated nodes; keeps what it was made of."""

    made = None
    misses = ()
    error = None

    def __init__(self, condition, count, devices):
        type(self).made, type(self).devices = (condition, count), devices

    def __enter__(self):
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, *_):
        pass

    def probe(self, controls):
        condition, count = self.made
        interval = {"low": 0.008, "high": 0.012, "confidence": 0.95}
        inside = {"one_way_delay_s": 0.00202, "rate_bits_per_s": 8.1e9}
        return {
            "setting": {**condition.to_dict(), "nodes": count},
            "measured": {
                "links": {"backend": "relay"},
                "one_way_delay_s": 0.0101,
                "rate_bits_per_s": 400e6,
                **({} if condition.inside is None else {"inside": inside}),
                "loss": None
                if count == 1
                else {"sent": 20_000, "lost": 200, "share": 0.01, "interval": interval},
                "tcp": [
                    {"congestion_control": name, "goodput_bits_per_s": 14e6, "failure": None}
                    if name != "nosuch"
                    else {"congestion_control": name, "goodput_bits_per_s": None, "failure": "none"}
                    for name in ("cubic", *controls)
                ],
            },
            "ok": not self.misses,
            "misses": list(self.misses),
        }


@pytest.fixture
def nodes(monkeypatch):
    class Fresh(Nodes):
        pass

    monkeypatch.setattr(links, "EmulatedNodes", Fresh)
    return Fresh


def probe(*arguments):
    return CliRunner().invoke(links.links, ["probe", *arguments])


LINK_OPTIONS = ("--latency-ms", "10", "--bandwidth-mbit", "500", "--loss-percent", "1")


def test_json_of_a_good_link(nodes):
    done = probe(*LINK_OPTIONS, "--json", "--compare", "bbr")
    assert done.exit_code == 0
    assert nodes.made == (LinkCondition(0.01, 500e6, 0.01), 2)
    actual = json.loads(done.stdout)
    assert set(actual) == {"setting", "measured", "ok", "misses"}
    assert [flow["congestion_control"] for flow in actual["measured"]["tcp"]] == ["cubic", "bbr"]


def test_a_missed_setting_is_exit_status_one(nodes):
    nodes.misses = (SENTENCE,)
    done = probe(*LINK_OPTIONS, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["misses"] == [SENTENCE]


def test_the_table_shows_both(nodes):
    nodes.misses = (SENTENCE,)
    done = probe(*LINK_OPTIONS, "--mtu", "9000", "--nodes", "3", "--backend", "relay")
    assert done.exit_code == 1
    assert max(map(len, done.stdout.splitlines())) <= 80
    for text in ("10.000 ms", "10.100 ms", "20.200 ms", "500.0 Mbit/s", "400.0 Mbit/s", "1.000%"):
        assert text in done.stdout
    assert f"missed: {SENTENCE}" in done.stdout
    assert nodes.made == (LinkCondition(0.01, 500e6, 0.01, mtu=9000, backend="relay"), 3)


def test_a_congestion_control_that_is_not_there_is_told(nodes):
    done = probe(*LINK_OPTIONS, "--compare", "nosuch")
    assert done.exit_code == 0
    assert "no goodput of TCP: none" in done.stdout


def test_without_a_rate_there_is_no_limit(nodes):
    assert probe("--latency-ms", "0").exit_code == 0
    assert nodes.made[0] == LinkCondition(0.0, None, 0.0)


def test_links_inside_a_node_have_rows_of_their_own(nodes):
    inside = ("--inside-latency-ms", "2", "--inside-bandwidth-mbit", "8000")
    done = probe(*LINK_OPTIONS, *inside, "--devices", "4")
    assert done.exit_code == 0
    for text in ("500.0 Mbit/s", "8000.0 Mbit/s", "8100.0 Mbit/s", "2.020 ms", "4.040 ms"):
        assert text in done.stdout
    assert nodes.made[0].inside == LinkCondition(0.002, 8e9, 0.0)
    assert nodes.devices == 4
    alone = probe("--nodes", "1", *inside)
    assert alone.exit_code == 0
    assert "8100.0 Mbit/s" in alone.stdout
    assert "loss" not in alone.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--latency-ms", "-1"), "links probe: latency_ms: -1.0 is too small"),
        (("--latency-ms", "1", "--loss-percent", "51"), "loss_percent: 51.0 is too large"),
        (("--latency-ms", "2001"), "latency_ms: 2001.0 is too large"),
        (("--latency-ms", "1", "--mtu", "1"), "mtu: 1 is too small"),
        (("--bandwidth-mbit", "1"), "links probe: 'latency_ms' is missing"),
        (("--inside-bandwidth-mbit", "1"), "inside: 'latency_ms' is missing"),
    ],
)
def test_what_cannot_be_is_one_sentence(nodes, arguments, sentence):
    done = probe(*arguments)
    assert isinstance(done.exception, ConfigError)
    assert sentence in str(done.exception)


def test_a_machine_that_cannot_is_one_sentence(nodes):
    nodes.error = links.EmulationFailed("no namespaces can be made: not permitted")
    done = probe(*LINK_OPTIONS)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "links probe: no namespaces can be made: not permitted"
