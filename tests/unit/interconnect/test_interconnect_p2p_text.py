"""p2pBandwidthLatencyTest's output: read exactly, or refused with one sentence and a line."""

import re

import pytest
from p2p_printer import BASES, NAME, printed

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.p2p import parse_p2p

KINDS = [
    ("staged", "unidirectional", None),
    ("direct", "unidirectional", "write"),
    ("staged", "bidirectional", None),
    ("direct", "bidirectional", "write"),
]
# All copies are pulled by the row's device; a test of both directions reads and writes.
OLD_KINDS = [
    ("staged", "unidirectional", None),
    ("direct", "unidirectional", "read"),
    ("staged", "bidirectional", None),
    ("direct", "bidirectional", None),
]


def kinds(parsed):
    return [(p["access"], p["direction"], p["operation"]) for p in parsed["pairs"]]


def assert_values(parsed, count):
    for pair, bandwidth, latency in zip(
        parsed["pairs"], (100, 200, 180, 500), (20, 2, 20, 2), strict=True
    ):
        for i in range(count):
            for j in range(count):
                place = 10 * i + j
                assert pair["bandwidth_bytes_per_s"][i][j] == (bandwidth + place) * 1e9
                assert pair["latency_s"][i][j] == (latency + place) / 1e6


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("version", [{}, {"old": True}, {"amd": True}])
def test_every_number_lands_where_it_belongs(count, version):
    parsed = parse_p2p(printed(count, **version))
    assert parsed["devices"] == [NAME] * count
    assert parsed["connectivity"] == [[1.0] * count] * count
    assert parsed["remarks"] == []
    assert kinds(parsed) == (OLD_KINDS if "old" in version else KINDS)
    assert_values(parsed, count)
    for pair in parsed["pairs"]:
        assert pair["endpoints"] == [f"{i}: {NAME}" for i in range(count)]


def test_before_cuda_10_the_row_receives():
    """cudaMemcpyPeerAsync(buffers[i], i, buffers[j], j): row 0, column 1 is from 1 to 0."""

    def change(key, rows):
        return [[500.0, 12.0], [6.0, 500.0]] if key[1] == "Enabled" else rows

    pairs = parse_p2p(printed(2, old=True, change=change))["pairs"]
    (read,) = (pair for pair in pairs if pair["operation"] == "read")
    assert read["bandwidth_bytes_per_s"][1][0] == 12e9
    assert read["latency_s"][0][1] == 6e-6


def test_the_oldest_version_lists_cliques():
    parsed = parse_p2p(printed(4, old=True, cliques=True))
    assert parsed["connectivity"] is None
    assert kinds(parsed) == OLD_KINDS
    assert_values(parsed, 4)


def test_reads_move_data_from_column_to_row():
    parsed = parse_p2p(printed(3, reads=True))
    assert ("direct", "unidirectional", "read") in kinds(parsed)
    (read,) = (pair for pair in parsed["pairs"] if pair["operation"] == "read")
    assert read["bandwidth_bytes_per_s"][2][0] == 320e9
    assert read["latency_s"][2][0] == 23e-6


@pytest.mark.parametrize("heading", ["Bandwidth", "Latency"])
def test_a_heading_of_another_version_tells_no_direction(heading):
    text = printed(2).replace(f"{heading} (P2P Writes)", heading)
    with pytest.raises(ConfigError, match="which device sends is not known"):
        parse_p2p(text)
    with pytest.raises(ConfigError, match="which device sends is not known"):
        parse_p2p(printed(2).replace(" (P2P Writes)", ""))


def test_without_peer_access_copies_are_staged():
    texts = [printed(2, reaches=lambda i, j: False)]
    texts.append(texts[0].replace("CANNOT", "CAN"))  # the matrix alone says so
    texts.append(re.sub(r"P2P Conn.*?(?=Unidirect)", "", texts[0], flags=re.S))  # the lines alone
    for text in texts:
        parsed = parse_p2p(text)
        assert {pair["access"] for pair in parsed["pairs"]} == {"staged"}
        assert parsed["remarks"] == []
        assert_values(parsed, 2)


def test_peer_access_of_some_pairs_is_neither():
    parsed = parse_p2p(printed(4, reaches=lambda i, j: i // 2 == j // 2))
    assert [kind[0] for kind in kinds(parsed)] == ["staged", None, "staged", None]
    assert parsed["connectivity"][0] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("start", "named", "remarks"),
    [
        ("Device: 2", 2, ["have no name"]),
        ("\n***NOTE", 4, ["have no name"]),
        ("P2P Connectivity", 4, ["have no name"]),
        ("Unidirectional", 4, ["have no name", "no connectivity matrix"]),
    ],
)
def test_what_is_cut_off_above_the_matrices_is_not_needed(start, named, remarks):
    text = printed(4)
    parsed = parse_p2p(text[text.index(start) :])
    assert parsed["devices"] == ["GPU"] * named + [NAME] * (4 - named)
    assert kinds(parsed) == KINDS
    assert_values(parsed, 4)
    for remark, words in zip(parsed["remarks"], remarks, strict=True):
        assert words in remark


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "> ", "    ", "node-7: "])
def test_what_stands_before_each_line_is_removed(prefix, old):
    text = "".join(f"{prefix}{line}\n" for line in printed(3, old=old).splitlines())
    assert parse_p2p(text) == parse_p2p(printed(3, old=old))


def test_lines_of_two_tasks_are_refused():
    lines = printed(2).splitlines()
    text = "".join(f"{task}: {line}\n" for line in lines for task in (0, 1))
    with pytest.raises(ConfigError, match="'0:' and with '1:' are mixed; keep the lines of one"):
        parse_p2p(text, "out.txt")


def test_what_is_no_number_is_unknown():
    def change(key, rows):
        if key[0] == "Unidirectional" and key[1] == "Disabled":
            rows[0][1], rows[1][0] = float("inf"), float("nan")
        return rows

    pair = parse_p2p(printed(2, change=change))["pairs"][0]
    assert pair["bandwidth_bytes_per_s"] == [[100e9, None], [None, 111e9]]


def test_remarks_of_newer_versions_and_of_others_do_no_harm():
    text = printed(2).replace(
        "P2P Connectivity",
        "Note: cudaMemcpyPeerAsync reported 'operation not supported' - will use host-mediated "
        "copy when P2P is disabled\n2 GPUs are throttled\nP2P Connectivity",
    )
    text += "Iterative P2P Test: P2P Enabled (GPU 0 <-> GPU 1, 1000 iterations)\n"
    text += "1      MB | Bandwidth GB/s |   200.00 |   210.00 |   205.00\n"
    assert kinds(parse_p2p(text)) == KINDS


ROW = "     1 110.00 111.00 \n"


@pytest.mark.parametrize(
    "line", ["", "   ", "srun: warning: a node is late", "[12.5] NVRM: Xid 31", "3 GPUs are hot"]
)
def test_a_line_between_numbered_rows_is_left_out(line):
    parsed = parse_p2p(spoiled(ROW, f"{line}\n{ROW}"))
    assert_values(parsed, 2)
    if line.strip():
        assert len(parsed["remarks"]) == 1
        assert re.match(r"line 17 is no row and is left out: ", parsed["remarks"][0])
    else:
        assert parsed["remarks"] == []


def test_a_line_that_may_be_a_row_is_refused():
    for line in ("1 GPU is hot\n", "7 8.00 9.00\n", "1 8.00\n"):
        with pytest.raises(ConfigError, match="line 17: .* remove the line if the test did not"):
            parse_p2p(spoiled(ROW, line + ROW))
    with pytest.raises(ConfigError, match="take from line 17 what the test did not print"):
        parse_p2p(spoiled(ROW, "srun: warning" + ROW))


@pytest.mark.parametrize("version", [{}, {"old": True}, {"amd": True}])
def test_two_runs_are_refused_with_the_lines_to_keep(version):
    text = printed(2, **version)
    count = text.count("\n")
    for first in (text, text[text.index("P2P Conn") :]):
        for second in (text, text[text.index("Device: 0") :]):
            end = count if first is text else count - text[: text.index("P2P Conn")].count("\n")
            sentence = f"line {end + 1}: a second run begins here; keep lines 1 to {end}, or those"
            with pytest.raises(ConfigError, match=sentence):
                parse_p2p(first + second)
    with pytest.raises(ConfigError, match=f"keep lines 1 to {count + 1}, or"):
        parse_p2p(f"{text}# with --sm_copy\n{text[text.index('Unidirectional') :]}")


def test_runs_whose_lines_are_mixed_are_refused():
    text = "".join(f"{line}\n{line}\n" for line in printed(2).splitlines())
    with pytest.raises(ConfigError, match="line 4: the lines of several runs are mixed"):
        parse_p2p(text)


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
    ("old", "new", "remark"),
    [
        (
            "201.00",
            "901.00",
            "P2P=Enabled: 0 and 1 carry 901 GB/s one way, 501 in both (and 1 more)",
        ),
        ("501.00", "901.00", "P2P=Enabled: 0 and 1 carry 210 GB/s one way, 901 in both:"),
        ("190.00", "1.00", "P2P=Disabled: 0 and 1 carry 110 GB/s one way, 1 in both:"),
    ],
)
def test_rates_one_way_and_in_both_that_contradict_each_other_are_a_remark(old, new, remark):
    (first,) = parse_p2p(spoiled(old, new))["remarks"]
    assert first.startswith(remark)
    assert first.endswith("a value may have changed; run the test again")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: no matrix in it: this is no output of p2pBandwidthLatencyTest"),
        (
            "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nCuda failure p2pBandwidthLatencyTest"
            ".cu:610: 'CUDA driver version is insufficient for CUDA runtime version'\n",
            "line 2: the test failed: CUDA driver version is insufficient for CUDA runtime version",
        ),
        (
            printed(2).replace("Bidirectional P2P=Disabled", "Cuda failure x.cu:1: 'unknown'\n"),
            r"line \d+: the test failed: unknown",
        ),
        ("Hip failure x.cpp:9: 'no device'\n", "line 1: the test failed: no device"),
        (spoiled("100.00 101.00", "100.00"), "a hole: row 0 of 2 rows has 1 values instead of 2"),
        (spoiled("101.00", "-5.00"), "-5.00 is below zero"),
        (spoiled("101.00", "fast"), "'fast' is not a number"),
        (spoiled("101.00", "1_01"), "'1_01' is not a number"),
        (spoiled("     0 100.00 101.00 \n", ""), "'1 110.00 111.00' stands where row 0"),
        (spoiled("Device: 1, NVIDIA A100-SXM4-40GB", "Device: 2, X"), r"devices \[0, 2\] are lis"),
        (spoiled("Device: 1, NVIDIA A100-SXM4-40GB", "Other: 1, X"), r"devices \[0\] are listed"),
        (spoiled("   D\\D     0      1 ", "   D\\D     0 "), "columns .0. for 2 devices"),
        (spoiled("Bidirectional P2P=Enabled", "Sideways P2P=Enabled"), "unknown heading"),
        (printed(2).replace("Bidirectional", "Unidirectional"), "a second run begins here"),
        (spoiled(ROW, "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n"), "it is cut; run"),
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
