"""What a result says of GPUs of both makers, on stand-ins of their libraries."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ddlbench.runtime.energy import EnergyMeter
from ddlbench.runtime.environment import rank_provenance, ranks_differ
from ddlbench.runtime.gpus import gpus_of, library_name, model_of
from ddlbench.runtime.launch import visible_devices
from ddlbench.runtime.meters import device_memory

GPUS = [torch.device("cuda", 0), torch.device("cuda", 1)]


class Amdsmi(ModuleType):
    """Functions of amdsmi 7.0: units and shapes as its amdsmi_interface.py has them."""

    AmdSmiMemoryType = SimpleNamespace(VRAM="vram", GTT="gtt")

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.counts = {"0000:c1:00.0": 1000, "0000:c5:00.0": 7000}
        self.activity: object = 40

    def amdsmi_init(self) -> None: ...

    def amdsmi_get_processor_handle_from_bdf(self, bdf):
        if bdf not in self.counts:
            raise RuntimeError("no such device")
        return bdf

    def amdsmi_get_gpu_device_uuid(self, handle):
        return f"uuid of {handle}"

    def amdsmi_get_gpu_activity(self, handle):
        return {"gfx_activity": self.activity, "umc_activity": 3, "mm_activity": "N/A"}

    def amdsmi_get_gpu_memory_usage(self, handle, kind):
        assert kind == "vram"
        return 5_000_000_000

    def amdsmi_get_energy_count(self, handle):
        # Counts of 15.259 microjoules, as on an MI250X.
        return {
            "energy_accumulator": self.counts[handle],
            "counter_resolution": 15.259,
            "timestamp": 0,
        }

    def amdsmi_get_gpu_driver_info(self, handle):
        return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}


def _properties(device):
    index = device if isinstance(device, int) else device.index
    return SimpleNamespace(
        **{"pci_domain_id": 0, "pci_bus_id": (0xC1, 0xC5)[index], "pci_device_id": 0},
        gcnArchName="gfx90a:sramecc+:xnack-",
        total_memory=64_000_000_000,
        uuid=f"number-{index}",
    )


@pytest.fixture
def cuda(monkeypatch):
    """A torch that has two GPUs."""
    names = ["AMD Instinct MI250X", ""]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", _properties)
    at = lambda device: device if isinstance(device, int) else device.index  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[at(device)])
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 22, 3))
    for peak in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, peak, lambda device: 1_000)


@pytest.fixture
def amd(cuda, monkeypatch):
    library = Amdsmi()
    monkeypatch.setattr(torch.version, "hip", "6.4.43482", raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    return library


def test_energy_of_amds_gpus_is_their_counts_in_joules(amd):
    meter = EnergyMeter(GPUS, of_host=False)
    before = meter.read()
    amd.counts["0000:c5:00.0"] += 2_000_000
    after = meter.read()
    assert set(after) == {"amdsmi uuid of 0000:c1:00.0", "amdsmi uuid of 0000:c5:00.0"}
    # By hand: 2e6 counts of 15.259 microjoules.
    assert [after[name] - before[name] for name in sorted(after)] == pytest.approx([0, 30.518])
    assert meter.missing == []


def test_utilisation_and_memory_of_amds_gpus(amd):
    first, second = gpus_of(GPUS)
    assert (first.utilisation(), second.utilisation()) == (0.4, 0.4)
    entries = device_memory(GPUS, None)
    assert [entry["device_used_bytes"] for entry in entries] == [5_000_000_000] * 2
    amd.activity = "N/A"
    with pytest.raises(ValueError, match="N/A"):
        first.utilisation()


def test_a_result_names_rocm_and_rccl(amd):
    actual = rank_provenance()
    assert (actual["rocm"], actual["rccl"], actual["driver"]) == ("6.4.43482", "2.22.3", "6.12.12")
    assert (actual["cuda"], actual["nccl"]) == (None, None)
    assert actual["gpu_models"] == ["AMD Instinct MI250X", "gfx90a:sramecc+:xnack-"]
    assert model_of(GPUS[1]) == "gfx90a:sramecc+:xnack-"
    differing = ranks_differ([actual, {**actual, "rccl": "2.20.5"}])
    assert differing == {"versions": "rccl 2.20.5 and 2.22.3"}


def test_amds_gpus_without_their_library_cost_no_measurement(amd, monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # importing it fails
    assert gpus_of(GPUS) == [None, None]
    assert EnergyMeter(GPUS, of_host=False).missing == ["GPUs: AMD SMI does not answer"]
    assert device_memory(GPUS, None)[0]["device_used_bytes"] is None
    assert rank_provenance()["driver"] is None


class _NvmlError(Exception):
    """As pynvml's."""


@pytest.fixture
def nvml(cuda, monkeypatch):
    library = SimpleNamespace(
        NVMLError=_NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUUID=lambda handle: handle.encode(),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 2_500,  # millijoules
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=80),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3_000),
        nvmlSystemGetDriverVersion=lambda: "580.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return library


def test_nvidias_gpus_keep_their_counters(nvml):
    assert EnergyMeter(GPUS, of_host=False).read() == {
        "nvml GPU-number-0": 2.5,
        "nvml GPU-number-1": 2.5,
    }
    assert gpus_of(GPUS)[0].utilisation() == 0.8
    assert device_memory(GPUS, None)[1]["device_used_bytes"] == 3_000
    actual = rank_provenance()
    assert (actual["cuda"], actual["nccl"], actual["driver"]) == ("13.0", "2.22.3", "580.1")
    assert (actual["rocm"], actual["rccl"], library_name()) == (None, None, "NVML")


def test_a_part_of_a_gpu_tells_its_memory_only(nvml):
    def handle_of(uuid):
        if not uuid.startswith("MIG-"):
            raise _NvmlError("Not Found")
        return uuid

    def refused(handle):
        raise _NvmlError("Not Supported")

    nvml.nvmlDeviceGetHandleByUUID = handle_of
    nvml.nvmlDeviceGetTotalEnergyConsumption = nvml.nvmlDeviceGetUtilizationRates = refused
    assert gpus_of(GPUS)[0].uuid() == "MIG-number-0"
    assert device_memory(GPUS, None)[1]["device_used_bytes"] == 3_000
    (why,) = EnergyMeter(GPUS, of_host=False).missing
    assert why == "GPUs: NVML counts no energy here (Not Supported)"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("CUDA_VISIBLE_DEVICES", None)),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ("CUDA_VISIBLE_DEVICES", ["2", "3"])),
        (
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2,3"},
            ("HIP_VISIBLE_DEVICES", ["1"]),
        ),
        # SLURM's own choice lies below HIP's, whose numbers begin at 0 then.
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ("CUDA_VISIBLE_DEVICES", None)),
    ],
)
def test_which_variable_chooses_gpus(environment, expected):
    assert visible_devices(environment) == expected
