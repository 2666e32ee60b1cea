"""Every file in config/ is valid, and selects the cells that its comments say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ddlbench.common.schema import check, read_yaml
from ddlbench.experiment.config import Experiment, parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.registry import NETWORKS, SHIPPED_STRATEGIES
from ddlbench.experiment.site import Site, load_site, site_schema
from ddlbench.planning import matrix
from ddlbench.planning.matrix import MatrixRow, expand

CONFIG = project_root() / "config"
EXPERIMENTS = sorted((CONFIG / "experiments").glob("*.yaml"))
SITES = sorted((CONFIG / "sites").glob("*.yaml"))
REPEATS = 3


@pytest.fixture(autouse=True)
def _every_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_missing_package", lambda *_: None)


def _experiment(name: str) -> Experiment:
    path = CONFIG / f"{name}.yaml"
    return parse_experiment(read_yaml(path), str(path))


def _rows(name: str, site: Site | None = None) -> list[MatrixRow]:
    experiment = _experiment(name)
    return expand(experiment, site or load_site(experiment.site, as_example=True))


@pytest.mark.parametrize("path", [CONFIG / "config.yaml", *EXPERIMENTS], ids=lambda p: p.stem)
def test_experiments_expand_and_every_cell_has_a_base(path: Path) -> None:
    experiment = parse_experiment(read_yaml(path), str(path))
    rows = expand(experiment, load_site(experiment.site, as_example=True))
    ids = {row.cell.id for row in rows}
    assert len(ids) == len(rows)
    assert all(row.base_id in ids for row in rows)


@pytest.mark.parametrize("path", SITES, ids=lambda p: p.stem)
def test_sites_are_valid(path: Path) -> None:
    check(read_yaml(path), site_schema(), str(path))
    assert load_site(path.stem, as_example=True).name == path.stem


def test_the_example_site_names_every_key() -> None:
    example = read_yaml(CONFIG / "sites" / "slurm-example.yaml")
    schema = site_schema()["properties"]
    assert set(example) == set(schema)
    assert set(example["slurm"]) == set(schema["slurm"]["properties"])


def test_the_demo_fits_this_machine_of_two_cores() -> None:
    rows = _rows("config", site=Site(**{**vars(load_site("local")), "devices_per_node": 2}))
    assert len(rows) == 3
    assert [row.unsupported for row in rows] == [None] * 3


@pytest.mark.parametrize("name", ["experiments/ddlbench", "experiments/ddlbench-equal"])
def test_row_counts(name: str) -> None:
    rows = _rows(name)
    pairs = 4 * 6 * REPEATS  # dataset, network, repeat
    strategies = Counter(row.cell.strategy for row in rows)
    assert strategies == {
        "sequential": pairs * 1,  # 1x1, for all four geometries
        "horovod": pairs * 4,
        "ddp": pairs * 4,
        "gpipe": pairs * 4,
        "pipedream": pairs * 4,
        "model-parallel-p2p": pairs * 4,
    }
    assert len(rows) == pairs * 21 == 1512
    unsupported = [row for row in rows if row.unsupported is not None]
    gpipe = [row.cell.geometry for row in unsupported if row.cell.strategy == "gpipe"]
    assert Counter(gpipe) == {"2x4": pairs, "4x4": pairs}  # torchgpipe is one process
    # Figure 5 has model parallelism on several nodes; only networks of few blocks have no 16
    # stages.
    few = [row for row in unsupported if row.cell.strategy != "gpipe"]
    assert {row.cell.strategy for row in few} <= {"model-parallel-p2p"}
    assert {row.cell.geometry for row in few} <= {"4x4"}
    assert all("too few for 16 stages" in str(row.unsupported) for row in few)
    assert {row.cell.devices for row in rows} == {1, 2, 4, 8, 16}
    assert {row.cell.epochs for row in rows} == {3}


DDLBENCH_NETWORKS = ("resnet18", "resnet50", "resnet152", "vgg11", "vgg16", "mobilenetv2")


def test_the_matrix_is_all_there_is() -> None:
    for name in ("experiments/ddlbench", "experiments/ddlbench-equal"):
        axes = _experiment(name).matrix
        assert axes["dataset"] == [name for name in DATASETS if name in TABLE_II]
        assert axes["network"] == [name for name in NETWORKS if name in DDLBENCH_NETWORKS]
        assert set(axes["strategy"]) <= set(SHIPPED_STRATEGIES)


# Jansen et al. 2020, Table II.
TABLE_II = {
    # dataset: images a worker (PyTorch, Horovod, PipeDream), GPipe's mini-batch, micro-batches
    "mnist": (128, 3072, 24),
    "cifar10": (64, 2048, 32),
    "imagenet": (32, 384, 12),
    "highres": (32, 48, 12),
}


@pytest.mark.parametrize("dataset", TABLE_II)
def test_published_batches(dataset: str) -> None:
    per_worker, mini_batch, micro_batches = TABLE_II[dataset]
    rows = [row for row in _rows("experiments/ddlbench") if row.cell.dataset == dataset]
    for cell in (row.cell for row in rows):
        if cell.strategy == "gpipe":
            assert (cell.batch_size, cell.option("chunks")) == (mini_batch, micro_batches)
        elif cell.strategy in ("pipedream", "model-parallel-p2p"):
            assert cell.batch_size == per_worker
        else:
            assert cell.batch_size == per_worker * cell.devices
    bases = {row.base_id for row in rows}
    assert len(bases) == 6 * REPEATS
    assert all(f"/sequential/1x1/batch_size={per_worker}+" in str(base) for base in bases)


def test_published_horovod_settings() -> None:
    options = {
        row.cell.options for row in _rows("experiments/ddlbench") if row.cell.strategy == "horovod"
    }
    assert options == {(("cycle_time_s", 0.005), ("fusion_threshold_bytes", 64 * 2**20))}


def test_equal_batches_are_equal_and_divide() -> None:
    rows = _rows("experiments/ddlbench-equal")
    batches = {(row.cell.dataset, row.cell.batch_size) for row in rows}
    assert batches == {("mnist", 384), ("cifar10", 256), ("imagenet", 96), ("highres", 48)}
    for cell in (row.cell for row in rows):
        assert cell.batch_size % 16 == 0
        assert cell.batch_size % (cell.option("chunks") or 1) == 0
        assert cell.strategy != "gpipe" or cell.option("chunks") == TABLE_II[cell.dataset][2]


# What ResNet-152's backward pass keeps, in GB, as the table in ddlbench-equal.yaml says.
KEPT_GB = {"mnist": 16, "cifar10": 14, "imagenet": 17, "highres": 44}


@pytest.mark.parametrize("dataset", KEPT_GB)
def test_equal_batches_on_one_device(dataset: str) -> None:
    torch = pytest.importorskip("torch")
    from ddlbench.networks.factory import skeleton

    network = skeleton("resnet152", DATASETS[dataset])
    weights = {id(parameter) for parameter in network.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if id(tensor) not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    batch = next(
        r.cell.batch_size for r in _rows("experiments/ddlbench-equal") if r.cell.dataset == dataset
    )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(torch.empty(batch, *DATASETS[dataset].shape, device="meta"))
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert total / 1e9 == pytest.approx(KEPT_GB[dataset], abs=0.6)
