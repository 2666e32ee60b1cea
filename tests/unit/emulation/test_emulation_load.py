"""What the relay says of its own use of a core, with clocks set by hand."""

import pytest

from ddlbench.emulation import relay as module


class Clocks:
    def __init__(self, monkeypatch):
        self.wall_s = self.cpu_s = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.wall_s)
        monkeypatch.setattr(module.time, "process_time", lambda: self.cpu_s)

    def work(self, meter, wall_s, share):
        for _ in range(round(wall_s * 10)):
            self.wall_s += 0.1
            self.cpu_s += 0.1 * share
            meter.see(self.wall_s)


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def test_one_full_second_in_ten_is_saturation(clocks):
    meter = module.Load(0.001)
    clocks.work(meter, 5, 0.2)
    assert not meter.to_dict()["saturated"]
    clocks.work(meter, 2.5, 1.0)
    clocks.work(meter, 5, 0.2)
    actual = meter.to_dict()
    assert actual["saturated"]
    assert actual["busiest_second_share"] == pytest.approx(1.0)
    assert actual["share_of_core"] == pytest.approx((5 * 0.2 + 2.5 + 5 * 0.2) / 12.5)
    assert actual["cpu_s"] == pytest.approx(4.5)


def test_a_reset_forgets(clocks):
    meter = module.Load(0.001)
    clocks.work(meter, 3, 1.0)
    meter.delivered(0.5)
    meter.reset()
    clocks.work(meter, 3, 0.5)
    actual = meter.to_dict()
    assert not actual["saturated"]
    assert actual["share_of_core"] == pytest.approx(0.5)
    assert (actual["frames"], actual["late_frames"], actual["latest_s"]) == (0, 0, 0.0)


def test_a_run_that_is_shorter_than_a_second_is_judged_as_a_whole(clocks):
    meter = module.Load(0.001)
    clocks.work(meter, 0.2, 1.0)
    assert meter.to_dict()["saturated"]
    clocks.work(meter, 0.2, 0.5)
    assert not meter.to_dict()["saturated"]


def test_of_a_moment_nothing_is_said(clocks):
    meter = module.Load(0.001)
    clocks.wall_s += 0.01
    clocks.cpu_s += 0.01
    assert not meter.to_dict()["saturated"]


def test_a_full_second_between_two_looks_is_seen(clocks):
    meter = module.Load(0.001)
    clocks.work(meter, 1.5, 0.1)
    clocks.work(meter, 1.1, 1.0)
    clocks.work(meter, 1.4, 0.1)
    assert meter.to_dict()["saturated"]


def test_waiting_before_a_burst_does_not_thin_it(clocks):
    meter = module.Load(0.001)
    clocks.wall_s += 30
    meter.see(clocks.wall_s)
    clocks.work(meter, 1.1, 1.0)
    assert meter.to_dict()["saturated"]


def test_late_frames_are_counted(clocks):
    meter = module.Load(0.001)
    for behind_s in (0.0005, 0.002, 0.003):
        meter.delivered(behind_s)
    actual = meter.to_dict()
    assert (actual["frames"], actual["late_frames"], actual["latest_s"]) == (3, 2, 0.003)


def test_polling_before_a_frame_is_due_is_no_load(clocks):
    meter = module.Load(0.001)
    for _ in range(20):
        clocks.work(meter, 0.1, 1.0)
        meter.polled(0.08)
    load = meter.to_dict()
    assert not load["saturated"]
    assert load["share_of_core"] == pytest.approx(0.2)
