"""Files of devices, fabrics and software."""

import numpy as np
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.constants import HeldOut
from ddlbench.predict.hardware import DeviceSheet, Fabric, Software, System
from ddlbench.predict.transformer import decoder_memory, decoder_time


@pytest.mark.parametrize("kind", [DeviceSheet, Fabric, Software])
def test_every_shipped_file_is_read_and_says_its_sources(kind):
    for name in kind.names():
        assert kind.load(name).sources, name


@pytest.mark.parametrize("name", sorted(set(Software.names()) - {"horovod"}))
def test_software_has_the_constants_of_the_model(name):
    software = Software.load(name)
    assert {*decoder_time.CONSTANTS, *decoder_memory.CONSTANTS} <= set(software.constants)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100-SXM5-80GB", "h100-sxm"),
        ("Nvidia Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        # of nvidia-smi and torch
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx-1080ti"),
        ("AMD Instinct MI250X", "mi250x"),
        # of SLURM's GRES, and of people
        ("nvidia_a100-sxm4-40gb", "a100-sxm-40gb"),
        ("h100 80gb hbm3", "h100-sxm"),
        ("NVIDIA A100-SXM-80GB (400W)", "a100-sxm-80gb"),
        # other devices of similar names
        ("L40S", None),
        ("GH200", None),
        ("NVIDIA H100 NVL", None),
        ("Tesla V100-PCIE-16GB", None),
        ("nvidia_a100_3g.40gb", None),
        ("NVIDIA", None),
        ("abacus", None),
    ],
)
def test_a_device_is_known_however_its_name_is_written(written, name):
    assert DeviceSheet.name_of(written) == name


def test_every_name_of_a_device_is_of_it_alone():
    for name in DeviceSheet.names():
        for alias in (name, *DeviceSheet.load(name).aliases):
            assert DeviceSheet.name_of(alias) == name


def test_a_device_without_bf16_computes_in_fp16_or_fp32():
    assert DeviceSheet.load("v100-sxm-16gb").peak("bf16") == 125e12
    assert DeviceSheet.load("gtx-1080ti").peak("bf16") == 11.3e12
    with pytest.raises(ConfigError, match="no peak for 'tf32', only for .*; write fp32"):
        DeviceSheet.load("gtx-1080ti").peak("tf32")


def test_a_peak_of_another_precision_is_named():
    volta = DeviceSheet.load("v100-sxm-16gb")
    assert volta.stand_in("bf16").endswith("has no peak for bf16: that of fp16 is taken.")
    assert volta.stand_in("fp32") == DeviceSheet.load("h100-sxm").stand_in("bf16") == ""


def test_a_fabric_of_devices_and_one_of_nodes():
    assert Fabric.load("infiniband-400").node_bytes_per_s(8) == 400e9
    assert Fabric.load("efa-3200").node_bytes_per_s(4) == 400e9


def test_wrong_names_end_in_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'h100-sxm'"):
        DeviceSheet.load("h100-sxn")
    with pytest.raises(ConfigError, match="2 nodes need a fabric; write one of"):
        System(DeviceSheet.load("h200"), None, 2, 8)
    path = tmp_path / "mine.yaml"
    path.write_text("description: mine\nbytes_per_s: 1.0e+9\n")
    with pytest.raises(ConfigError, match="mine.yaml"):
        Fabric.load(str(path))


def test_software_is_written_as_it_is_read(tmp_path):
    software = Software.load("nanotron").with_constants({"hop_s": 0.5})
    software.write(tmp_path / "mine.yaml")
    assert Software.load(str(tmp_path / "mine.yaml")) == software


def test_ninety_percent_of_further_ratios_lie_within_what_was_held_out():
    draws, count = np.random.default_rng(1), 30
    ratios = draws.lognormal(0, 0.2, (2000, count + 1))
    intervals = [HeldOut.of(known, "runs") for known in ratios[:, :count]]
    inside = [of.low <= new <= of.high for of, new in zip(intervals, ratios[:, -1], strict=True)]
    assert np.mean(inside) == pytest.approx(0.91, abs=0.02)
