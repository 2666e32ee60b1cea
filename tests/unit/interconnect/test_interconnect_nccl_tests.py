"""The text of nccl-tests, as captured with ranks, repeats, failures and missing ends."""

import re

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.nccl_tests import is_nccl_tests, parse_nccl_tests

HEADER = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5"
NAMED = "# Collective test starting: {}_perf"
TITLE = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
ROWS = """\
   536870912     134217728     float     sum      -1   2559.2  209.78  393.34      0   2560.1  209.7  393.2      0
  1073741824     268435456     float     sum      -1   4607.6  233.04  436.94      0   4610.0  232.9  436.7      0
"""  # noqa: E501 - as it was printed
OLD = """\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
  1310720000     327680000   float     sum   2.5e+06    0.52    0.98  0e+00   2.5e+06    0.52    0.98  0e+00
"""  # noqa: E501 - as it was printed
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 415.1\n"


def ranks(count, per_node=8, device="NVIDIA H100 80GB HBM3"):
    return "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {1887 + rank:6d} on   worker-{rank // per_node} device "
        f"{rank % per_node:2d} [0x8d] {device}"
        for rank in range(count)
    )


def text(rows=ROWS, count=16, end=END, name=""):
    return "\n".join([HEADER, name, "#", "# Using devices", ranks(count), "#", TITLE, rows, end])


def test_a_run_of_two_nodes():
    test = parse_nccl_tests(text(), "out")
    assert (test.operation, test.ranks) == ("all_reduce", 16)
    assert test.hosts == ("worker-0", "worker-1")
    assert test.devices == ("NVIDIA H100 80GB HBM3",)
    sizes = [(point.payload_bytes, point.time_s) for point in test.points]
    assert sizes == [(2**29, pytest.approx(2559.2e-6)), (2**30, pytest.approx(4607.6e-6))]
    assert not test.remarks


def test_lines_with_a_rank_a_host_or_the_time():
    for prefix in ("0: ", "[1,0]<stdout>:", "2026-03-01T10:00:00Z worker-0 "):
        lines = "\n".join(prefix + line for line in text().splitlines())
        assert len(parse_nccl_tests(lines, "out").points) == 2


@pytest.mark.parametrize("time_us", ["0", "-1", "nan", "1e308", "9" * 400])
def test_rows_without_a_time_are_no_rows(time_us):
    rows = re.sub(r"2559.2|4607.6|2560.1|4610.0", time_us, ROWS)
    with pytest.raises(ConfigError, match="no row of nccl-tests"):
        parse_nccl_tests(text(rows), "out")


def test_repeats_are_medians_and_the_old_form_is_read():
    slower = ROWS.replace("2559.2  209.78", "3000  178.96").replace(
        "4607.6  233.04", "5000  214.75"
    )
    slowest = ROWS.replace("2559.2  209.78", "9000  59.65").replace(
        "4607.6  233.04", "9000  119.30"
    )
    test = parse_nccl_tests(text(ROWS + slower + slowest), "out")
    assert [point.time_s for point in test.points] == [pytest.approx(3e-3), pytest.approx(5e-3)]
    old = parse_nccl_tests(text(OLD, 16, name="mpirun -np 16 build/all_reduce_perf -b 1G"), "out")
    assert old.points[0].time_s == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("ratio", "redop", "operation"),
    [
        (1.875, "sum", "all_reduce"),
        (0.9375, "sum", "reduce_scatter"),
        (0.9375, "none", "all_gather"),
        (1.0, "none", "broadcast"),
    ],
)
def test_the_operation_shows_in_the_rates(ratio, redop, operation):
    row = f" 1073741824 268435456 float {redop} -1 4607.6 100.00 {100 * ratio:.2f} 0\n"
    assert parse_nccl_tests(text(row), "out").operation == operation


@pytest.mark.parametrize(
    ("redop", "operation"), [("sum", "reduce_scatter"), ("none", "all_gather")]
)
def test_on_many_ranks_the_rates_are_no_broadcast_s(redop, operation):
    row = f" 1073741824 268435456 float {redop} -1 4607.6 233.04 {233.04 * 127 / 128:.2f} 0\n"
    assert parse_nccl_tests(text(row, 128), "out").operation == operation


@pytest.mark.parametrize(("redop", "busbw"), [("sum", "100.00"), ("none", "93.75")])
def test_a_reduce_a_gather_and_a_scatter_have_a_root(redop, busbw):
    row = f" 1073741824 268435456 float {redop} 0 4607.6 100.00 {busbw} 0\n"
    with pytest.raises(ConfigError, match="a test with a root .*reduce_perf.* cannot be compared"):
        parse_nccl_tests(text(row), "out")


def test_the_name_of_the_program_counts_before_the_rates():
    named = text(name=NAMED.format("reduce_scatter"))
    assert parse_nccl_tests(named, "out").operation == "reduce_scatter"


def test_what_cannot_be_compared_is_said():
    with pytest.raises(ConfigError, match="alltoall_perf cannot be compared"):
        parse_nccl_tests(text(name=NAMED.format("alltoall")), "out")
    alone = text().replace(ranks(16), "\n".join([ranks(1)] * 16))
    with pytest.raises(ConfigError, match="16 processes ran alone"):
        parse_nccl_tests(alone, "out")
    with pytest.raises(ConfigError, match="no row of nccl-tests.*NCCL failure"):
        parse_nccl_tests(text("worker-0: Test NCCL failure common.cu:1005 'unhandled'"), "out")


def test_runs_of_other_ranks_or_operations_are_no_repeats():
    for other in (
        text(count=8),
        text(ROWS.replace("393.34", "196.67").replace("436.94", "218.47")),
    ):
        with pytest.raises(ConfigError, match="begins here, after all_reduce of 16 ranks"):
            parse_nccl_tests(text() + other, "out")
    assert len(parse_nccl_tests(text() + text(), "out").points) == 2
    assert parse_nccl_tests(text(count=2) + text(count=2), "out", "all_gather").ranks == 2


def test_wrong_values_and_a_missing_end_are_remarks():
    wrong = ROWS.replace("393.34      0", "393.34     12")
    test = parse_nccl_tests(text(wrong, end=""), "out")
    assert [word in " ".join(test.remarks) for word in ("wrong values (12)", "last line")] == [
        True,
        True,
    ]


def test_wrong_values_in_place_count_too():
    wrong = ROWS.replace("393.2      0", "393.2      3")
    assert "wrong values (3)" in parse_nccl_tests(text(wrong, end=""), "out").remarks[0]


def test_large_counts_failed_checks_and_broken_rows_are_remarks():
    many = ROWS.replace("393.34      0", "393.34  1.04858e+06")
    assert "wrong values (1,048,580)" in parse_nccl_tests(text(many), "out").remarks[0]
    failed = END.replace("0 OK", "5 FAILED")
    assert "sizes with wrong values (5)" in parse_nccl_tests(text(end=failed), "out").remarks[0]
    broken = ROWS.replace("-1   2559.2", "-1worker-0:1 [0] NCCL INFO Connected all trees\n 2559.2")
    test = parse_nccl_tests(text(broken), "out")
    assert len(test.points) == 1
    assert "1 row is left out" in test.remarks[0]


def test_a_row_that_was_cut_off_gives_no_other_time():
    *whole, last = ROWS.splitlines()
    times = [point.time_s for point in parse_nccl_tests(text(), "out").points]
    for end in range(1, len(last)):
        test = parse_nccl_tests(text("\n".join([*whole, last[:end]]), end=""), "out")
        assert [point.time_s for point in test.points] in (times[:1], times)
    for rows in (ROWS.replace("4607.6", "-4607.6"), ROWS.replace("4607.6", "N/A")):
        test = parse_nccl_tests(text(rows), "out")
        assert len(test.points) + len(test.remarks) == 2


def test_rows_of_other_widths_than_the_heading_are_read_where_nothing_was_cut():
    stamped = TITLE.replace("#wrong", "#wrong     time   algbw   busbw #wrong    timestamp")
    rows = "\n".join(f"{row}  2026-01-01 10:00:00" for row in ROWS.splitlines())
    assert len(parse_nccl_tests(text(rows).replace(TITLE, stamped), "out").points) == 2
    in_place = f"  536870912  134217728  float  sum  -1{' ' * 40}2560.1  209.7  393.2  0"
    both = TITLE + "     time   algbw   busbw #wrong"
    read = parse_nccl_tests(text(in_place).replace(TITLE, both), "out")
    assert [point.time_s for point in read.points] == [pytest.approx(2560.1e-6)]
    noisy = both + " worker-0:1 [0] NCCL INFO Channel 00"
    assert len(parse_nccl_tests(text().replace(TITLE, noisy), "out").points) == 2


def test_an_operation_that_the_text_denies_is_refused():
    with pytest.raises(ConfigError, match="names all_reduce_perf, and --operation broadcast"):
        parse_nccl_tests(text(name=NAMED.format("all_reduce")), "out", "broadcast")


def test_rows_of_other_programs_are_not_recognised():
    for line in ("10 20 shards of data are ready", "1 50 train 2.31 4.5 lr 0.1 ok"):
        assert not is_nccl_tests(line)
    errors = OLD.replace("0e+00", " -nan")
    assert errors != OLD
    assert len(parse_nccl_tests(text(errors, name=NAMED.format("all_reduce")), "out").points) == 1


def test_times_of_the_day_differing_bits_and_colours():
    plain = parse_nccl_tests(text(), "out")
    dated = re.sub(r"      0$", "      0  2025-06-01 10:00:00", ROWS, flags=re.MULTILINE)
    bits = ROWS.replace("      0   ", "      0         0   ")
    bits = re.sub(r"      0$", "      0         0", bits, flags=re.MULTILINE)
    coloured = re.sub(r"^(.*)$", "\x1b[32m\\1\x1b[0m", ROWS, flags=re.MULTILINE)
    for rows in (dated, bits, coloured):
        assert rows != ROWS
        assert parse_nccl_tests(text(rows), "out") == plain


def test_ranks_that_are_split_into_groups_are_refused():
    split = re.sub(r"Rank (..) Group  0", lambda m: f"Rank {m[1]} Group {int(m[1]) % 8:2d}", text())
    assert split != text()
    with pytest.raises(ConfigError, match="split into 8 groups"):
        parse_nccl_tests(split, "out")


def test_a_cut_row_is_left_out_and_other_texts_are_not_recognised():
    cut = text(ROWS[: ROWS.rindex("436.94")], end="")
    assert len(parse_nccl_tests(cut, "out").points) == 1
    assert is_nccl_tests(cut) and not is_nccl_tests("step: 1 loss: 2.0\n")


@pytest.mark.parametrize("rates", ["209.78  196.67", "209.78  209.78"])  # all-to-all, send-receive
def test_tests_that_are_not_checked_in_place_are_no_collective_of_ours(rates):
    rows = ROWS.replace("209.78  393.34", rates).replace("393.2      0", "393.2    N/A")
    with pytest.raises(ConfigError, match="without a check in place .*alltoall_perf"):
        parse_nccl_tests(text(rows), "out")


def test_a_run_without_any_check_is_read():
    rows = re.sub(r" 0( |$)", r" N/A\1", ROWS, flags=re.MULTILINE)
    assert parse_nccl_tests(text(rows), "out").operation == "all_reduce"


def test_the_ratio_of_its_rates_tells_the_number_of_ranks():
    alone = text(count=0)
    for operation, ranks_given in ((None, 16), ("all_reduce", 16)):
        parse_nccl_tests(alone, "out", operation).check_ranks(ranks_given, "out")
    for operation, ranks_given in ((None, 4), ("all_gather", 16), ("broadcast", 16)):
        with pytest.raises(ConfigError, match="busbw is 1.87 times algbw, and"):
            parse_nccl_tests(alone, "out", operation).check_ranks(ranks_given, "out")


def test_a_row_that_other_text_has_torn_is_left_out():
    """Its beginning is printed before that text, the rest behind: another size, time or rate."""
    message = "worker-0:1887 [0] NCCL INFO comm 0x5 rank 0 nranks 16\n"
    first, second = ROWS.splitlines()
    for torn in (
        first[:7] + message + first[7:],
        first[:66] + message[:-1] + first[66:],
        first.replace("2559.2", "559.2"),
    ):
        test = parse_nccl_tests(text(f"{torn}\n{second}\n{second}\n"), "out")
        assert [point.payload_bytes for point in test.points] == [2**30], torn
        assert any("1 row is left out" in remark for remark in test.remarks), torn


def test_a_message_that_looks_like_a_longer_row_decides_nothing():
    odd = "worker-0:1 [0] NCCL INFO 8 16 chunk 1 2 3 4 5 6 7 8 9 10\n"
    assert len(parse_nccl_tests(text(odd + ROWS), "out").points) == 2


def test_rows_of_which_none_is_whole_are_named():
    with pytest.raises(ConfigError, match="out line 23: no row .* is whole .* points in numbers"):
        parse_nccl_tests(text(re.sub(r"(\d)\.(\d)", r"\1,\2", ROWS)), "out")


def test_nodes_with_other_numbers_of_ranks_are_refused():
    uneven = text().replace(ranks(16), ranks(16, per_node=12))
    with pytest.raises(ConfigError, match="12 of its ranks are on worker-0, 4 on worker-1"):
        parse_nccl_tests(uneven, "out")
    torn = uneven.replace("#  Rank  3", "# NCCL INFO")
    assert parse_nccl_tests(torn, "out").ranks == 16
