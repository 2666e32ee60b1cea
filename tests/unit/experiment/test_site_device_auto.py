"""``device: auto`` takes the GPUs of this machine, else its cores."""

import sys
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment import automatic_device
from ddlbench.experiment.site import Site, parse_site

_LOCAL = {"device": "auto", "launcher": "local"}


def _site(monkeypatch, gpus: int, **keys) -> Site:
    monkeypatch.setattr(automatic_device, "visible_gpus", lambda: gpus)
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


@pytest.fixture
def machine(monkeypatch):
    """Pretends a torch for CUDA of a version, and GPUs with these compute capabilities."""

    def pretend(cuda: tuple[int, int] | None, *capabilities: tuple[int, int]) -> int:
        monkeypatch.setattr(automatic_device, "_cuda_of_torch", lambda: cuda)
        monkeypatch.setattr(automatic_device, "_capabilities", lambda: list(capabilities))
        return automatic_device.visible_gpus.__wrapped__()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return pretend


def test_gpus_count_only_with_a_torch_for_them(machine) -> None:
    assert machine(None, (9, 0)) == 0
    assert machine((13, 0), (9, 0), (9, 0)) == 2


def test_gpus_for_which_torch_has_no_kernels_do_not_count(machine) -> None:
    assert machine((13, 0), (7, 0)) == 0
    assert machine((12, 8), (7, 0)) == 0
    assert machine((12, 8), (7, 5)) == 1
    assert machine((12, 6), (6, 1)) == 1


@pytest.mark.parametrize(
    ("named", "count"), [("", 0), ("-1", 0), ("1", 1), ("0,1,2", 2), ("0,-1,1", 1)]
)
def test_hidden_gpus_do_not_count(monkeypatch, machine, named: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert machine((13, 0), (9, 0), (9, 0)) == count


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'", (13, 0)),
        ("cuda: Optional[str] = None", None),
        ("cuda = '12.6'", (12, 6)),
    ],
)
def test_torch_says_for_what_it_was_built(monkeypatch, tmp_path, line: str, cuda) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\n")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert automatic_device._cuda_of_torch() == cuda
