"""``device: auto`` takes the GPUs of this machine, else its cores."""

from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment import site as sites
from ddlbench.experiment.site import Site, parse_site

_LOCAL = {"device": "auto", "launcher": "local"}


def _site(monkeypatch, gpus: int, **keys) -> Site:
    monkeypatch.setattr(sites, "visible_gpus", lambda: gpus)
    return parse_site({**_LOCAL, **keys}, Path("here.yaml"))


def test_without_a_gpu_workers_are_cores(monkeypatch) -> None:
    here = _site(monkeypatch, 0)
    assert (here.device, here.devices_share_gpu) == ("cpu", False)


def test_two_ranks_share_a_single_gpu(monkeypatch) -> None:
    here = _site(monkeypatch, 1)
    assert (here.device, here.devices_per_node, here.devices_share_gpu) == ("cuda", 2, True)


def test_several_gpus_are_a_device_each(monkeypatch) -> None:
    here = _site(monkeypatch, 4)
    assert (here.device, here.devices_per_node, here.devices_share_gpu) == ("cuda", 4, False)


def test_a_number_of_devices_is_kept(monkeypatch) -> None:
    here = _site(monkeypatch, 1, devices_per_node=1)
    assert (here.device, here.devices_per_node, here.devices_share_gpu) == ("cuda", 1, False)


def test_a_cluster_names_its_device(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="write cpu or cuda"):
        _site(monkeypatch, 1, launcher="slurm")
