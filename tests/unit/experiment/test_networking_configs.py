"""The networking experiments select what Cheng et al. published, and what their comments say."""

from __future__ import annotations

from collections import Counter

import pytest

from ddlbench.common.schema import read_yaml
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.planning import matrix
from ddlbench.planning.matrix import MatrixRow, expand

CONFIG = project_root() / "config"
SITE = load_site("emulated")


@pytest.fixture(autouse=True)
def _every_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_missing_package", lambda *_: None)


def _rows(name: str) -> list[MatrixRow]:
    path = CONFIG / "experiments" / f"{name}.yaml"
    return expand(parse_experiment(read_yaml(path), str(path)), SITE)


def test_conditions_differ_from_the_base_in_one_property() -> None:
    base = SITE.fabrics["base"].to_dict()
    assert (base["latency_s"], base["bandwidth_bits_per_s"], base["loss"]) == (0.001, 1e9, 0)
    changed: dict[str, set[float]] = {}
    for name, condition in SITE.fabrics.items():
        other = [key for key, value in condition.to_dict().items() if value != base[key]]
        assert len(other) == (name != "base"), name
        for key in other:
            changed.setdefault(key, set()).add(condition.to_dict()[key])
    assert changed == {
        "latency_s": {0.01, 0.1},
        "bandwidth_bits_per_s": {500e6, 250e6},
        "loss": {0.01, 0.1},
    }
    assert SITE.hang_timeout_s > SITE.cell_timeout_s  # a long step is `timeout`, not hung


def test_the_published_matrix() -> None:
    rows = _rows("networking")
    assert all(row.unsupported is None for row in rows)
    servers = [row.cell for row in rows if row.cell.strategy == "parameter-server"]
    assert len(servers) == 2 * 3 * 2 * 3 * 7 * 3  # data, networks, geometries, batches, fabrics
    assert {cell.fabric for cell in servers} == set(SITE.fabrics)
    for cell in servers:
        assert cell.batch_size // (cell.nodes - 1) in (32, 128, 1024)
    assert Counter(cell.geometry for cell in servers).keys() == {"2x1", "4x1"}


def test_the_small_one_has_forty_cells() -> None:
    rows = [row.cell for row in _rows("networking-small") if row.unsupported is None]
    assert len(rows) == 40
    ways = Counter(cell.strategy for cell in rows)
    assert ways == {
        "sequential": 2,
        "parameter-server": 12,
        "ddp": 8,
        "horovod": 6,
        "pipedream": 6,
        "pipe-1f1b": 6,
    }
