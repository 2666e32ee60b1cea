"""Tables of a device: read and written alike, and one sentence for each fault."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator, load_site
from ddlbench.planning.block_costs import block_costs, blocks_of
from ddlbench.planning.device_folder import device_tables, read_device, tables_of
from ddlbench.planning.device_table import read_table, table_for, write_table
from ddlbench.planning.matrix import why_unsupported
from ddlbench.planning.planner import make_plan
from ddlbench.planning.profiles import device_batches

ROOT = Path(__file__).resolve().parents[3]
DEVICES = ROOT / "config" / "accelerators"
HEADER = (
    "block,parameters,buffer_bytes,output_bytes,saved_bytes,input_share,weight_share,"
    "forward_s_at_8,backward_s_at_8"
)
CONV = "conv,weight=64 bias=16,0,4096,12288,0.5,0.5,0.001,0.002"
RELU = "relu,,0,4096,4096,1,0,0.0001,0.0001"
HEAD = "head,weight=160,8,40,4096,0.5,0.5,0.0002,0.0004"


def _written(folder: Path, *lines: str) -> Path:
    path = folder / "cifar10" / "resnet18.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    table = read_table(_written(tmp_path, HEADER, CONV, "", RELU, HEAD), "cifar10")
    assert [block.name for block in table.blocks] == ["conv", "relu", "head"]
    assert table.parameters[0] == {"weight": 64, "bias": 16}
    assert (table.parameter_bytes, table.tensors, table.batch_sizes) == (240, 3, (8,))
    assert table.blocks[0].input_bytes == 12288
    assert table.blocks[2].input_bytes == 4096
    assert table.blocks[0].forward.at(16) == pytest.approx(0.002)  # in proportion
    write_table(tmp_path / "again.csv", table)
    assert read_table(tmp_path / "again.csv", "cifar10") == table


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((), "is empty; a table begins"),
        ((HEADER,), "holds no block"),
        ((HEADER.replace(",saved_bytes", ""), CONV), "column saved_bytes is missing"),
        ((HEADER.replace(",backward_s_at_8", ""), CONV), "column backward_s_at_8 is missing"),
        ((HEADER.replace("backward_s_at_8", "backward_s"), CONV), "'backward_s' is no column"),
        ((HEADER.replace("block,", "block,block,"), CONV), "'block' is there twice"),
        ((HEADER.partition(",forward")[0], CONV), "no column of times"),
        ((HEADER, CONV, "relu,,0"), "line 3 has 3 values for 9 columns"),
        ((HEADER, CONV, CONV), "line 3: block conv is also in line 2"),
        ((HEADER, CONV.replace("0.002", "-0.002")), "line 2: backward_s_at_8 is '-0.002'"),
        ((HEADER, CONV.replace("0.002", "nan")), "backward_s_at_8 is 'nan'"),
        ((HEADER, CONV.replace("0.001", "fast")), "forward_s_at_8 is 'fast'"),
        ((HEADER, CONV.replace("4096", "0")), "output_bytes is 0; write 4 or more"),
        ((HEADER, CONV.replace("weight=64", "weight=63")), "'weight=63' is no tensor of float32"),
        ((HEADER, CONV.replace("bias", "weight")), "weight is there twice"),
        ((HEADER, CONV.replace("conv,", "a.b,")), "'a.b' cannot be the name of a block"),
        ((HEADER, CONV.replace("0.5,0.5", "0,0")), "are no shares of a backward pass"),
        ((HEADER, '"' + CONV), "line 2 has 1 values"),
    ],
)
def test_each_fault_is_a_sentence(tmp_path: Path, lines: tuple[str, ...], sentence: str) -> None:
    path = _written(tmp_path, *lines) if lines else tmp_path / "empty.csv"
    if not lines:
        path.touch()
    with pytest.raises(ConfigError) as caught:
        read_table(path, "cifar10")
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_no_text_is_a_sentence(tmp_path: Path) -> None:
    path = _written(tmp_path, HEADER)
    path.write_bytes(b"\xff\xfe\x00block")
    with pytest.raises(ConfigError, match="is no text"):
        read_table(path, "cifar10")


# Blocks of an emulated network --------------------------------------------------------------------


def _cell(strategy: str, balance: str, devices: int = 2, **options: object) -> Cell:
    cell = Cell("cifar10", "resnet18", strategy, batch_size=8, devices_per_node=devices)
    written = {"balance": balance, **options}
    return cell.with_(data_scale=0.01, options=tuple(sorted(written.items())))


@pytest.mark.parametrize("strategy", ["pipe-1f1b", "pipedream", "model-parallel-p2p", "gpipe"])
def test_balance_counts_the_blocks_of_the_table(tmp_path: Path, strategy: str) -> None:
    """ResNet-18 has 14 blocks, its table here has three."""
    _written(tmp_path, HEADER, CONV, RELU, HEAD)
    accelerator = Accelerator(str(tmp_path))
    real = load_site("local")
    real = dataclasses.replace(real, nodes=1, devices_per_node=4)
    site = dataclasses.replace(real, accelerator=accelerator)
    assert why_unsupported(_cell(strategy, "2+1"), site) is None
    assert "deals 3 blocks, resnet18 has 14" in str(why_unsupported(_cell(strategy, "2+1"), real))
    wrong = why_unsupported(_cell(strategy, "7+7"), site)
    assert str(wrong) == "balance 7+7 deals 14 blocks, resnet18 has 3"
    if strategy != "gpipe":  # its rules deal blocks when a run starts
        cell = _cell(strategy, "work", devices=4)
        assert "resnet18 has 3 blocks, too few" in str(why_unsupported(cell, site))
        plan = make_plan(_cell(strategy, "work"), accelerator=accelerator)
        assert [(a, b) for a, b, _ in plan.details["stages"]] == [(0, 1), (1, 3)]
        assert device_batches(_cell(strategy, "blocks"), accelerator)


def test_a_table_that_is_cut_as_the_network_has_its_costs() -> None:
    """So ``balance: work`` cuts by operations, as on a real device."""
    one_core = Accelerator(str(DEVICES / "one-core"))
    for network in ("resnet18", "vgg11", "mobilenetv2", "stack", "vit-tiny"):
        cell = Cell("cifar10", network, "pipedream", batch_size=8)
        assert blocks_of(cell, one_core) == block_costs(network, "cifar10")


def test_of_other_cuts_work_is_the_time(tmp_path: Path) -> None:
    _written(tmp_path, HEADER, CONV, RELU, HEAD)
    costs = blocks_of(_cell("pipedream", "work"), Accelerator(str(tmp_path)))
    assert costs is not None
    assert [cost.work for cost in costs] == pytest.approx([0.003, 0.0002, 0.0006])


# Shipped devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", sorted(DEVICES.iterdir()), ids=lambda folder: folder.name)
def test_shipped_devices_are_described_and_whole(folder: Path) -> None:
    assert read_device(folder).description
    tables = list(tables_of(folder))
    assert tables
    for dataset, network, table in tables:
        assert f"{folder.name},{dataset},{network}," in device_tables()
        assert table.tensors


@pytest.mark.parametrize(
    ("network", "blocks", "batch_size", "times_ms", "parameter_bytes"),
    [
        ("alexnet", 22, 256, (44.801, 40.520), 244_403_360),
        ("vgg16", 40, 128, (233.902, 438.633), 553_430_176),
        ("resnet18", 15, 256, (107.446, 152.296), 46_758_048),
        ("resnet50", 23, 128, (182.488, 260.931), 102_228_128),
        ("resnet101", 40, 64, (197.306, 213.786), 178_196_640),
    ],
)
def test_tables_of_pipedream_add_up_to_the_release(
    network: str,
    blocks: int,
    batch_size: int,
    times_ms: tuple[float, float],
    parameter_bytes: int,
) -> None:
    """Sums over the layers of each graph.txt, its Input left out."""
    table = table_for(Accelerator(str(DEVICES / "pipedream")), "imagenet", network)
    assert (len(table.blocks), table.batch_sizes) == (blocks, (batch_size,))
    assert table.parameter_bytes == parameter_bytes
    assert [1e3 * seconds for seconds in table.pass_s(batch_size)] == pytest.approx(times_ms)
