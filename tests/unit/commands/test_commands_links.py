"""`ddlbench links`: JSON of link tests, tables of links."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ddlbench.commands.links import links as links_command
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.links import SlowPair, read_links, write_links
from ddlbench.experiment.site import Interconnect, load_site
from ddlbench.interconnect.measure import measure_links

# One GPU, as p2pBandwidthLatencyTest prints it.
HEAD = "Device: 0, Tesla T4, pciBusID: 1e, pciDeviceID: 0, pciDomainID:0\n"
BANDWIDTH = "   D\\D     0 \n     0 239.79 \n"
LATENCY = "   GPU     0 \n     0   1.43 \n\n   CPU     0 \n     0   2.31 \n"
P2P = (
    HEAD
    + "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n"
    + BANDWIDTH
    + "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n"
    + BANDWIDTH
    + "Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n"
    + BANDWIDTH
    + "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n"
    + BANDWIDTH
    + "P2P=Disabled Latency Matrix (us)\n"
    + LATENCY
    + "P2P=Enabled Latency (P2P Writes) Matrix (us)\n"
    + LATENCY
)


def run(*arguments, **options):
    return CliRunner().invoke(links_command, [str(a) for a in arguments], **options)


def test_p2p_as_json(tmp_path):
    (tmp_path / "p2p.txt").write_text(P2P)
    done = run("read", tmp_path / "p2p.txt", catch_exceptions=False)
    assert done.exit_code == 0
    parsed = json.loads(done.stdout)
    assert parsed["devices"] == ["Tesla T4"]
    assert parsed["pairs"][0]["bandwidth_bytes_per_s"] == [[239.79e9]]
    assert parsed["pairs"][0]["latency_s"] == [[pytest.approx(1.43e-6)]]
    assert json.loads(run("read", "-", input=P2P).stdout) == parsed


def test_p2p_as_powershell_writes_it(tmp_path):
    path = tmp_path / "p2p.txt"
    path.write_bytes(P2P.replace("\n", "\r\n").encode("utf-16"))
    done = run("read", path, catch_exceptions=False)
    assert json.loads(done.stdout) == json.loads(run("read", "-", input=P2P).stdout)
    assert run("read", "-", input=path.read_bytes()).stdout == done.stdout


def test_the_content_tells_which_test_printed_it(tmp_path):
    device = "0: NVIDIA H100 (00000000:1b:00)"
    printed = json.dumps({"nvbandwidth": {"GPU Device list": [device], "testcases": []}})
    assert json.loads(run("read", "-", input=printed).stdout)["devices"] == ["NVIDIA H100"]
    row = " 1048576 262144 float sum -1 46.1 22.7 42.6 0 45.0 23.3 43.7 0"
    done = run("read", "-", input=f"# nThread 1 nGpus 1\n# all_reduce_perf\n{row}\n")
    parsed = json.loads(done.stdout)
    assert parsed["operation"] == "all_reduce"
    assert parsed["points"] == [{"payload_bytes": 1048576, "time_s": pytest.approx(46.1e-6)}]
    assert isinstance(run("read", "-", input="hello").exception, ConfigError)


def test_a_remark_stands_beside_the_json(tmp_path):
    path = tmp_path / "p2p.txt"
    path.write_text(
        P2P.replace(BANDWIDTH, BANDWIDTH.replace("     0 239", "srun: late\n     0 239"), 1)
    )
    done = run("read", path, catch_exceptions=False)
    (remark,) = json.loads(done.stdout)["remarks"]
    assert "'srun: late'" in remark
    assert done.stderr == f"{path}: {remark}\n"


def test_a_missing_file_is_one_sentence(tmp_path):
    done = run("read", tmp_path / "none.txt")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).endswith("none.txt cannot be read: No such file or directory")


def test_show_lists_fits_and_slow_pairs(tmp_path):
    link = {"latency_s": 5e-6, "bandwidth_bytes_per_s": 12e9}
    site = replace(
        load_site("local"),
        devices_per_node=3,
        interconnect=Interconnect.from_dict({"links": {"default": {"node": link}}}),
    )
    path = tmp_path / "links.json"
    measure_links(site, "default", path)
    output = run("show", path, catch_exceptions=False).stdout
    assert "12,000" in output
    assert "none" in output
    links = read_links(path)
    slow = replace(links.pairs[0], slow_pairs=(SlowPair(0, 2, 0.5),))
    write_links(path, replace(links, pairs=(slow,)))
    assert "rank 2" in run("show", path, catch_exceptions=False).stdout


def test_missing_links_of_a_site_are_named_with_the_command_that_makes_them():
    with pytest.raises(ConfigError) as caught:
        run("show", "results/accelerators/links/base/links.json", catch_exceptions=False)
    assert "results/accelerators/links/base/links.json --config site=accelerators" in str(
        caught.value
    )
