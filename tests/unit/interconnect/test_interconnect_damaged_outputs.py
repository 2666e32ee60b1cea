"""Outputs of link tests with any damage: values that links.json takes, or one sentence."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from p2p_printer import printed
from test_interconnect_nccl_tests_json import document as nccl
from test_interconnect_nvbandwidth import GOOD, document
from test_interconnect_nvbandwidth_text import TEXT as NVBANDWIDTH_TEXT
from test_interconnect_osu import BOTH, LATENCY
from test_interconnect_rdma_and_tcp import GBITS, WRITE, tcp
from test_interconnect_rdma_and_tcp import LATENCY as RDMA_LATENCY

from ddlbench.common.captured_text import decoded
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.links import PairMatrix
from ddlbench.interconnect.link_tests import read_link_test
from ddlbench.interconnect.message_tests import MessageTests
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.interconnect.nvbandwidth_text import parse_nvbandwidth_text
from ddlbench.interconnect.p2p import parse_p2p
from ddlbench.interconnect.pair_matrix import with_slow_pairs

TEXTS = [printed(2, reads=True), printed(3, old=True), printed(2, amd=True)]
LINES = [
    "", "0", "0 1", "1 2.00 3.00", "D\\D 0 1", ",0,1", "GPU:", "P2P Connectivity Matrix",
    "Device: 0, X, pciBusID: 1", "Device=0 CANNOT Access Peer Device=1", "warning", "9" * 5000,
    "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)", "P2P=Enabled Latency Matrix (us)",
    "0: 1: 2:", "12:00:00 0 1", "{", "\x1b[0m\x00\u2028", "0 1e308 1e308", "1 nan -nan",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**20) | st.floats()
    | st.sampled_from(["N/A", "nan", "1e999", "-1", "1_0", "", "Passed", "0: H100", "(GB/s)"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["name", "error", "x"]), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


def assert_values_or_one_sentence(parse, text):
    try:
        parsed = parse(text, "out")
    except ConfigError as error:
        assert str(error).startswith("out")
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    size = len(parsed["devices"])
    for pair in parsed["pairs"]:
        for key in ("bandwidth_bytes_per_s", "latency_s"):
            assert [len(row) for row in pair[key]] == [size] * size
            assert all(value is None or value >= 0 for row in pair[key] for value in row)
        json.dumps(with_slow_pairs(PairMatrix.from_dict(pair)).to_dict(), allow_nan=False)


@given(st.data())
@settings(derandomize=True)
@pytest.mark.filterwarnings("ignore:overflow")
def test_lines_of_p2p_that_are_lost_moved_or_added(data):
    lines = data.draw(st.sampled_from(TEXTS)).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        other = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["lose", "add", "replace", "copy", "cut", "join"]))
        if change == "lose":
            lines[place : place + 1] = []
        elif change == "add":
            lines.insert(place, data.draw(st.sampled_from(LINES)))
        elif change == "replace":
            lines[place] = data.draw(st.sampled_from(LINES))
        elif change == "copy":
            lines.insert(place, lines[other])
        elif change == "cut":
            lines = lines[min(place, other) : max(place, other) + 1]
        else:
            lines[place : place + 2] = ["".join(lines[place : place + 2])]
        lines = lines or [""]
    assert_values_or_one_sentence(parse_p2p, "\n".join(lines))


@given(st.data())
@settings(derandomize=True)
@pytest.mark.parametrize("parse", [parse_p2p, parse_nvbandwidth, parse_nvbandwidth_text])
def test_bytes_that_are_lost_or_changed(parse, data):
    text = {
        parse_p2p: TEXTS[0],
        parse_nvbandwidth: json.dumps(document(*GOOD), indent=1),
        parse_nvbandwidth_text: NVBANDWIDTH_TEXT,
    }[parse]
    content = bytearray(text, data.draw(st.sampled_from(["utf-8", "utf-16", "utf-16-le"])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=3))
    assert_values_or_one_sentence(parse, decoded(bytes(content)))


@given(st.data())
@settings(derandomize=True)
@pytest.mark.filterwarnings("ignore:overflow")
def test_values_of_nvbandwidth_that_are_others(data):
    value = json.loads(json.dumps(document(*GOOD)))
    for _ in range(data.draw(st.integers(1, 3))):
        inner = value
        while True:
            places = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not places:
                break
            place = data.draw(st.sampled_from(places))
            if isinstance(inner[place], dict | list) and data.draw(st.booleans()):
                inner = inner[place]
                continue
            if data.draw(st.booleans()):
                inner[place] = data.draw(VALUES)
            else:
                del inner[place]
            break
    assert_values_or_one_sentence(parse_nvbandwidth, json.dumps(value))


MESSAGES = [LATENCY + BOTH, WRITE + GBITS, RDMA_LATENCY, json.dumps(tcp()), json.dumps(nccl())]


@given(st.data())
@settings(derandomize=True)
@pytest.mark.parametrize("text", MESSAGES, ids=["osu", "perftest", "latency", "iperf3", "nccl"])
def test_outputs_that_are_values_or_one_sentence(text, data):
    content = bytearray(text, "utf-8")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=3))
    try:
        reading = read_link_test(decoded(bytes(content)), "out")
    except ConfigError as error:
        assert str(error).startswith("out")
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    values = reading.to_dict() if isinstance(reading, MessageTests) else asdict(reading)
    json.dumps(values, allow_nan=False)
