"""p2pBandwidthLatencyTest's output: read exactly, or refused with one sentence and a line."""

import re

import pytest
from p2p_printer import BASES, printed

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect.p2p_text import parse_p2p

KINDS = [
    ("staged", "unidirectional", None),
    ("direct", "unidirectional", "write"),
    ("staged", "bidirectional", None),
    ("direct", "bidirectional", "write"),
]


def kinds(parsed):
    return [(p["access"], p["direction"], p["operation"]) for p in parsed["pairs"]]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("old", [False, True])
def test_every_number_lands_where_it_belongs(count, old):
    parsed = parse_p2p(printed(count, old=old))
    assert parsed["devices"] == ["NVIDIA A100-SXM4-40GB"] * count
    assert parsed["connectivity"] == [[1.0] * count] * count
    assert kinds(parsed) == KINDS
    for pair, bandwidth, latency in zip(
        parsed["pairs"], (100, 200, 400, 500), (20, 2, 20, 2), strict=True
    ):
        assert pair["endpoints"] == [f"{i}: NVIDIA A100-SXM4-40GB" for i in range(count)]
        for i in range(count):
            for j in range(count):
                place = 10 * i + j
                assert pair["bandwidth_bytes_per_s"][i][j] == (bandwidth + place) * 1e9
                assert pair["latency_s"][i][j] == (latency + place) / 1e6


def test_reads_move_data_from_column_to_row():
    parsed = parse_p2p(printed(3, reads=True))
    assert ("direct", "unidirectional", "read") in kinds(parsed)
    (read,) = (pair for pair in parsed["pairs"] if pair["operation"] == "read")
    # Printed in row 0, column 2: device 0 reads from device 2, so 2 is the sender.
    assert read["bandwidth_bytes_per_s"][2][0] == 302e9
    assert read["latency_s"][2][0] == 5e-6


def test_what_is_no_number_is_unknown():
    def change(key, rows):
        if key[0] == "Unidirectional" and key[1] == "Disabled":
            rows[0][1], rows[1][0] = float("inf"), float("nan")
        return rows

    pair = parse_p2p(printed(2, change=change))["pairs"][0]
    assert pair["bandwidth_bytes_per_s"] == [[100e9, None], [None, 111e9]]


def test_a_remark_of_newer_versions_does_no_harm():
    text = printed(2).replace(
        "P2P Connectivity",
        "Note: cudaMemcpyPeerAsync reported 'operation not supported' - will use host-mediated "
        "copy when P2P is disabled\nP2P Connectivity",
    )
    assert kinds(parse_p2p(text)) == KINDS


def test_output_that_is_cut_anywhere_is_refused():
    text = printed(2, reads=True)
    end = text.index("\nNOTE: The CUDA")
    for length in range(0, end - 1, 7):
        with pytest.raises(ConfigError, match=r"^out\.txt line \d+: [^\n]+$"):
            parse_p2p(text[:length], "out.txt")


def spoiled(old, new):
    text = printed(2)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: no 'Device: 0, ...' line"),
        (
            "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nCuda failure p2pBandwidthLatencyTest"
            ".cu:610: 'CUDA driver version is insufficient for CUDA runtime version'\n",
            "line 2: the test failed: CUDA driver version is insufficient for CUDA runtime version",
        ),
        (
            printed(2).replace("Bidirectional P2P=Disabled", "Cuda failure x.cu:1: 'unknown'\n"),
            r"line \d+: the test failed: unknown",
        ),
        (spoiled("100.00 101.00", "100.00"), "a hole: row 0 of 2 rows has 1 values instead of 2"),
        (spoiled("101.00", "-5.00"), "-5.00 is below zero"),
        (spoiled("101.00", "fast"), "'fast' is not a number"),
        (spoiled("     0 100.00 101.00 \n", ""), "'1 110.00 111.00' stands where row 0"),
        (spoiled("Device: 1, NVIDIA A100-SXM4-40GB", "Device: 2, X"), "device 2 is listed where"),
        (spoiled("   D\\D     0      1 ", "   D\\D     0 "), "columns .0. for 2 devices"),
        (spoiled("Bidirectional P2P=Enabled", "Sideways P2P=Enabled"), "unknown heading"),
        (printed(2).replace("Bidirectional", "Unidirectional"), "appears twice"),
        (spoiled("P2P=Disabled Latency Matrix (us)\n   GPU", "P2P=Disabled Latency Matrix (us)\n"
                 "P2P=Disabled Latency Matrix (us)\n   GPU"), "no matrix under"),
        (spoiled("   CPU", "   GPU"), "a second GPU matrix"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_its_line(text, sentence):
    with pytest.raises(ConfigError, match=re.compile(sentence)) as caught:
        parse_p2p(text, "out.txt")
    message = str(caught.value)
    assert message.startswith("out.txt line ")
    assert "\n" not in message


def test_a_missing_matrix_is_named():
    start = printed(2).index("Bidirectional P2P=Enabled")
    end = printed(2).index("P2P=Disabled Latency")
    with pytest.raises(ConfigError, match="without a Bidirectional P2P=Enabled bandwidth"):
        parse_p2p(printed(2)[:start] + printed(2)[end:])


def test_the_bases_tell_matrices_apart():
    assert len(set(BASES.values())) == len(BASES)
