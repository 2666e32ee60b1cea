"""Numbers with units, in the unit that a key's name has."""

from __future__ import annotations

import pytest

from ddlbench.common.quantities import in_unit_of


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("memory_bytes", "80GiB", 80 * 2**30),
        ("memory_bytes", "80 gb", 80e9),
        ("memory_per_device_mb", "16 GB", 16e3),
        ("bytes_per_s", "3.35 TB/s", 3.35e12),
        ("bandwidth_bytes_per_s", "100 Gb/s", 12.5e9),
        ("bandwidth_bytes_per_s", "25GBps", 25e9),
        ("bandwidth_mbit_per_s", "1 Gbps", 1000),
        ("bandwidth_mbit_per_s", "12.5 MB per s", 100),
        ("peak_flops_per_s", "989 TFLOPS", 989e12),
        ("peak_flops_per_s", "1.5e3 GFLOP/s", 1.5e12),
        ("latency_s", "5us", 5e-6),
        ("latency_ms", "0.5 s", 500),
        ("cell_timeout_s", "2h", 7200),
        ("latency_s", "10 GB", None),
        ("memory_bytes", "10 GB/s", None),
        ("bandwidth_bytes_per_s", "10 GB", None),
        ("memory_bytes", "lots", None),
        ("memory_bytes", "80", None),
        ("batch_size", "64 samples", None),
    ],
)
def test_a_number_in_the_unit_of_its_key(key: str, text: str, number: float | None) -> None:
    assert in_unit_of(key, text) == number
