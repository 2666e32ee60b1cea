"""From an experiment to its cells: layers, bases, paths that stay, and what cannot run."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import Site
from ddlbench.planning import matrix
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.planning.strategy import Strategy

SITE = Site(
    name="test",
    description="",
    device="cuda",
    launcher="slurm",
    nodes=4,
    devices_per_node=4,
    cpus_per_device=1,
    memory_per_device_mb=None,
    scratch="/tmp",
    keep_data=True,
    interface=None,
    cell_timeout_s=60,
    hang_timeout_s=600,
)
OWN_NETWORK = "my.models:net"
AXES = {
    "dataset": ["mnist"],
    "network": ["resnet18"],
    "strategy": ["sequential", "ddp", "gpipe"],
    "geometry": ["1x2"],
}


@pytest.fixture(autouse=True, scope="module")
def _every_package_is_there() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix, "_missing_package", lambda *_: None)
        yield


def _expand(axes: dict[str, Any] | None = None, **config: Any) -> list[MatrixRow]:
    config.setdefault("settings", {"batch_size": 64})
    values = {"experiment": "e", "matrix": {**AXES, **(axes or {})}, **config}
    return expand(parse_experiment(values, "my.yaml"), SITE)


def _ids(rows: list[MatrixRow]) -> list[str]:
    return [row.cell.id for row in rows]


def _of(rows: list[MatrixRow], strategy: str) -> list[MatrixRow]:
    return [row for row in rows if row.cell.strategy == strategy]


# The baseline ------------------------------------------------------------------------------------


def test_the_baseline_is_made_once_for_all_geometries() -> None:
    rows = _expand({"geometry": ["1x1", "1x2", "1x4", "2x4", "4x4"]})
    assert Counter(row.cell.strategy for row in rows) == {"sequential": 1, "ddp": 5, "gpipe": 5}
    assert _of(rows, "sequential")[0].cell.geometry == "1x1"


def test_the_baseline_has_no_network() -> None:
    rows = _expand({"fabric": ["10gbit", "1gbit"]})
    (base,) = _of(rows, "sequential")
    assert base.cell.fabric == "default"
    assert {row.base_id for row in rows} == {base.cell.id}
    assert len(_of(rows, "ddp")) == 2


def test_the_base_of_a_global_batch_has_that_batch() -> None:
    rows = _expand({"geometry": ["1x2", "2x4"], "batch_size": [64, 128]}, settings={})
    assert len(_of(rows, "sequential")) == 2
    for row in rows:
        assert f"/sequential/1x1/batch_size={row.cell.batch_size}/" in str(row.base_id)


def test_the_base_of_a_batch_per_device_has_one_share() -> None:
    rows = _expand({"geometry": ["1x2", "2x4"]}, settings={"batch_per_device": 32})
    assert [row.cell.batch_size for row in _of(rows, "ddp")] == [64, 256]
    assert {row.base_id for row in rows} == {"mnist/resnet18/sequential/1x1/batch_size=32/rep0"}


def test_an_override_of_one_strategy_does_not_move_its_base() -> None:
    rows = _expand(
        settings={"batch_per_device": 32},
        overrides=[
            {"when": {"strategy": "gpipe"}, "set": {"batch_size": 96, "options": {"chunks": 24}}}
        ],
    )
    (row,) = _of(rows, "gpipe")
    assert (row.cell.batch_size, row.cell.option("chunks")) == (96, 24)
    assert row.base_id == "mnist/resnet18/sequential/1x1/batch_size=32/rep0"


def test_an_override_of_one_strategy_does_not_move_its_base_off_an_axis() -> None:
    rows = _expand(
        {"batch_size": [32, 64]},
        settings={},
        overrides=[{"when": {"strategy": "gpipe"}, "set": {"batch_per_device": 48}}],
    )
    (row,) = _of(rows, "gpipe")  # both axis values make the same cell; the first is its base
    assert row.cell.batch_size == 96
    assert row.base_id == "mnist/resnet18/sequential/1x1/batch_size=32/rep0"


def test_an_override_of_a_geometry_moves_the_base_with_it() -> None:
    rows = _expand(
        {"geometry": ["1x2", "2x4"]},
        overrides=[{"when": {"geometry": "2x4"}, "set": {"batch_size": 512}}],
    )
    bases = {row.cell.geometry: row.base_id for row in _of(rows, "ddp")}
    assert bases == {
        "1x2": "mnist/resnet18/sequential/1x1/batch_size=64/rep0",
        "2x4": "mnist/resnet18/sequential/1x1/batch_size=512/rep0",
    }


def test_repeats_have_bases_of_their_own() -> None:
    rows = _expand(repeats=3)
    assert len(rows) == 9
    assert all(str(row.base_id).endswith(f"/rep{row.cell.repeat}") for row in rows)


def test_cells_of_a_matrix_have_no_tables_of_their_names() -> None:
    """A cell with a table of its own takes three times as many bytes."""
    for row in _expand(repeats=2):
        assert set(vars(row.cell)) <= {"id"}, row.cell.id


def test_the_base_of_an_included_cell_has_its_settings() -> None:
    cell = {"dataset": "mnist", "network": "resnet18", "strategy": "ddp", "geometry": "1x4"}
    rows = _expand(
        include=[
            cell,
            {**cell, "batch_size": 32},
            {**cell, "batch_per_device": 10},
            {**cell, "strategy": "sequential", "batch_size": 10},
        ]
    )
    bases = {row.cell.batch_size: row.base_id for row in rows if row.cell.geometry == "1x4"}
    assert bases == {
        64: "mnist/resnet18/sequential/1x1/batch_size=64/rep0",  # the matrix has it
        32: None,
        40: "mnist/resnet18/sequential/1x1/batch_size=10/rep0",  # included beside it
    }


def test_a_base_that_is_not_selected_is_none() -> None:
    assert [row.base_id for row in _expand({"strategy": ["ddp"]})] == [None]
    rows = _expand(exclude=[{"strategy": "sequential"}])
    assert [row.base_id for row in rows] == [None, None]


def test_a_matrix_without_the_baseline_needs_no_batch_for_it() -> None:
    rows = _expand(
        {"strategy": ["gpipe"]},
        settings={"options": {"chunks": 8}},
        overrides=[{"when": {"strategy": "gpipe"}, "set": {"batch_size": 64}}],
    )
    assert [(row.cell.option("chunks"), row.base_id) for row in rows] == [(8, None)]


# Layers ------------------------------------------------------------------------------------------


def test_later_layers_win() -> None:
    config = {"settings": {"batch_size": 64, "epochs": 1, "seed": 1, "warmup_steps": 1}}
    (row,) = _expand(
        {"strategy": ["gpipe"], "epochs": [2], "seed": [2]},
        **config,
        strategies={"gpipe": {"chunks": 8, "checkpoint": "never"}},
        overrides=[
            {"when": {"strategy": "gpipe"}, "set": {"seed": 3, "options": {"chunks": 16}}},
            {"when": {"seed": 3}, "set": {"momentum": 0.5}},
        ],
    )
    cell = row.cell
    assert (cell.warmup_steps, cell.epochs, cell.seed, cell.momentum) == (1, 2, 3, 0.5)
    assert dict(cell.options) == {"chunks": 16, "checkpoint": "never"}


@pytest.mark.parametrize(
    ("below", "above", "batch"),
    [
        ({"batch_size": 64}, {"batch_per_device": 8}, 16),
        ({"batch_per_device": 8}, {"batch_size": 64}, 64),
    ],
)
def test_either_batch_key_replaces_the_other(
    below: dict[str, int], above: dict[str, int], batch: int
) -> None:
    only = {"strategy": ["ddp"]}
    by_override = _expand(
        only, settings=below, overrides=[{"when": {"strategy": "ddp"}, "set": above}]
    )
    by_axis = _expand({**only, **{k: [v] for k, v in above.items()}}, settings=below)
    by_hand = _expand(
        only,
        settings=below,
        exclude=[{"strategy": "ddp", "seed": 0, "geometry": "1x4"}],
        include=[{**{k: v[0] for k, v in AXES.items()}, "strategy": "ddp", **above}],
    )
    assert [row.cell.batch_size for row in by_override] == [batch]
    assert [row.cell.batch_size for row in by_axis] == [batch]
    assert batch in [row.cell.batch_size for row in by_hand]


def test_a_condition_knows_defaults() -> None:
    rows = _expand(
        overrides=[{"when": {"precision": "fp32"}, "set": {"seed": 5}}],
        exclude=[{"data_scale": 1, "strategy": "ddp"}],
    )
    assert {row.cell.seed for row in rows} == {5}
    assert not _of(rows, "ddp")


def test_lists_of_options_make_their_product() -> None:
    rows = _expand(strategies={"gpipe": {"chunks": [2, 4], "checkpoint": ["never", "always"]}})
    options = [dict(row.cell.options) for row in _of(rows, "gpipe")]
    assert options == [  # 4 is the default
        {"checkpoint": "never", "chunks": 2},
        {"checkpoint": "always", "chunks": 2},
        {"checkpoint": "never"},
        {"checkpoint": "always"},
    ]


def test_include_stands_on_settings_alone() -> None:
    entry = {"dataset": "mnist", "network": "vgg11", "strategy": "gpipe", "geometry": "1x2"}
    rows = _expand(
        {"seed": [7]},
        strategies={"gpipe": {"chunks": 8}},
        overrides=[{"when": {"strategy": "gpipe"}, "set": {"epochs": 9}}],
        include=[entry],
    )
    assert rows[-1].cell.id == "mnist/vgg11/gpipe/1x2/batch_size=64/rep0"


def test_max_steps_can_be_taken_back() -> None:
    rows = _expand(
        settings={"batch_size": 64, "max_steps": 5},
        overrides=[{"when": {"strategy": "ddp"}, "set": {"max_steps": None}}],
    )
    assert [row.cell.max_steps for row in rows] == [5, None, 5]


# Once each ---------------------------------------------------------------------------------------


def test_a_cell_that_is_asked_for_twice_is_one_row() -> None:
    entry = {key: values[0] for key, values in AXES.items()}
    once = _expand()
    twice = _expand(
        {"dataset": ["mnist", "mnist"], "geometry": ["1x2", "1x2"]},
        include=[entry, {**entry, "strategy": "gpipe", "options": {"chunks": 4}}],
    )
    assert twice == once


def test_an_included_cell_keeps_the_base_that_the_matrix_gave_it() -> None:
    batch = {"batch_size": 96, "options": {"chunks": 24}}
    entry = {"dataset": "mnist", "network": "resnet18", "strategy": "gpipe", "geometry": "1x2"}
    config: dict[str, Any] = {
        "settings": {"batch_per_device": 32},
        "overrides": [{"when": {"strategy": "gpipe"}, "set": batch}],
    }
    assert _expand(**config, include=[{**entry, **batch}]) == _expand(**config)


def test_rows_stand_in_the_order_of_the_axes() -> None:
    rows = _expand({"dataset": ["mnist", "cifar10"], "network": ["vgg11", "resnet18"]}, repeats=2)
    heads = [(r.cell.dataset, r.cell.network, r.cell.strategy, r.cell.repeat) for r in rows]
    assert heads == [
        (dataset, network, strategy, repeat)
        for dataset in ("mnist", "cifar10")
        for network in ("vgg11", "resnet18")
        for strategy in AXES["strategy"]
        for repeat in (0, 1)
    ]


# Paths that stay ---------------------------------------------------------------------------------

# Each has the value that the small matrix has, or the default, among its values.
GROWTH: dict[str, list[Any]] = {
    "dataset": ["mnist", "cifar10"],
    "network": ["vgg11", "resnet18"],
    "strategy": ["sequential", "horovod", "ddp", "gpipe", "model-parallel"],
    "geometry": ["1x1", "1x2", "4x4"],
    "precision": ["bf16", "fp32", "tf32"],
    "epochs": [3, 5],
    "loader_workers": [2, 0],
    "data_scale": [1, 0.5],
    "cudnn_benchmark": [True, False],
    "fabric": ["1gbit", "default"],
}
more_values = st.lists(st.sampled_from(sorted(GROWTH)), max_size=4, unique=True).map(
    lambda axes: {axis: GROWTH[axis] for axis in axes}
)
for_others = st.lists(
    st.builds(
        lambda when, changes: {"when": when, "set": changes},
        st.sampled_from(
            [
                {"dataset": "cifar10"},
                {"network": ["vgg11", "vgg16"]},
                {"strategy": "horovod"},
                {"geometry": "4x4"},
                {"precision": "bf16"},
            ]
        ),
        st.sampled_from([{"seed": 4}, {"batch_size": 16}, {"batch_per_device": 4}]),
    ),
    max_size=3,
)


@given(
    more_values, for_others, st.integers(1, 3), st.sampled_from(["batch_size", "batch_per_device"])
)
def test_what_is_added_leaves_every_other_path(
    axes: dict[str, Any], overrides: list[dict[str, Any]], repeats: int, batch: str
) -> None:
    before = _expand(settings={batch: 48})
    after = _expand(axes, settings={batch: 48}, overrides=overrides, repeats=repeats)
    rows = {row.cell.id: row for row in after}
    for row in before:
        assert rows[row.cell.id] == row


@given(more_values, for_others)
def test_a_matrix_with_the_baseline_gives_every_cell_a_base(
    axes: dict[str, Any], overrides: list[dict[str, Any]]
) -> None:
    rows = _expand(axes, overrides=overrides)
    ids = set(_ids(rows))
    assert all(row.base_id in ids for row in rows)
    assert len(ids) == len(rows)


# What cannot run ---------------------------------------------------------------------------------


def test_what_the_product_makes_and_cannot_run_is_a_row_with_a_reason() -> None:
    rows = _expand({"geometry": ["1x2", "2x1"]})
    reasons = {(r.cell.strategy, r.cell.geometry): r.unsupported for r in rows}
    assert reasons.pop(("gpipe", "2x1")) is not None
    assert set(reasons.values()) == {None}


def test_the_same_by_hand_is_an_error_that_names_it() -> None:
    entry = {"dataset": "mnist", "network": "resnet18", "strategy": "gpipe", "geometry": "2x1"}
    with pytest.raises(ConfigError) as caught:
        _expand(include=[entry])
    assert str(caught.value) == (
        "my.yaml: include.0: gpipe cannot run this cell: "
        "torchgpipe drives the devices of one node and cannot span 2; write a geometry of one "
        "node, as 1x4"
    )


@pytest.mark.parametrize(
    ("axes", "config", "reason"),
    [
        (
            {"geometry": ["1x8"]},
            {},
            "site test has 4 nodes of 4 devices, the cell asks for 1x8",
        ),
        (
            {"geometry": ["1x5"]},
            {},
            "site test has 4 nodes of 4 devices, the cell asks for 1x5",
        ),
        ({"data_scale": [0.001]}, {}, "raise data_scale, or lower batch_size (of all devices) or"),
        ({"data_scale": [0.001]}, {}, "a mini-batch of 64 is more than 60 training images"),
        (
            {"strategy": ["local-sgd"], "max_steps": [1], "epochs": [3]},
            {},
            "a round of 4 steps is longer than all measured ones (3)",
        ),
        (
            {"data_source": ["real"]},
            {},
            "no folder of real mnist is named; write it into the experiment: real_data: {mnist: ",
        ),
        ({"geometry": ["1x3"]}, {}, "64 does not divide over 3 workers; make batch_size a multip"),
    ],
)
def test_reasons(axes: dict[str, Any], config: dict[str, Any], reason: str) -> None:
    (row,) = _expand({"strategy": ["ddp"], **axes}, **config)
    assert reason in str(row.unsupported)


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_missing_package", lambda names, _: " ".join(names) or None)
    assert [row.unsupported for row in _expand()] == [None, None, "torchgpipe"]


# Size --------------------------------------------------------------------------------------------


def test_thousands_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats cost no checks: options are checked once for a point and once for its base."""
    checked: Counter[str] = Counter()
    check_options = Strategy.check_options

    def counted(self: Strategy, *args: Any) -> Any:
        checked["calls"] += 1
        return check_options(self, *args)

    monkeypatch.setattr(Strategy, "check_options", counted)
    axes = {
        "dataset": ["mnist", "cifar10", "imagenet", "highres"],
        "network": ["resnet18", "resnet50", "resnet152", "vgg11", "vgg16", "mobilenetv2"],
        "strategy": ["sequential", "horovod", "ddp", "gpipe", "model-parallel"],
        "geometry": ["1x1", "1x2", "1x4", "2x4", "4x4"],
    }
    started = time.perf_counter()
    rows = _expand(axes, repeats=10)
    print(f"{len(rows)} rows in {time.perf_counter() - started:.2f} s")
    assert len(rows) == 4 * 6 * (1 + 4 * 5) * 10 == 5040
    assert checked["calls"] == 2 * 4 * 6 * 5 * 5


# Networks of one's own ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", ["pipedream", "pipe-1f1b", "pipe-interleaved", "pipe-zbv", "model-parallel-p2p"]
)
def test_a_pipeline_of_an_own_network_is_cut_by_its_profile(strategy: str) -> None:
    axes = {"network": ["vgg11", OWN_NETWORK], "strategy": [strategy]}
    builtin, own_row = _expand(axes)
    assert own_row.unsupported is None
    assert own_row.cell.option("balance", "") == "profile"
    assert "balance=profile" in own_row.cell.id
    assert builtin.cell.option("balance", "") == ""
    written = _expand(axes, strategies={strategy: {"balance": "profile"}})
    assert own_row.cell.id == written[1].cell.id


@pytest.mark.parametrize("strategy", ["sequential", "ddp", "gpipe", "model-parallel"])
def test_what_needs_no_blocks_stays_as_it_is(strategy: str) -> None:
    (row,) = _expand({"network": [OWN_NETWORK], "strategy": [strategy]})
    assert row.unsupported is None
    assert row.cell.options == ()


def test_a_balance_that_was_written_stays() -> None:
    axes = {"network": [OWN_NETWORK], "strategy": ["pipe-1f1b"]}
    (row,) = _expand(axes, strategies={"pipe-1f1b": {"balance": "work"}})
    assert row.unsupported is not None
    assert "balance work reads a table of the built-in networks" in row.unsupported
    (row,) = _expand(axes, strategies={"pipe-1f1b": {"balance": "2+3"}})
    assert (row.unsupported, row.cell.option("balance", "")) == (None, "2+3")


def test_an_included_cell_of_an_own_network_runs_too() -> None:
    entry = {"dataset": "mnist", "network": OWN_NETWORK, "strategy": "pipedream", "geometry": "1x2"}
    rows = _expand(include=[entry])
    assert rows[-1].cell.option("balance", "") == "profile"
    assert rows[-1].unsupported is None
