"""ResNet-50 with Horovod from the submitter's smallest system: MLPerf's runs, held out."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.hardware import Software
from ddlbench.predict.horovod_scaling import (
    CONSTANTS,
    NETWORKS,
    PUBLISHED,
    fit_scaling,
    node_bytes_per_s,
    scalings,
    score,
    step_seconds,
    together,
)
from ddlbench.predict.run_tables import ScoreQuestion, kind_of


@pytest.fixture(scope="module")
def software():
    return Software.load("horovod")


@pytest.fixture(scope="module")
def published():
    return pd.read_csv(PUBLISHED)


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        ("8x ConnectX-7 IB NDR 400Gb/Sec", 400),
        (
            "Storage: 2x ConnectX-6 IB HDR 200Gb/sec, Management: 1x ConnectX-6 Ethernet "
            "100Gb/Sec, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec", 200,
        ),
        ("1x Ethernet 80Gb/Sec, 8x NVIDIA NDR (400Gb/s)", 400),
        ("2x Cornelis Networks Omni-Path HFI Adapter 100 Series 100Gb/Sec", 25),
        ("NetXtreme BCM5719 Gigabit Ethernet PCIe 4x1Gb", 0.5),
        ("Management: 1x Ethernet 10GB/Sec", None),  # no cards for training
        ("1x Ethernet 10GB/Sec", None),  # bits or bytes
        ("Mellanox ConnectX-6", None),
        ("Mellanox ConnectX-6 HDR100/100GbE QSFP56", None),  # a choice, and no count
        ("2x Mellanox ConnectX-6, 100Gb/s Ethernet", None),  # a list, or one card
        ("TODO", None),
        ("", None),
    ],
)  # fmt: skip
def test_rates_are_read_from_free_text_or_not_at_all(text, gb_per_s):
    expected = None if gb_per_s is None else pytest.approx(gb_per_s * 1e9)
    assert node_bytes_per_s(text) == expected


def test_the_filled_column_is_what_clear_texts_say(published):
    for text, filled in zip(
        published["host_network"].fillna(""), published["nic_gb_per_s_a_node"], strict=True
    ):
        read = node_bytes_per_s(text)
        assert read is None or read == pytest.approx(filled * 1e9), text


def test_a_step_by_hand(published, software):
    """8 nodes of 8 H100 from one: 0.057071 s at 400 samples a device, 50 on eight nodes."""
    constants = {"start_s": 0.003, "straggler_share": 0.037, "network_share": 0.94}
    actual = scalings(published[published["system"] == "dgxh100_n8_ngc23.04_mxnet"])
    compute_s = (0.057071 - 0.003) / 400 * 50
    sum_s = 2 * NETWORKS["resnet"].bytes_of("v3.0") * 7 / 8 / (0.94 * 400e9)
    expected = 0.003 + compute_s * (1 + 0.037 * np.sqrt(2 * np.log(64))) + sum_s
    predicted = step_seconds(actual, software.with_constants(constants))
    assert predicted == pytest.approx([expected])


@pytest.mark.parametrize(("kernel", "round_name"), [(2, "v0.7"), (3, "v1.0"), (3, "v3.0")])
def test_gradients_of_cosmoflow_are_those_of_the_reference_network(kernel, round_name):
    """Five convolutions, each with a pooling of 2, from 128^3 points of 4; dense 128, 64, 4."""
    channels = [4, *(32 * 2**i for i in range(5))]
    dense = [channels[-1] * (128 // 2**5) ** 3, 128, 64, 4]
    weights = sum((kernel**3 * n + 1) * m for n, m in pairwise(channels))
    weights += sum((n + 1) * m for n, m in pairwise(dense))
    assert NETWORKS["cosmoflow"].bytes_of(round_name) == 4 * weights


def test_planted_constants_are_recovered(published, software):
    everything = scalings(published)
    known = everything.take(~everything.rows["by_run"].to_numpy(dtype=bool))
    planted = {"start_s": 0.0025, "straggler_share": 0.05, "network_share": 0.8}
    steps = step_seconds(known, software.with_constants(planted))
    made = known.take(np.ones(len(known), dtype=bool))
    made.rows["measured_s"] = steps
    fitted = fit_scaling(made, software)
    for name, value in planted.items():
        assert fitted.constants[name] == pytest.approx(value, rel=0.05), name


def test_shipped_constants_are_those_of_the_shipped_rows(published, software):
    fitted = fit_scaling(scalings(published), software)
    for name in CONSTANTS:
        assert fitted.constants[name] == pytest.approx(software.constant(name), rel=0.01), name


def test_systems_of_submitters_held_out(published):
    actual = score(published, ScoreQuestion("submitter"))
    assert actual["rows"] == 42
    assert actual["mean_absolute_error"] <= 0.08  # 0.061
    assert actual["median_absolute_error"] <= 0.05  # 0.036
    timing = actual["by"]["timing"]
    assert timing["logged epochs"]["rows"] == 40
    assert timing["logged epochs"]["mean_absolute_error"] <= 0.06
    assert timing["run time"]["rows"] == 2  # 4,216 and 4,320 accelerators
    assert actual["by"]["devices"]["1024"]["mean_absolute_error"] < 0.06


@pytest.fixture(scope="module")
def cosmoflow():
    return pd.read_csv(NETWORKS["cosmoflow"].published)


def test_cosmoflow_is_scored_and_nothing_is_fitted_to_it(cosmoflow):
    actual = score(cosmoflow, ScoreQuestion())
    assert actual["rows"] == 9
    assert actual["mean_absolute_error"] == pytest.approx(0.097, abs=0.005)
    assert actual["median_absolute_error"] == pytest.approx(0.065, abs=0.005)
    assert actual["within_20_percent"] == pytest.approx(8 / 9)
    assert actual["left_out"]["samples that are split over accelerators"] == 2
    start = actual["by"]["from"]
    assert start["a system alone"]["rows"] == 5
    assert start["a system alone"]["mean_absolute_error"] == pytest.approx(0.055, abs=0.005)
    assert len(actual["by"]["family"]) == 9
    held_out = score(cosmoflow, ScoreQuestion("submitter"))
    assert held_out["mean_absolute_error"] == pytest.approx(0.097, abs=0.005)


def test_a_step_of_cosmoflow_by_hand(cosmoflow, software):
    """128 nodes of 8 A100 from 16; single precision, one sample a device on both."""
    constants = {"start_s": 0.003, "straggler_share": 0.04, "network_share": 0.9}
    actual = scalings(cosmoflow[cosmoflow["system"] == "dgxa100_n128_ngc21.09_mxnet"])
    ring_s = 2 * 4 * 8_907_556 / (0.9 * 200e9)
    small, large = (1 + 0.04 * np.sqrt(2 * np.log(n)) for n in (128, 1024))
    base = cosmoflow.set_index("system")["step_s"]["dgxa100_n16_ngc21.09_mxnet"]
    computing_s = (base - 0.003 - ring_s * 15 / 16) / small
    expected = 0.003 + computing_s * large + ring_s * 127 / 128
    predicted = step_seconds(actual, software.with_constants(constants))
    assert predicted == pytest.approx([expected])


def test_every_step_of_cosmoflow_has_its_source(cosmoflow):
    assert cosmoflow["source"].str.match(r"mlcommons/hpc_results_v\d\.\d@[0-9a-f]{40} \S+$").all()
    assert (cosmoflow["epochs_read"] >= 7).all()
    assert (
        cosmoflow["accelerators"] == cosmoflow["nodes"] * cosmoflow["accelerators_per_node"]
    ).all()


def test_an_unknown_network_is_left_out_and_named(cosmoflow):
    other = cosmoflow.assign(model="deepcam")
    (reason,) = scalings(other).left_out
    assert reason.startswith("deepcam: no known network")


def test_networks_are_not_predicted_from_one_another(published, cosmoflow):
    """CosmoFlow of round 1.0 on the same machines as ResNet-50 of round 1.0."""
    rows = scalings(pd.concat([published, cosmoflow], ignore_index=True)).rows
    assert len(rows) == 42 + 9
    assert set(rows["gradient_bytes"]) == {2 * 25_557_032, 4 * 8_907_556, 4 * 5_597_604}


def test_families_held_out(published):
    actual = score(published, ScoreQuestion("model"))
    assert actual["mean_absolute_error"] <= 0.065


def test_a_free_text_stands_for_the_column(published):
    """A system that nobody filled in; its smallest one is a shipped row."""
    row = published[published["system"] == "dgxh100_n64_ngc23.04_mxnet"]
    other = row.drop(columns=["nic_gb_per_s_a_node", "nic_from"]).assign(system="another")
    assert scalings(other).rows["node_bytes_per_s"].tolist() == [400e9]
    unclear = other.assign(host_network="some cards")
    assert not len(scalings(unclear))
    assert any("fill nic_gb_per_s_a_node" in reason for reason in scalings(unclear).left_out)


def test_other_software_is_left_out_and_counted(published):
    other = published.head(3).assign(process="", framework="TensorFlow")
    assert scalings(other).left_out == {"other software": 3}
    with pytest.raises(ConfigError, match="other software: 6"):
        together([scalings(other), scalings(other)]).check_any()
    unsized = scalings(published.head(3).assign(nodes=np.nan)).left_out
    assert [(reason.startswith("no number of nodes"), n) for reason, n in unsized.items()] == [
        (True, 3)
    ]
    with pytest.raises(ConfigError, match="no row can be predicted"):
        score(other, ScoreQuestion())


def test_wrong_values_are_named(published):
    with pytest.raises(ConfigError, match="line 2: step_s is 'fast'"):
        scalings(published.head(2).assign(step_s="fast"))
    with pytest.raises(ConfigError, match="'speed' is unknown"):
        score(published, ScoreQuestion("none", {"speed": "1"}))


def test_the_shipped_table_is_of_the_kind(tmp_path):
    assert kind_of(PUBLISHED).name == "mlperf"
