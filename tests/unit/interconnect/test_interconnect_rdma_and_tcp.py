"""perftest's text and iperf3's JSON: planted numbers, other units, contradictions."""

import json

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.iperf3 import parse_iperf3
from ddlbench.interconnect.link_tests import read_link_test
from ddlbench.interconnect.message_tests import MessageTests
from ddlbench.interconnect.perftest import parse_perftest

LINE = "-" * 87 + "\n"
# As posts show them: a ConnectX over 100 Gbit/s, and InfiniBand QDR.
WRITE = f"""\
{LINE}                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_1
 Number of qps   : 1\t\tTransport type : IB
{LINE} local address: LID 0000 QPN 0x009b PSN 0x57bb8f RKey 0x1fd4bc VAddr 0x007f0e0c8aa000
{LINE} #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      5000             11030.78            11030.45\t\t     0.176487
{LINE}"""
LATENCY = f"""\
{LINE}                    RDMA_Write Latency Test
{LINE} #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
Conflicting CPU frequency values detected: 1199.960000 != 1225.593000. CPU Frequency is not max.
 2       1000          0.96           1.25         0.98     \t       0.99        \t0.01   \
\t\t1.00    \t\t1.25
{LINE}"""
GBITS = f"""\
{LINE}                    RDMA_Write Bidirectional BW Test
{LINE} #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    38096            0.00               213.05 \t\t   0.025397
{LINE}"""


def test_a_megabyte_of_perftest_is_a_mebibyte():
    (test,) = read_link_test(WRITE, "out").tests
    (rate,) = test.rates
    assert rate.bandwidth_bytes_per_s == pytest.approx(11030.45 * 2**20)
    assert rate.bandwidth_bytes_per_s == pytest.approx(65536 * 0.176487e6, rel=1e-4)
    older = parse_perftest(WRITE.replace("MiB", "MB"), "out")
    assert older.tests[0].rates == test.rates


def test_gigabits_of_both_directions():
    (test,) = parse_perftest(GBITS, "out").tests
    assert test.directions == 2
    assert test.rates[0].bandwidth_bytes_per_s == pytest.approx(213.05e9 / 8 / 2)


def test_the_median_latency_and_the_rate_make_a_link():
    both = MessageTests.joined([parse_perftest(each, "out") for each in (LATENCY, WRITE)])
    assert both.to_dict()["link"] == {
        "latency_s": pytest.approx(0.98e-6),
        "bandwidth_bytes_per_s": pytest.approx(11030.45 * 2**20),
    }


@pytest.mark.parametrize("more", ["", "    tps average"])
def test_of_a_duration_the_mean_latency_is_printed(more):
    """As perftest_parameters.h has it: RESULT_FMT_LAT_DUR, with and without transactions."""
    numbers = " 2             5000000            1.05" + ("        952380.95" if more else "")
    heading = f" #bytes        #iterations       t_avg[usec]{more}\n"
    text = f"{LINE}                    Send Latency Test\n{LINE}{heading}{numbers}\n{LINE}"
    (time,) = parse_perftest(text, "out").tests[0].times
    assert time.time_s == pytest.approx(1.05e-6)


@pytest.mark.parametrize(
    ("text", "old", "new", "sentence"),
    [
        (WRITE, "11030.45", "17030.45", "RDMA_Write BW Test has no whole row"),
        (WRITE, "\t\t     0.176487", "", "has no whole row"),
        (WRITE, "MiB/sec", "XB/sec", "has no whole row"),
        (WRITE, "RDMA_Write BW Test", "", "a test without its title is not read here"),
        (WRITE, "#bytes", "#", "lacks the line of its columns"),
        (LATENCY, "0.98", "0.08", "has no whole row"),
        (LATENCY, "0.98", "N/A", "has no whole row"),
        (LATENCY, "0.98", "9" * 400, "has no whole row"),
        (LATENCY, "[usec]", "[cycles]", "RDMA_Write Latency Test is not read here"),
        (LATENCY, "RDMA_Write", "RDMA_Read", "RDMA_Read Latency Test is not read here"),
    ],
)
def test_a_damaged_or_other_text_is_one_sentence(text, old, new, sentence):
    assert old in text
    with pytest.raises(ConfigError, match=f"^out.*{sentence}"):
        parse_perftest(text.replace(old, new), "out")


def tcp(bits=10_393_405_582.1, **end):
    """As iperf 3.12 wrote it on loopback, without what is not read."""
    total = {"start": 0, "end": 2.003, "seconds": 2.0, "bytes": 2_598_351_395,
             "bits_per_second": bits, "sender": True}  # fmt: skip
    start = {"version": "iperf 3.12", "test_start": {"protocol": "TCP", "blksize": 131072}}
    return {"start": start, "intervals": [], "end": {"sum_received": total, **end}}


def test_bits_per_second_of_tcp():
    (test,) = read_link_test(json.dumps(tcp()), "out").tests
    assert (test.library, test.directions) == ("tcp", 1)
    assert test.rates[0].bandwidth_bytes_per_s == pytest.approx(10_393_405_582.1 / 8)
    other = {**tcp()["end"]["sum_received"], "bytes": 1_299_175_697, "bits_per_second": 5.1967e9}
    (both,) = parse_iperf3(json.dumps(tcp(sum_received_bidir_reverse=other)), "out").tests
    assert both.directions == 2
    assert both.rates[0].bandwidth_bytes_per_s == pytest.approx((10.3934e9 + 5.1967e9) / 16, 1e-4)


def test_tcp_tells_no_latency_and_another_file_does():
    rate = parse_iperf3(json.dumps(tcp()), "out")
    assert "its latency is missing" in rate.to_dict()["remarks"][0]
    joined = MessageTests.joined([rate, parse_perftest(LATENCY, "out")])
    assert joined.to_dict()["link"]["latency_s"] == pytest.approx(0.98e-6)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({**tcp(), "error": "unable to connect to server"}, "reports: 'unable to connect"),
        (tcp(70_393_405_582.1), "sum_received has 2598351395 bytes in 2.0 s, and 7039"),
        (tcp(float("nan")), "'bits_per_second' is nan"),
        (tcp(10**400), "end: sum_received: 'bits_per_second' is"),
        ({**tcp(), "end": {}}, "end: 'sum_received' is missing"),
        ({**tcp(), "end": []}, "'end' is \\[\\]"),
        ({"start": {"version": "iperf 3.1"}}, "start: 'test_start' is missing"),
    ],
)
def test_a_failed_or_damaged_test_of_tcp_is_one_sentence(value, sentence):
    with pytest.raises(ConfigError, match=f"^out: .*{sentence}"):
        parse_iperf3(json.dumps(value), "out")


def test_udp_and_json_that_is_cut_off_are_refused():
    written = json.dumps(tcp())
    with pytest.raises(ConfigError, match="is of UDP, whose rate the sender sets"):
        parse_iperf3(written.replace("TCP", "UDP"), "out")
    with pytest.raises(ConfigError, match="not complete JSON .* run iperf3 -c HOST --json again"):
        parse_iperf3(written[:-9], "out")
