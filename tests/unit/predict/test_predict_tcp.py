"""TCP and gloo under delay, rate and loss: hand-worked numbers, and counted round trips."""

from __future__ import annotations

import math

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.predict.inputs import ConditionLinks, TcpPath, gloo_all_reduce_s
from ddlbench.predict.links import Hop

MIB = 2**20


def _path(**more: float | str) -> TcpPath:
    return TcpPath(round_trip_s=0.02, **more)


def test_bandwidth_is_what_bounds_first() -> None:
    assert _path(rate_bytes_per_s=1e6).bandwidth_bytes_per_s == pytest.approx(1e6 * 1448 / 1500)
    assert _path(window_bytes=4e6).bandwidth_bytes_per_s == pytest.approx(2e8)


def test_reno_follows_mathis() -> None:
    """1 % loss at 20 ms: sqrt(3/2) / 0.1 = 12.25 segments of 1448 bytes a round trip."""
    actual = _path(loss=0.01, congestion_control="reno").bandwidth_bytes_per_s
    assert actual == pytest.approx(12.247 * 1448 / 0.02, rel=1e-3)


def test_cubic_is_reno_on_short_paths_and_faster_on_long_ones() -> None:
    short = TcpPath(0.02, loss=0.01).bandwidth_bytes_per_s
    assert short == TcpPath(0.02, loss=0.01, congestion_control="reno").bandwidth_bytes_per_s
    long = TcpPath(0.2, loss=1e-4).bandwidth_bytes_per_s
    window = 1.054 * (0.2 / 1e-4) ** 0.75
    assert long == pytest.approx(window * 1448 / 0.2)


def test_bbr_keeps_its_rate() -> None:
    actual = _path(loss=0.01, rate_bytes_per_s=1e7, congestion_control="bbr")
    assert actual.bandwidth_bytes_per_s == pytest.approx(0.99e7 * 1448 / 1500)


@pytest.mark.parametrize(
    ("ranks", "message_bytes", "round_trips"),
    [
        (2, 1024, 2),
        (2, 4 * MIB, 2),
        (2, 16 * MIB, 8),
        (3, 1024, 4),
        (3, 16 * MIB, 12),
        (4, 1024, 6),
        (4, 16 * MIB, 12),
    ],
)
def test_round_trips_of_gloo_as_counted_on_a_delayed_link(
    ranks: int, message_bytes: int, round_trips: int
) -> None:
    path = TcpPath(0.01)
    assert gloo_all_reduce_s(path, ranks, message_bytes) == pytest.approx(0.01 * round_trips)


def test_rate_counts_by_the_ring() -> None:
    path = TcpPath(0.0, rate_bytes_per_s=1e6, mtu_bytes=1500)
    actual = gloo_all_reduce_s(path, 4, 3e6)
    assert actual == pytest.approx(1.5 * 3e6 / (1e6 * 1448 / 1500))


def test_links_inside_nodes_have_a_path_of_their_own() -> None:
    inside = LinkCondition(0.001, 80e6, 0.0)
    links = ConditionLinks(LinkCondition(0.005, 8e6, 0.0, inside=inside), None, "both")
    within, _ = links.hop("transport", (1, 0), (1, 1))
    assert (within.latency_s, within.bandwidth_bytes_per_s) == pytest.approx(
        (0.001, 1e7 * 1448 / 1500)
    )
    between, _ = links.hop("transport", (0, 1), (1, 1))
    assert between.latency_s == pytest.approx(0.005)
    size = 4 * MIB
    path = TcpPath(0.002, rate_bytes_per_s=1e7)
    expected_s = gloo_all_reduce_s(path, 4, size)
    assert links.all_reduce(1, 4, "gloo").time_s(size) == pytest.approx(expected_s)
    # A ring over two nodes of two is as slow as the slower kind of its links.
    slower_s = gloo_all_reduce_s(TcpPath(0.01, rate_bytes_per_s=1e6), 4, size)
    assert links.all_reduce(2, 2, "gloo").time_s(size) == pytest.approx(slower_s)
    with pytest.raises(ConfigError, match="no formula gives the all-gather"):
        links.collective("all_gather", 1, 4, "gloo")


def test_links_of_a_condition_need_no_measurement() -> None:
    condition = LinkCondition(latency_s=0.005, bandwidth_bits_per_s=8e6, loss=0.0)
    links = ConditionLinks(condition, None, "slow")
    hop, remark = links.hop("transport", (0, 0), (1, 0))
    assert hop.latency_s == pytest.approx(0.005)
    assert hop.bandwidth_bytes_per_s == pytest.approx(1e6 * 1448 / 1500)
    assert "slow" in str(remark)
    swept = links.all_reduce(2, 1, "gloo")
    assert swept.time_s(1000) == pytest.approx(0.02 + 1000 / hop.bandwidth_bytes_per_s)


def test_no_hop_is_faster_than_that_of_the_undisturbed_network() -> None:
    base = make.table(make.pair([0, 1], method="gloo", bandwidth=1e9, latency_s=5e-5))

    def hop(delay_s: float, bits_per_s: float | None) -> Hop:
        links = ConditionLinks(LinkCondition(delay_s, bits_per_s, 0.0), base, "some")
        return links.hop("transport", (0, 0), (1, 0))[0]

    assert hop(0.0, None) == hop(1e-6, None) == hop(1e-6, 40e9) == Hop(5e-5, 1e9)
    assert hop(0.005, 8e6).latency_s == pytest.approx(0.005)
    assert hop(0.005, 8e6).bandwidth_bytes_per_s < 1e6


def test_more_loss_is_never_faster() -> None:
    times = [gloo_all_reduce_s(TcpPath(0.01, loss=q), 4, 1e6) for q in (0, 0.001, 0.01, 0.1)]
    assert times == sorted(times)
    assert all(map(math.isfinite, times))


def test_a_congestion_control_without_a_formula_is_named() -> None:
    with pytest.raises(ConfigError, match="write cubic, reno or bbr"):
        TcpPath(0.01, congestion_control="x")
