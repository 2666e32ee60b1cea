"""Operations of networks that are not built in: counted once, and kept."""

import subprocess

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.planning import layer_table
from ddlbench.planning.layer_table import LAYER_COLUMNS, REFUSED, known_block_count, layers_of
from ddlbench.planning.strategy import strategy_of

NETWORK = "torchvision:resnet50"
ROW = (NETWORK, "imagenet", "fc", "linear", 2, 1, 1, 1, 1, "4", 0, 4, 4, 2, 2)


@pytest.fixture
def count(tmp_path, monkeypatch):
    """Counts are kept in a folder of the test; calls of the counter, and what it answers."""
    monkeypatch.setattr(layer_table, "COUNTED", tmp_path / "kept")
    answer = {"returncode": 0, "stdout": "\n".join(",".join(map(str, row)) for row in TABLE)}
    calls = []

    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, **{"stdout": "", "stderr": "", **answer})

    monkeypatch.setattr(layer_table.subprocess, "run", run)
    _forget()
    yield calls, answer, tmp_path / "kept"
    _forget()


def _forget():
    layer_table._counted.cache_clear()
    layer_table.known_block_count.cache_clear()


TABLE = (LAYER_COLUMNS, ROW)


def test_counts_are_kept(count):
    calls, _, folder = count
    first = layers_of(NETWORK, "imagenet")
    _forget()
    assert layers_of(NETWORK, "imagenet") == first
    assert len(calls) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "network\n", "\x00", ",".join(LAYER_COLUMNS) + "\na,b\n"])
def test_a_broken_file_is_counted_again(count, text):
    calls, _, folder = count
    first = layers_of(NETWORK, "imagenet")
    next(folder.iterdir()).write_text(text)
    _forget()
    assert layers_of(NETWORK, "imagenet") == first
    assert len(calls) == 2


def test_another_dataset_is_counted_by_itself(count):
    layers_of(NETWORK, "imagenet")
    layers_of(NETWORK, "cifar10")
    assert len(count[0]) == 2


def test_a_network_that_is_refused_is_built_once(count):
    calls, answer, _ = count
    answer |= {"returncode": REFUSED, "stderr": "warning\ntorchvision has no such network\n"}
    for _ in range(3):
        with pytest.raises(ConfigError, match="^torchvision has no such network$"):
            layers_of(NETWORK, "imagenet")
    assert len(calls) == 1


def test_blocks_are_known_only_where_they_were_counted_before(count):
    assert known_block_count(NETWORK, "imagenet") is None
    layers_of(NETWORK, "imagenet")
    _forget()
    assert known_block_count(NETWORK, "imagenet") == 1
    assert known_block_count("resnet18", "mnist") == 14
    assert len(count[0]) == 1


@pytest.mark.parametrize("balance", ["profile", "1+1"])
def test_more_stages_than_counted_blocks_need_no_profile(count, balance):
    strategy = strategy_of("pipe-gpipe")
    options = strategy.check_options({"balance": balance, "chunks": 2}, "test")
    cell = Cell("imagenet", NETWORK, "pipe-gpipe", 8, 1, 2, options=tuple(options.items()))
    assert strategy.supports(cell) is None
    layers_of(NETWORK, "imagenet")
    _forget()
    assert "torchvision:resnet50 has 1" in str(strategy.supports(cell))
