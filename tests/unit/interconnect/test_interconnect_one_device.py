"""A node of one GPU: matrices of one value, no pairs, and a note that says so."""

import json
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
from p2p_printer import printed

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import given_hockney
from ddlbench.experiment.links import Links, LinkSweep, PairMatrix, read_links
from ddlbench.experiment.site import load_site
from ddlbench.interconnect import measure, node_pairs
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.interconnect.p2p import parse_p2p
from ddlbench.interconnect.pair_matrix import median_of_runs, slow_pairs
from ddlbench.planning.partition.stages import bandwidth_of
from ddlbench.predict.links import LinkTable
from ddlbench.report.figures.links import draw_links

# The form in which the test prints it; the numbers are made up.
PRINTED = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA H100 80GB HBM3, pciBusID: 1b, pciDeviceID: 0, pciDomainID:0

***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal memcopy \
procedure.
So you can see lesser Bandwidth (GB/s) and unstable Latency (us) in those cases.

P2P Connectivity Matrix
     D\\D     0
     0\t     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0 
     0 2500.00 
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0 
     0 2501.00 
Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)
   D\\D     0 
     0 2502.00 
Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0 
     0 2503.00 
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0 
     0 2504.00 
P2P=Disabled Latency Matrix (us)
   GPU     0 
     0   1.95 

   CPU     0 
     0   1.48 
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0 
     0   1.96 

   CPU     0 
     0   1.49 
P2P=Enabled Latency (P2P Reads) Matrix (us)
   GPU     0 
     0   1.97 

   CPU     0 
     0   1.50 

NOTE: The CUDA Samples are not meant for performance measurements. Results may vary when GPU Boost \
is enabled.
"""  # noqa: W291 - the test ends its rows with a space


def links(**changes):
    values = {
        "site": "one",
        "fabric": "default",
        "device_kind": "cuda",
        "pairs": (),
        "sweeps": (),
        "notes": (),
        "provenance": {},
    }
    return Links(**{**values, **changes})


def context(settings=None):
    process = SimpleNamespace(node=0, rank=0, local_rank=0)
    return SimpleNamespace(
        device_kind="cuda", process=process, settings=settings or {"interconnect": {}}
    )


@pytest.mark.parametrize(
    "text", [PRINTED, printed(1), printed(1, reads=True), printed(1, old=True)]
)
def test_the_test_of_one_gpu_is_read(text):
    parsed = parse_p2p(text)
    assert len(parsed["devices"]) == 1
    assert parsed["connectivity"] == [[1.0]]
    for pair in parsed["pairs"]:
        ((value,),) = pair["bandwidth_bytes_per_s"]
        assert value >= 100e9
        assert slow_pairs(PairMatrix.from_dict(pair)) == ()
    (merged, *_) = median_of_runs([parsed["pairs"]] * 3)
    assert merged["bandwidth_bytes_per_s"] == parsed["pairs"][0]["bandwidth_bytes_per_s"]


def test_the_printed_numbers_of_one_gpu():
    pairs = parse_p2p(PRINTED)["pairs"]
    actual = {(p["direction"], p["access"], p["operation"]): p for p in pairs}
    assert actual["unidirectional", "staged", None]["bandwidth_bytes_per_s"] == [[2500e9]]
    assert actual["unidirectional", "direct", "read"]["latency_s"][0] == [pytest.approx(1.97e-6)]


def test_nvbandwidth_waives_what_one_gpu_has_not():
    waived = {"name": "device_to_device_memcpy_write_ce", "status": "Waived"}
    results = {"GPU Device list": ["0: NVIDIA H100 80GB HBM3 (0000:1b)"], "testcases": [waived]}
    parsed = parse_nvbandwidth(json.dumps({"nvbandwidth": results}))
    assert parsed == {"devices": ["NVIDIA H100 80GB HBM3"], "pairs": []}
    assert median_of_runs([parsed["pairs"]] * 5) == []


def test_one_gpu_copies_to_nobody(monkeypatch):
    monkeypatch.setattr(node_pairs.torch.cuda, "device_count", lambda: 1)
    assert node_pairs.gpu_pairs() == []


@pytest.mark.parametrize(("gpus", "shared"), [(1, False), (4, True)])
def test_no_tool_is_started_for_one_gpu(monkeypatch, gpus, shared):
    monkeypatch.setattr(node_pairs.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(node_pairs, "is_shared", lambda: shared)
    monkeypatch.setattr(node_pairs, "find_or_build_p2p", lambda _: pytest.fail("it is"))
    report = node_pairs.work(context())
    assert (report["pairs"], report["no_pairs"]) == ([], "one GPU")


def test_a_tool_that_sees_one_gpu_gives_no_pairs(monkeypatch):
    """Torch cannot tell how many GPUs there are, NVIDIA's test can."""
    monkeypatch.setattr(node_pairs.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(node_pairs, "find_or_build_p2p", lambda _: "binary")
    monkeypatch.setattr(node_pairs, "run_p2p", lambda _: parse_p2p(PRINTED)["pairs"])
    report = node_pairs.work(context())
    assert (report["pairs"], report["no_pairs"]) == ([], "one GPU")
    monkeypatch.setattr(node_pairs, "run_p2p", lambda _: parse_p2p(printed(2))["pairs"])
    assert node_pairs.work(context())["no_pairs"] is None


def test_links_of_one_gpu_say_so_once(monkeypatch, tmp_path):
    """Two nodes of one GPU, shared by two ranks each."""

    def run_rank_job(_site, geometry, module, _settings, _folder, **_named):
        if module.endswith("rank_pairs"):
            raise measure.RankJobFailed("left out")
        report = {
            "status": "ok",
            "provenance": {},
            "sweeps": [],
            "overlaps": [],
            "backgrounds": [],
            "tensor_costs": [],
            "delays": [],
            "notes": [],
        }
        if module.endswith("node_pairs"):
            report |= {"node_type": "1x H100", "pairs": [], "no_pairs": "one GPU"}
        return [{"rank": rank, **report} for rank in range(geometry[0] * geometry[1])]

    monkeypatch.setattr(measure, "run_rank_job", run_rank_job)
    site = replace(load_site("local"), device="cuda", nodes=2, devices_per_node=2)
    measure.measure_links(site, "default", tmp_path / "links.json")
    actual = read_links(tmp_path / "links.json")
    assert actual.pairs == ()
    assert actual.notes == ("no pairs within the node: one GPU", "no pairs of ranks: left out")


def test_readers_of_links_without_pairs():
    fit = given_hockney(1e-5, 5e9)
    sweep = LinkSweep(
        operation="p2p",
        transport="nccl",
        level="node",
        nodes=1,
        devices_per_node=2,
        ranks=2,
        points=(),
        fit=fit,
    )
    hop, remark = LinkTable(links(sweeps=(sweep,))).hop("p2p", (0, 0), (0, 1))
    assert hop.bandwidth_bytes_per_s == pytest.approx(5e9)
    assert "point-to-point sweep of nccl" in remark
    with pytest.raises(ConfigError, match="there are no links within a node"):
        LinkTable(links()).hop("p2p", (0, 0), (0, 1))
    with pytest.raises(ConfigError, match="nothing was measured within a node"):
        bandwidth_of(links(), "node", "here")


@pytest.mark.parametrize("pairs", [(), parse_p2p(PRINTED)["pairs"]])
def test_a_figure_without_pairs(pairs, tmp_path):
    figure, table = draw_links(links(pairs=tuple(PairMatrix.from_dict(pair) for pair in pairs)))
    figure.savefig(tmp_path / "links.png")
    plt.close(figure)
    assert table.empty
