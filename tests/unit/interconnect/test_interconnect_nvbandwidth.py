"""nvbandwidth's JSON with its traps: strings, N/A, statuses, two documents, three matrices."""

import json

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth

WRITE, READ = "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"
BOTH, LATENCY = "device_to_device_bidirectional_memcpy_write_ce", "device_to_device_latency_sm"


def rows(base, count=2):
    return [
        ["N/A" if i == j else f"{base + 10 * i + j:g}" for j in range(count)] for i in range(count)
    ]


def total(matrix):
    """The sum of the last matrix; None where a value is no number."""
    try:
        values = [0.0 if word == "N/A" else float(word) for row in matrix[-2:] for word in row]
        return sum(values)
    except (ValueError, TypeError, OverflowError):
        return None


def test_case(name, matrix, unit="bandwidth (GB/s)", status="Passed"):
    return {
        "name": name,
        "status": status,
        "bandwidth_description": f"memcpy CE GPU(row) -> GPU(column) {unit}",
        "bandwidth_matrix": matrix,
        "sum": total(matrix),
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
    actual = {(p["direction"], p["operation"]): p for p in parsed["pairs"]}
    write = actual["unidirectional", "write"]
    assert write["bandwidth_bytes_per_s"] == [[None, 201e9], [210e9, None]]
    # The row reads: the column's memory is the sender.
    assert write["latency_s"] == [[None, 610 / 1e9], [601 / 1e9, None]]
    read = actual["unidirectional", "read"]
    assert read["bandwidth_bytes_per_s"] == [[None, 310e9], [301e9, None]]
    both = actual["bidirectional", "write"]
    assert both["bandwidth_bytes_per_s"] == [[None, 401e9], [410e9, None]]
    assert {p["access"] for p in parsed["pairs"]} == {"direct"}


@pytest.mark.parametrize("value", ["0", 0.0, "1e308"])
def test_pairs_that_carry_nothing_were_not_measured(value):
    nothing = [["N/A", value], [value, "N/A"]]
    for place, name in enumerate((WRITE, READ)):
        cases = [*GOOD[:place], test_case(name, nothing), *GOOD[place + 1 :]]
        with pytest.raises(ConfigError, match=f"{name}: none of its pairs was measured"):
            parse_nvbandwidth(json.dumps(document(*cases)))


TEXT = json.dumps(document(*GOOD), indent=3)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"[1,0]<stdout>:{line}" for line in TEXT.split("\n")),
        "\n".join(f"0: {line}" for line in TEXT.split("\n")),
        "\r\n".join(f"2024-05-01 12:00:00 > {line}" for line in TEXT.split("\n")),
        "[1,0]<stdout>:" + json.dumps(document(*GOOD)),
        f"module {{cuda}} loaded\n{TEXT}\nsrun: {{done}}\n",
        "\n\n".join(TEXT.split("\n")),
    ],
)
def test_what_stands_before_and_after_is_left_out(text):
    assert parse_nvbandwidth(text) == parse_nvbandwidth(TEXT)


def test_gpus_that_are_not_listed_have_no_names():
    """As versions before the list of GPUs print it."""
    old = document(*GOOD)
    del old["nvbandwidth"]["GPU Device list"]
    parsed = parse_nvbandwidth(json.dumps(old))
    listed = parse_nvbandwidth(TEXT)
    assert parsed["devices"] == ["GPU", "GPU"]
    for pair, other in zip(parsed["pairs"], listed["pairs"], strict=True):
        assert pair["bandwidth_bytes_per_s"] == other["bandwidth_bytes_per_s"]


def test_what_is_no_number_is_unknown():
    matrix = [["N/A", "nan"], [5.0, float("nan")]]
    parsed = parse_nvbandwidth(json.dumps(document(test_case(WRITE, matrix), GOOD[3])))
    assert parsed["pairs"][0]["bandwidth_bytes_per_s"] == [[None, None], [5e9, None]]


def of_matrix(matrix):
    return json.dumps(document(test_case(WRITE, matrix), GOOD[3]))


def of_devices(devices):
    return json.dumps(document(*GOOD, **{"GPU Device list": devices}))


def two_tasks():
    return "\n".join(f"{task}: {line}" for line in TEXT.split("\n") for task in (0, 1))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (of_matrix([None, ["1", "N/A"]]), "row 0 is null instead of a list of values"),
        (of_matrix([{"0": 1}, 3]), "row 0 is {'0': 1} instead of a list of values"),
        (of_matrix(None), "its matrix is null instead of a list of rows"),
        (of_matrix({}), "its matrix is {} instead of a list of rows"),
        (of_matrix([]), r"its matrix is \[\] instead of a list of rows"),
        (of_matrix([[], []]), "not 2 rows of 2 values"),
        (of_matrix([["1", "2"]] * 3), "not 2 rows of 2 values"),
        (of_matrix([["1", "2", "3"]] * 2), "not 2 rows of 2 values"),
        (of_matrix([["1", "2"]] * 4), "not 2 rows of 2 values"),
        (of_matrix([["1", None]] * 2), "null is not a number"),
        (of_matrix([["1", True]] * 2), "True is not a number"),
        (of_matrix([["1", [2]]] * 2), r"\[2\] is not a number"),
        (of_matrix([["1", 10**400]] * 2), "a number of 40. digits is not a number"),
        (of_matrix([["N/A", "N/A"]] * 2), "none of its pairs was measured"),
        (of_devices([{"name": "H100"}, {"name": "H100"}]), "instead of a list of texts such as"),
        (of_devices({"0": "H100"}), "instead of a list of texts such as"),
        (of_devices([]), "instead of a list of texts such as"),
        (of_devices(None), "'GPU Device list' is null instead of"),
        (json.dumps(document(testcases=None)), "'testcases' is null instead of a list"),
        (json.dumps(document(testcases={"a": 1})), "instead of a list of tests"),
        (json.dumps(document(*GOOD, None)), "test 5 is null instead of an object"),
        (json.dumps(document("Passed")), "test 1 is 'Passed' instead of an object"),
        (json.dumps(document(*GOOD, GOOD[0])), f"{WRITE} is in it twice"),
        ('{"nvbandwidth": [1]}', r"'nvbandwidth' is \[1\] instead of an object"),
        ("[" * 100_000, "no JSON in it"),
        ('{"nvbandwidth": ' + "[" * 100_000, "endless numbers or lists"),
        ('{"nvbandwidth": ' + "9" * 5000 + "}", "endless numbers or lists"),
        (f"{TEXT}\n{TEXT}", "out line 93: a second run begins here, the first at line 1"),
        (two_tasks(), "lines that begin with '0:' and with '1:' are mixed; keep"),
        (
            TEXT.replace('"status"', 'WARNING: a "fan" is slow\n"status"', 1),
            "out line 11: .*; remove 'WARNING: a \"fan\" is slow' if nvbandwidth did not print it",
        ),
    ],
)
def test_another_shape_is_one_sentence(text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_nvbandwidth(text, "out")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


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
