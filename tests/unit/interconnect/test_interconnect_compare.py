"""`ddlbench links compare` on nccl-tests' text, nvbandwidth's JSON and links.json."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from click.testing import CliRunner
from p2p_printer import printed

from ddlbench.commands.calibrate import calibrate
from ddlbench.commands.links import links as links_command
from ddlbench.commands.oracle import oracle
from ddlbench.commands.recommend import recommend
from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import given_hockney
from ddlbench.experiment.links import Links, LinkSweep, SweepPoint, write_links
from ddlbench.predict.collective_times import Library

# Bytes and microseconds of all-reduces of two p5.48xlarge: awslabs/awsome-distributed-training.
P5 = ((2**25, 439.7), (2**28, 1468.2), (2**30, 4607.6), (2**32, 17286.0))


def nccl_text(factor=1.0, nodes=2):
    ranks = [
        f"#  Rank {rank:2d} Group  0 Pid   {1887 + rank} on node-{rank // 8} device {rank % 8} "
        "[0x8d] NVIDIA H100 80GB HBM3"
        for rank in range(8 * nodes)
    ]
    rows = []
    for size, us in P5:
        rate = size / (us * factor * 1e3)
        tail = f"{us * factor:.1f} {rate:.2f} {rate * (2 - 2 / (8 * nodes)):.2f} 0"
        rows.append(f"  {size} {size // 4} float sum -1 {tail} {tail}")
    return "\n".join(["# nThread 1 nGpus 1", *ranks, *rows, "# Avg bus bandwidth    : 1"])


def compare(path, *options, fabric="efa-3200"):
    words = ["compare", str(path), "--hardware", "h100-sxm", *options]
    words += ["--fabric", fabric] if fabric else []
    return CliRunner().invoke(links_command, words, catch_exceptions=False)


def run(command, *words):
    return CliRunner().invoke(command, [*map(str, words)], catch_exceptions=False).output


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "Normal"), (2.0, "Slow"), (0.5, "Fast")])
def test_one_sentence_at_the_end(tmp_path, factor, verdict):
    file = tmp_path / "out.txt"
    file.write_text(nccl_text(factor))
    lines = compare(file, "--nodes", "2").output.splitlines()
    assert lines[0].split()[:3] == ["all_reduce", "measured", "expected"]
    assert f"{verdict} for 2 nodes of 8" in "\n".join(lines[len(P5) :])


def test_own_sweeps_say_what_is_normal_on_their_cluster(tmp_path):
    """Its network is half as fast as its name tells: that is normal there, on more nodes, too."""
    sweeps = [tmp_path / f"{nodes}.txt" for nodes in (2, 4)]
    for nodes, file in zip((2, 4), sweeps, strict=True):
        file.write_text(nccl_text(2.0, nodes))
    table, ours = tmp_path / "points.csv", tmp_path / "own.yaml"
    run(oracle, "read", *sweeps, "--output", table)
    words = run(calibrate, table, "--fabric", "efa-3200", "--output", ours)
    assert f"use it: --collectives {ours}" in words.replace("\n", " ")
    more = tmp_path / "8.txt"
    more.write_text(nccl_text(2.0, 8))
    assert "Slow for 8 nodes" in compare(more).output
    assert "Normal for 8 nodes" in compare(more, "--collectives", str(ours)).output
    more.write_text(nccl_text(2.0, 16))
    assert "no fit has more than 4 nodes" in compare(more, "--collectives", str(ours)).output


@pytest.mark.parametrize(("nodes", "cards"), [((1, 1), None), ((2, 4), 400)])
def test_files_of_one_cluster_correct_the_library_together(tmp_path, nodes, cards):
    """Without a fabric, too: one node needs none, and the table may have the rate of its cards."""
    sweeps = [tmp_path / f"{place}.txt" for place in range(len(nodes))]
    for file, count in zip(sweeps, nodes, strict=True):
        file.write_text(nccl_text(2.0, count))
    points, ours = tmp_path / "points.csv", tmp_path / "own.yaml"
    run(oracle, "read", *sweeps, "--output", points)
    pd.read_csv(points).assign(nic_gb_per_s_a_node=cards).to_csv(points, index=False)
    run(calibrate, points, "--output", ours)
    assert Library.load(str(ours)).of_one_cluster


def test_own_sweeps_decide_in_a_recommendation(tmp_path):
    """Sums of gradients are slower, and the answer says on what it rests."""
    table, ours = tmp_path / "points.csv", tmp_path / "own.yaml"
    (tmp_path / "2.txt").write_text(nccl_text(4.0))
    run(oracle, "read", tmp_path / "2.txt", "--output", table)
    run(calibrate, table, "--fabric", "efa-3200", "--output", ours)
    hardware = ["--hardware", "h100-sxm", "--fabric", "efa-3200", "--geometry", "2x8"]
    question = [*["--network", "vgg16", "--dataset", "imagenet", "--batch-size", "64"], *hardware]
    by_names = run(recommend, *question, "--json")
    by_own = run(recommend, *question, "--json", "--collectives", ours)
    steps = [
        next(c["step_s"] for c in json.loads(text)["candidates"] if c["strategy"] == "ddp")
        for text in (by_names, by_own)
    ]
    assert steps[1] > 1.5 * steps[0]
    assert "4 points of points.csv" in run(recommend, *question, "--collectives", ours)
    layouts = ["--network", "llama-8b", "--batch-size", 64, *hardware]
    words = run(recommend, *layouts, "--collectives", ours).split()
    assert "its latency by 4 points of points.csv" in " ".join(words)
    assert "its latency" not in run(recommend, *layouts, "--geometry", "1x8", "--collectives", ours)
    with pytest.raises(ConfigError, match="--collectives goes with a network on --hardware"):
        run(recommend, "--network", "vgg16", "--collectives", ours)


def library_of(tmp_path, nodes):
    """A library that is calibrated by a sweep of H100s, over efa-3200 where nodes are several."""
    sweep, table, ours = (tmp_path / name for name in ("sweep.txt", "points.csv", "own.yaml"))
    sweep.write_text(nccl_text(nodes=nodes))
    run(oracle, "read", sweep, "--output", table)
    run(calibrate, table, "--fabric", "efa-3200", "--output", ours)
    return ours


def remarks_of(ours, *, hardware, fabric, nodes):
    """What a comparison and a recommendation say of a library."""
    sweep = ours.with_name("judged.txt")
    sweep.write_text(nccl_text(nodes=nodes))
    options = ["--fabric", fabric, "--collectives", str(ours)]
    compared = CliRunner().invoke(
        links_command, ["compare", str(sweep), "--hardware", hardware, *options]
    )
    place = ["--hardware", hardware, "--geometry", f"{nodes}x8", *options]
    question = ["--network", "vgg16", "--dataset", "imagenet", "--batch-size", "64", *place]
    layouts = ["--network", "llama-8b", "--batch-size", "64", *place]
    texts = (compared.stderr, run(recommend, *question), run(recommend, *layouts))
    return [" ".join(text.split()) for text in texts]


@pytest.mark.parametrize(
    ("hardware", "fabric", "remark"),
    [
        ("h100-sxm", "efa-3200", ""),
        ("h100-sxm", "infiniband-400", "is of fabric efa-3200, not of infiniband-400."),
        ("a100-sxm-80gb", "efa-3200", "is of NVIDIA H100 SXM5, 80 GB, not of NVIDIA A100"),
    ],
)
def test_a_library_of_another_cluster_says_so(tmp_path, hardware, fabric, remark):
    ours = library_of(tmp_path, nodes=2)
    for text in remarks_of(ours, hardware=hardware, fabric=fabric, nodes=2):
        assert ("The library of collectives is of" in text) == bool(remark)
        assert remark in text


def test_a_library_of_one_node_tells_nothing_of_several(tmp_path):
    ours = library_of(tmp_path, nodes=1)
    assert not Library.load(str(ours)).fabric
    for nodes in (1, 2):
        *others, layouts = remarks_of(ours, hardware="h100-sxm", fabric="efa-3200", nodes=nodes)
        for text in others:
            assert ("is of sweeps of one node" in text) == (nodes > 1)
        assert f"--collectives {ours} has no effect" in layouts.replace("- ", "-")


def test_json_has_each_size(tmp_path):
    file = tmp_path / "out.txt"
    file.write_text(nccl_text())
    values = json.loads(compare(file, "--json").output)
    points = values["sweeps"][0]["points"]
    assert [point["payload_bytes"] for point in points] == [size for size, _ in P5]
    assert all(point["low"] < point["expected"] < point["high"] for point in points)
    assert {point["verdict"] for point in points} == {"normal"}


def test_wrong_geometries_are_named(tmp_path):
    file = tmp_path / "out.txt"
    file.write_text(nccl_text())
    with pytest.raises(ConfigError, match="give --fabric"):
        compare(file, fabric=None)
    with pytest.raises(ConfigError, match=r"ranks are on 2 nodes \(node-0, node-1\), not on 3"):
        compare(file, "--nodes", "3")
    with pytest.raises(ConfigError, match="16 ranks are not 2 nodes of 4"):
        compare(file, "--devices-per-node", "4")


@pytest.mark.parametrize("content", [b"", b"hello", b"[1]", b"\xff\xfa\x00"])
def test_a_file_of_no_test_is_named(tmp_path, content):
    file = tmp_path / "out.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is no output of a known link test \(nccl-tests, "):
        compare(file)


def test_what_the_file_says_of_its_devices_is_compared_with_the_option(tmp_path):
    file = tmp_path / "out.txt"
    file.write_text(nccl_text(nodes=1))
    words = ["compare", str(file), "--hardware"]
    other = CliRunner().invoke(links_command, [*words, "v100-sxm-32gb"], catch_exceptions=False)
    assert "its devices are NVIDIA H100 80GB HBM3, and --hardware is NVIDIA V100" in other.output
    alike = CliRunner().invoke(links_command, [*words, "H100"], catch_exceptions=False)
    assert "its devices are" not in alike.output


def test_copies_of_nvbandwidth(tmp_path):
    def case(name, rate, unit="GB/s"):
        matrix = [["N/A", rate], [rate, "N/A"]]
        words = f"memcpy CE GPU(row) -> GPU(column) bandwidth ({unit})"
        return {"name": name, "status": "Passed", "bandwidth_description": words,
                "bandwidth_matrix": matrix, "sum": 2 * float(rate)}  # fmt: skip

    cases = [
        case("device_to_device_memcpy_write_ce", "150.5"),
        case("device_to_device_latency_sm", "800", "ns"),
    ]
    file = tmp_path / "out.json"
    file.write_text(json.dumps({"nvbandwidth": {"testcases": cases}}))
    output = compare(file, fabric=None).output
    assert "write, median" in output and "Slow for one node" in output


def test_our_own_links(tmp_path):
    def sweep(transport, nodes):
        points = tuple(SweepPoint(size, us / 1e6, None, 5) for size, us in P5)
        return LinkSweep(
            operation="all_reduce", transport=transport, level="network" if nodes > 1 else "node",
            nodes=nodes, devices_per_node=8, ranks=8 * nodes, points=points,
            fit=given_hockney(1e-4, 1e11),
        )  # fmt: skip

    file = tmp_path / "links.json"
    sweeps = (sweep("nccl", 2), sweep("ddp", 2), sweep("nccl", 1))
    links = Links(site="x", fabric="default", device_kind="cuda", pairs=(), sweeps=sweeps,
                  notes=(), provenance={})  # fmt: skip
    write_links(file, links)
    assert "Normal for 2 nodes of 8" in compare(file, "--nodes", "2").output
    # As a site file that names the program of nvbandwidth has it.
    write_links(file, replace(links, provenance={"settings": {"nvbandwidth": None}}))
    both = json.loads(compare(file, "--json").output)
    assert [entry["nodes"] for entry in both["sweeps"]] == [2, 1]
    with pytest.raises(ConfigError, match="no sweep of NCCL of 4 nodes"):
        compare(file, "--nodes", "4")
    table, ours = tmp_path / "points.csv", tmp_path / "ours.yaml"
    run(oracle, "read", file, "--output", table)
    assert len(table.read_text().splitlines()) == 1 + 2 * len(P5)  # what NCCL swept
    with pytest.raises(ConfigError, match="in no data sheet.*or give --hardware"):
        run(calibrate, table, "--fabric", "efa-3200")
    sheets = ("--hardware", "h100-sxm", "--fabric", "efa-3200")
    assert str(ours) in run(calibrate, table, *sheets, "--output", ours)


def test_copies_of_p2p_bandwidth_latency_test(tmp_path):
    file = tmp_path / "p2p.txt"
    file.write_text(printed(2))
    output = compare(file, fabric=None).output
    assert "write, median" in output and "for one node of 2 x NVIDIA H100" in output
    for option, sentence in (("--nodes", "within one node"), ("--devices-per-node", "is of 2 dev")):
        with pytest.raises(ConfigError, match=f"{sentence}.*leave {option} out"):
            compare(file, option, "4")
