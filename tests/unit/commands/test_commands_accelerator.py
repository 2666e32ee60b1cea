"""``ddlbench site accelerator``: profiles of a site, or graphs of PipeDream, become a device."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ddlbench.commands.site import accelerator
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import profile_file
from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.experiment.site import load_site
from ddlbench.planning.device_folder import read_device
from ddlbench.planning.device_table import read_table

ROOT = Path(__file__).resolve().parents[3]
VGG16 = ROOT / "tests" / "unit" / "planning" / "pipedream_vgg16_graph.txt"
TIMES = [{"batch_size": size, "time_s": 0.001 * size, "interval_s": None} for size in (2, 4, 8)]


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, with a site and no devices."""
    shutil.copytree(ROOT / "config" / "sites", tmp_path / "config" / "sites")
    (tmp_path / "Snakefile").touch()
    (tmp_path / "config" / "config.yaml").touch()
    (tmp_path / "config" / "sites" / "mine.yaml").write_text(
        "device: cpu\nlauncher: local\nnodes: 1\ndevices_per_node: 2\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _profile(network: str, **changes: Any) -> None:
    """A profile of a network on CIFAR-10, measured at the site."""
    passes = {"forward": TIMES, "backward": TIMES}
    shared = {"parameter_bytes": 8, "output_bytes_per_sample": 40.0, "saved_bytes_per_sample": 8.0}
    profile_id = f"cifar10/{network.replace(':', '@')}/fp32-1t"
    values: dict[str, Any] = {
        "schema_version": 1, "site": "mine", "profile_id": profile_id, "dataset": "cifar10",
        "network": network, "precision": "fp32", "threads_per_device": 1, "device_kind": "cpu",
        "batch_sizes": [2, 4, 8], "steps": [], "node_slowdown": [], "fixed_memory_bytes": 0,
        "notes": [], "provenance": {"cpu_model": "A core", "created": "2026-01-02T03:04:05"},
        "layers": [{"name": f"l{n}", "block": n, "block_name": f"b{n}", "kind": "Linear", **shared,
                    **passes} for n in range(2)],
        "blocks": [{"block": n, "name": f"b{n}", "buffer_bytes": 4, "input_bytes_per_sample": 8.0,
                    **shared, **passes} for n in range(2)],
        "tensors": [{"name": f"b{n}.a.weight", "block": n, "bytes": 8, "ready_fraction": 0.5}
                    for n in range(2)],
    }  # fmt: skip
    values |= changes
    path = profile_file("mine", values["profile_id"])
    path.parent.mkdir(parents=True)
    write_profile(path, Profile.from_dict(values))


def _run(*args: str) -> Result:
    return CliRunner().invoke(accelerator, args, catch_exceptions=False)


def test_a_faster_device_takes_every_time_divided(repository: Path) -> None:
    _profile("vgg11")
    _run("dev", "--site", "mine", "--faster", "4")
    folder = repository / "config" / "accelerators" / "dev"
    table = read_table(folder / "cifar10" / "vgg11.csv", "cifar10")
    for batch_size in (4, 100):  # one that was timed, one that was not
        assert table.pass_s(batch_size) == pytest.approx(2 * (0.001 * batch_size * 2 / 4,))
    device = read_device(folder)
    assert device.description == "A core, 4 times as fast"
    assert "divided by 4" in device.lacks[0]


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf", "fast"])
def test_a_factor_that_is_no_positive_number_is_refused(factor: str) -> None:
    _profile("vgg11")
    with pytest.raises((ConfigError, click.UsageError)):
        accelerator.main(["dev", "--site", "mine", "--faster", factor], standalone_mode=False)


def test_profiles_of_a_site_become_a_device_that_another_site_emulates(repository: Path) -> None:
    _profile("vgg11")
    _profile("my.models:net")
    assert "config/accelerators/dev" in _run("dev", "--site", "mine").output
    folder = repository / "config" / "accelerators" / "dev"
    device = read_device(folder)
    assert (device.description, device.date, device.precision) == ("A core", "2026-01-02", "fp32")
    table = read_table(folder / "cifar10" / "vgg11.csv", "cifar10")
    assert [block.name for block in table.blocks] == ["b0", "b1"]
    assert table.parameters == ({"a_weight": 8}, {"a_weight": 8})
    assert table.pass_s(4) == pytest.approx((0.008, 0.008))
    site = repository / "config" / "sites" / "emulated.yaml"
    site.write_text(
        "device: cpu\nlauncher: local\nnodes: 1\ndevices_per_node: 2\n"
        "accelerator: {profiles: config/accelerators/dev}\n"
    )
    cell = Cell("cifar10", "my.models:net", "ddp", batch_size=8)
    assert load_site("emulated").supports(cell) is None
    assert "has no table" in str(load_site("emulated").supports(cell.with_(network="resnet18")))


def test_profiles_of_an_experiments_data_are_left_out(repository: Path) -> None:
    _profile("vgg11")
    _profile("mlp", profile_id="photos/mlp/fp32-1t", dataset="photos")
    assert "left out: profiles of photos" in _run("dev", "--site", "mine").output
    folder = repository / "config" / "accelerators" / "dev"
    assert [path.parent.name for path in folder.glob("*/*.csv")] == ["cifar10"]


def test_a_device_grows_by_a_network_and_keeps_its_description(repository: Path) -> None:
    _profile("vgg11")
    _run("dev", "--site", "mine", "--description", "My core")
    _profile("resnet18")
    assert "kept as it was" in _run("dev", "--site", "mine", "--network", "resnet18").output
    folder = repository / "config" / "accelerators" / "dev"
    assert read_device(folder).description == "My core"
    assert (folder / "cifar10" / "vgg11.csv").is_file()
    assert (folder / "cifar10" / "resnet18.csv").is_file()


def test_a_graph_becomes_a_device(repository: Path) -> None:
    output = _run("gpu", f"--graph=imagenet/vgg16={VGG16}", "--source", "a paper").output
    assert "vgg16" in output
    device = read_device(repository / "config" / "accelerators" / "gpu")
    assert device.source == "a paper"
    assert any("second batch size" in sentence for sentence in device.lacks)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["dev"], "write either --site SITE"),
        (["dev", "--site", "mine", f"--graph=imagenet/vgg16={VGG16}"], "write either --site"),
        (["../dev", "--site", "mine"], "its name is a folder"),
        (["dev", "--site", "nowhere"], "site 'nowhere' has no file"),
        (["dev", "--site", "mine", "--network", "vgg16"], "has no profile of vgg16 in fp32"),
        (["dev", "--site", "mine", "--precision", "bf16"], "has no profile in bf16"),
        (["dev", "--graph", "vgg16"], "write dataset/network=file"),
        (["dev", "--graph=imagenet/vgg61=g.txt"], "unknown network 'vgg61'; did you mean"),
        (["dev", "--graph=imagnet/vgg16=g.txt"], "imagnet"),
        (["dev", "--graph=imagenet/gpt-tiny=g.txt"], "network gpt-tiny reads tokens"),
        (["dev", "--graph=imagenet/vgg16=g.txt"], "g.txt"),
        (["dev", f"--graph=cifar10/vgg16={VGG16}"], "name the dataset that was profiled"),
        (["old", "--site", "mine"], "vgg11.csv is there already; --overwrite replaces it"),
        (["old", "--site", "mine", "--precision", "tf32"], "has no profile in tf32"),
    ],
)
def test_each_fault_is_a_sentence_and_writes_nothing(
    repository: Path, args: list[str], sentence: str
) -> None:
    _profile("vgg11")
    _run("old", "--site", "mine")
    with pytest.raises(ConfigError) as caught:
        _run(*args)
    assert sentence in str(caught.value)
    assert not (repository / "config" / "accelerators" / "dev").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"blocks": []}, "blocks were not timed"),
        ({"provenance": {"cpu_model": "emulated compute: times of x"}}, "was itself emulated"),
    ],
)
def test_profiles_that_make_no_device(changes: dict[str, Any], sentence: str) -> None:
    _profile("vgg11", **changes)
    with pytest.raises(ConfigError, match=sentence):
        _run("dev", "--site", "mine")
