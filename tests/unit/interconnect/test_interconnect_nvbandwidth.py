"""nvbandwidth's JSON with its traps: strings, N/A, statuses, two documents, three matrices."""

import json

import pytest

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth

WRITE, READ = "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"
BOTH, LATENCY = "device_to_device_bidirectional_memcpy_write_ce", "device_to_device_latency_sm"


def rows(base, count=2):
    return [
        ["N/A" if i == j else f"{base + 10 * i + j:g}" for j in range(count)] for i in range(count)
    ]


def test_case(name, matrix, unit="bandwidth (GB/s)", status="Passed"):
    return {
        "name": name,
        "status": status,
        "bandwidth_description": f"memcpy CE GPU(row) -> GPU(column) {unit}",
        "bandwidth_matrix": matrix,
        "sum": 1.0,
    }


test_case.__test__ = False


def document(*cases, **others):
    return {
        "nvbandwidth": {
            "CUDA Runtime Version": 13000,
            "GPU Device list": [
                f"{i}: NVIDIA H100 80GB HBM3 (00000000:{i}b:00): (host)" for i in range(2)
            ],
            "testcases": list(cases),
            "version": "v0.8",
            **others,
        }
    }


GOOD = (
    test_case(WRITE, rows(200)),
    test_case(READ, rows(300)),
    test_case(BOTH, [*rows(10), *rows(20), *rows(400)], "Total bandwidth (GB/s)"),
    test_case(LATENCY, rows(600), "(ns)"),
)


def test_every_number_lands_where_it_belongs():
    parsed = parse_nvbandwidth(json.dumps(document(*GOOD), indent=1))
    assert parsed["devices"] == ["NVIDIA H100 80GB HBM3"] * 2
    found = {(p["direction"], p["operation"]): p for p in parsed["pairs"]}
    write = found["unidirectional", "write"]
    assert write["bandwidth_bytes_per_s"] == [[None, 201e9], [210e9, None]]
    # The row reads: the column's memory is the sender.
    assert write["latency_s"] == [[None, 610 / 1e9], [601 / 1e9, None]]
    read = found["unidirectional", "read"]
    assert read["bandwidth_bytes_per_s"] == [[None, 310e9], [301e9, None]]
    both = found["bidirectional", "write"]
    assert both["bandwidth_bytes_per_s"] == [[None, 401e9], [410e9, None]]
    assert {p["access"] for p in parsed["pairs"]} == {"direct"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no JSON in it; run nvbandwidth -j"),
        ("{\n", "out line .: not complete JSON"),
        ('{"a": 1}', "not nvbandwidth's"),
        (json.dumps(document(*GOOD))[:-30], "not complete JSON"),
        (
            json.dumps(document(error="CUDA_ERROR_NO_DEVICE: no\ndevice"))
            + json.dumps(document(*GOOD)),
            "nvbandwidth reports: CUDA_ERROR_NO_DEVICE: no device",
        ),
        (
            json.dumps(document(test_case(WRITE, None, status="Waived"), GOOD[3])),
            "status 'Waived'; its GPUs have no peer access: use p2pBandwidthLatencyTest",
        ),
        (json.dumps(document(GOOD[0])), f"{LATENCY} is missing"),
        (json.dumps(document(GOOD[3])), "no device-to-device test"),
        (json.dumps(document(test_case(WRITE, [["N/A", "1"]]), GOOD[3])), "not 2 rows of 2"),
        (json.dumps(document(test_case(WRITE, rows(-900)), GOOD[3])), "is below zero"),
        (json.dumps(document(test_case(WRITE, [["x"] * 2] * 2), GOOD[3])), "'x' is not a number"),
        (json.dumps(document(test_case(WRITE, rows(1), "(furlongs)"), GOOD[3])), "no unit"),
    ],
)
def test_what_is_wrong_is_one_sentence(text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_nvbandwidth(text, "out")
    assert "\n" not in str(caught.value)
