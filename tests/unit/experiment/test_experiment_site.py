"""Site files: their mistakes, their defaults, and what a site has no room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import making_command
from ddlbench.experiment.site import Accelerator, Site, load_site, shrunk_bytes

CELL = Cell("mnist", "resnet18", "ddp", batch_size=8)


def _load(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_site(str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("node: 4", "'node' is not a key here; did you mean 'nodes'?"),
        ("slurm: {acount: x}", "slurm: 'acount' is not a key here; did you mean 'account'?"),
        ("nodes: 0", "nodes: 0 is too small; write at least 1"),
        ("nodes: two", "nodes: 'two' is not a whole number (Largest"),
        ("devices_per_node: four", "devices_per_node: 'four' does not fit (Devices of one node"),
        ("devices_per_node: 0", "devices_per_node: 0 is too small; write at least 1"),
        ("scratch: ''", "scratch must not be empty (Node-local folder"),
        ("scratch: data/here", "scratch: 'data/here' is no absolute path; write one of each node"),
        ("cell_timeout_s: 0", "cell_timeout_s: 0 is too small; write more than 0"),
        ("real_data: {mnist: 3}", "real_data.mnist: 3 is not a text"),
        ("real_data: {imgnet: /x}", "real_data: unknown dataset 'imgnet'; did you mean 'imagenet'"),
        ("slurm:", "slurm is empty; write a group of 'key: value' lines, or leave the key out"),
    ],
)
def test_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, f"device: cpu\nlauncher: local\n{text}\n")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.yaml'}: {sentence}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device: gpu\nlauncher: local", "device: 'gpu' is not allowed; write auto, cpu or cuda"),
        ("launcher: local", "'device' is missing; add it (What a worker computes on"),
        ("device: cuda\nlauncher: slurm", "devices_per_node: auto counts this machine's cores"),
        ("device: cuda\nlauncher: local", "write the number of devices that one node has"),
        ("device: cpu\nlauncher: slurm", "write the number of devices that one node has"),
    ],
)
def test_what_a_site_must_say(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    assert sentence in str(caught.value)


def test_unknown_site() -> None:
    with pytest.raises(ConfigError, match=r"^site 'nowhere' has no file .*; known: .*local"):
        load_site("nowhere")


def test_defaults(tmp_path: Path) -> None:
    site = _load(tmp_path, "device: cpu\nlauncher: local")
    assert site.name == "mine"
    assert site.nodes == 1
    assert site.devices_per_node == len(os.sched_getaffinity(0))
    assert site.keep_data is True
    assert site.slurm.exclusive is True
    assert site.slurm.gres == "gpu"


def test_what_a_site_has_no_room_for(tmp_path: Path) -> None:
    site = _load(tmp_path, "device: cpu\nlauncher: local\nnodes: 2\ndevices_per_node: 2")
    assert site.why_too_small(CELL.with_(nodes=2, devices_per_node=2)) is None
    assert "has 2 nodes of 2 devices" in str(site.why_too_small(CELL.with_(devices_per_node=3)))
    assert "the cell asks for 3x1" in str(site.why_too_small(CELL.with_(nodes=3)))
    assert "no folder of real mnist is named" in str(site.supports(CELL.with_(data_source="real")))
    assert "GPUs only" in str(site.supports(CELL.with_(precision="tf32")))


def test_more_threads_than_a_devices_cores_are_refused_on_slurm(tmp_path):
    path = tmp_path / "there.yaml"
    path.write_text("device: cpu\nlauncher: slurm\ndevices_per_node: 2\ncpus_per_device: 2\n")
    site = load_site(str(path))
    assert site.supports(CELL.with_(threads_per_device=2)) is None
    assert "2 cores" in site.supports(CELL.with_(threads_per_device=3))


def test_fabrics_are_link_conditions(tmp_path: Path) -> None:
    text = "fabrics: {lat10: {latency_ms: 10, bandwidth_mbit_per_s: 500, loss_percent: 1}}"
    site = _load(tmp_path, f"device: cpu\nlauncher: local\n{text}\n")
    condition = site.fabrics["lat10"]
    assert condition.latency_s == pytest.approx(0.01)
    assert condition.bandwidth_bits_per_s == 500e6
    assert condition.loss == pytest.approx(0.01)
    assert (condition.mtu, condition.congestion_control, condition.backend) == (
        1500,
        "cubic",
        "auto",
    )
    assert site.emulates("lat10")
    assert not site.emulates("default")
    assert not site.emulates("somebody-set-this")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{lat10: {latency: 3}}", "fabrics.lat10: 'latency' is not a key here; did you mean"),
        ("{lat10: {}}", "fabrics.lat10: 'latency_ms' is missing; add it"),
        ("{lat10: {latency_ms: -1}}", "fabrics.lat10.latency_ms: -1 is too small"),
        ("{l: {latency_ms: 1, loss_percent: 100}}", "fabrics.l.loss_percent: 100 is too large"),
        ("{l: {latency_ms: 1, bandwidth_mbit_per_s: 0}}", "write more than 0"),
        ("{l: {latency_ms: 1, mtu: 64}}", "fabrics.l.mtu: 64 is too small; write at least 576"),
        ("{l: {latency_ms: 1, backend: tc}}", "write auto, netem or relay"),
        ("{'a b': {latency_ms: 1}}", "fabrics: 'a b' does not fit (Name of a link condition"),
        ("{'-lat': {latency_ms: 1}}", "neither a dot nor a dash is first"),
        ("{default: {latency_ms: 1}}", "fabrics: 'default' is the site's own network"),
    ],
)
def test_a_wrong_fabric_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, f"device: cpu\nlauncher: local\nfabrics: {text}\n")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.yaml'}: fabrics")
    assert sentence in message
    assert "\n" not in message


def test_an_emulated_cell_has_a_link_and_fits_one_node_of_a_cluster(tmp_path: Path) -> None:
    text = "device: cpu\nnodes: 2\ndevices_per_node: 4\nfabrics: {lat1: {latency_ms: 1}}\n"
    cluster = _load(tmp_path, f"launcher: slurm\n{text}")
    slow = CELL.with_(fabric="lat1", nodes=4)
    assert cluster.held_geometry(slow) == (1, 4)
    assert cluster.why_too_small(slow) is cluster.supports(slow) is None
    assert cluster.held_geometry(slow.with_(fabric="mine")) == (4, 1)
    assert "has 2 nodes" in str(cluster.why_too_small(slow.with_(fabric="mine")))
    large = cluster.why_too_small(slow.with_(devices_per_node=2))
    assert str(large).endswith("the cell asks for 4x2 on one node, as lat1 is emulated")
    assert "no link that lat1 could shape" in str(cluster.supports(CELL.with_(fabric="lat1")))
    here = _load(tmp_path, f"launcher: local\n{text}")
    assert here.held_geometry(slow) == (4, 1)
    assert "the cell asks for 4x1" in str(here.why_too_small(slow))
    assert here.why_too_small(slow.with_(nodes=2, devices_per_node=4)) is None


ACCELERATOR = "device: cpu\nlauncher: local\ndevices_per_node: 4\naccelerator: "


def test_an_accelerator_slows_its_links_and_knows_its_networks(tmp_path: Path) -> None:
    table = tmp_path / "p" / "mnist" / "resnet18.csv"
    table.parent.mkdir(parents=True)
    table.touch()
    text = f"{ACCELERATOR}{{profiles: {tmp_path / 'p'}, slow_down: 4}}\n"
    site = _load(tmp_path, text + "fabrics: {lan: {latency_ms: 1, bandwidth_mbit_per_s: 1000}}")
    assert site.fabrics["lan"].latency_s == pytest.approx(0.004)
    assert site.fabrics["lan"].bandwidth_bits_per_s == pytest.approx(250e6)
    assert site.accelerator is not None
    assert site.accelerator.remark == "emulated compute: times of p, 4 times slower"
    assert site.supports(CELL) is None
    assert "has no table" in str(site.supports(CELL.with_(network="vgg11")))
    assert "2 threads" in str(site.supports(CELL.with_(threads_per_device=2)))
    assert "fp32 only" in str(site.supports(CELL.with_(precision="bf16")))


def test_an_accelerator_shrinks_its_links_and_says_so(tmp_path: Path) -> None:
    text = f"{ACCELERATOR}{{profiles: {tmp_path}, slow_down: 4, shrink: 20}}\n"
    site = _load(tmp_path, text + "fabrics: {lan: {latency_ms: 1, bandwidth_mbit_per_s: 1000}}")
    assert site.fabrics["lan"].latency_s == pytest.approx(0.004)  # the host's, not of bytes
    assert site.fabrics["lan"].bandwidth_bits_per_s == pytest.approx(12.5e6)
    assert site.accelerator is not None
    assert site.accelerator.remark.endswith("4 times slower, 1/20 of the bytes")


def test_a_cell_of_one_node_may_have_links_inside_it(tmp_path: Path) -> None:
    inside = "{inside: {latency_ms: 0.1, bandwidth_mbit_per_s: 800}}"
    text = (
        f"device: cpu\nlauncher: local\nnodes: 2\ndevices_per_node: 4\nfabrics: {{pcie: {inside}}}"
    )
    site = _load(tmp_path, text)
    cell = CELL.with_(fabric="pcie", devices_per_node=2)
    assert site.supports(cell) is None
    reason = str(site.supports(cell.with_(nodes=2, devices_per_node=1)))
    assert "one device a node, so there is no link that pcie could shape" in reason


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{ACCELERATOR}{{profiles: ., shrink: 0.5}}", "shrink: 0.5 is too small"),
        (f"{ACCELERATOR}{{profiles: nowhere}}", "accelerator.profiles: .*nowhere is no folder"),
        (f"{ACCELERATOR}{{profiles: ., slow_down: 0.5}}", "slow_down: 0.5 is too small"),
        (
            "device: cpu\nlauncher: local\naccelerator: {profiles: .}",
            "devices_per_node as a number",
        ),
    ],
)
def test_mistakes_of_an_accelerator(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _load(tmp_path, text)


def test_ranks_learn_their_accelerator_from_the_environment(monkeypatch) -> None:
    assert Accelerator.of_this_process() is None
    accelerator = Accelerator("/profiles", 2.0)
    for name, value in accelerator.variables().items():
        monkeypatch.setenv(name, value)
    assert Accelerator.of_this_process() == accelerator


def test_horovods_cycle_is_as_slow_as_the_devices(monkeypatch) -> None:
    assert Accelerator.slowed(0.001) == 0.001
    for name, value in Accelerator("/profiles", 4.0).variables().items():
        monkeypatch.setenv(name, value)
    assert Accelerator.slowed(0.001) == 0.004


def test_size_thresholds_are_as_small_as_the_tensors(monkeypatch) -> None:
    assert Accelerator.shrunk(64 * 2**20) == 64 * 2**20
    for name, value in Accelerator("/profiles", 4.0, 20.0).variables().items():
        monkeypatch.setenv(name, value)
    assert Accelerator.shrunk(64 * 2**20) == shrunk_bytes(64 * 2**20, 20) == 3_355_443
    assert Accelerator.shrunk(0) == 0  # Horovod: no fusion
    assert Accelerator.shrunk(5) == 1


def test_real_data_of_an_experiment_goes_before_the_sites(tmp_path):
    path = tmp_path / "mine.yaml"
    lines = ["description: d", "device: cpu", "launcher: local"]
    path.write_text("\n".join([*lines, "real_data: {mnist: /theirs, cifar10: /theirs}"]))
    site = load_site(str(path), real_data={"cifar10": "/mine"})
    assert site.real_data == {"mnist": "/theirs", "cifar10": "/mine"}
    with pytest.raises(ConfigError, match="real_data: unknown dataset 'cifar'"):
        load_site(str(path), real_data={"cifar": "/mine"})


def test_links_by_hand_say_what_a_node_sends(tmp_path: Path) -> None:
    link = "{latency_s: 0.0001, bandwidth_bytes_per_s: 1000000000}"
    links = (
        f"interconnect: {{links: {{default: {{network: {link}, node_bytes_per_s: 2000000000}}}}}}"
    )
    site = _load(tmp_path, f"device: cpu\nlauncher: local\n{links}\n")
    assert site.interconnect.links["default"].node_bytes_per_s == 2e9


def test_a_command_names_a_site_by_the_path_from_which_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.yaml"
    path.write_text(
        "description: mine\ndevice: cpu\nlauncher: slurm\nscratch: /tmp\ndevices_per_node: 2\n"
    )
    load_site(str(path))
    command = making_command("elsewhere", [Path("results/elsewhere/x.json")])
    assert "--profile profiles/slurm" in command
    assert command.endswith(f"--config site={path}")
    load_site("local")
    assert "--config" not in making_command("local", [Path("results/local/x.json")])
