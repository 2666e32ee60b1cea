"""One damaged file of any kind: a sentence or a row, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report_factory
from click.testing import CliRunner

from ddlbench.cli import commands
from ddlbench.commands.timeline import timeline
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import links_file, predictions_file, result_file
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.planning.matrix import matrix_of
from ddlbench.planning.partition import read_network
from ddlbench.report.cell_states import states, status_lines

ROOT = Path(__file__).parents[3]
DEEP, LONG = "[" * 100_000, '{"a": ' + "9" * 5_000 + "}"
LINKS, PREDICTIONS = links_file("local", "default"), predictions_file("local", "demo")
DAMAGED = [DEEP, LONG, "", "\x00\xff", "[]", '{"a": NaN}']
EXPERIMENT = {
    "experiment": "demo",
    "site": "local",
    "matrix": {
        "dataset": ["mnist"], "network": ["resnet18"], "strategy": ["sequential", "ddp"],
        "geometry": ["1x2"],
    },
    "settings": {"batch_size": 16, "data_scale": 0.01},
}  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of results: the base is measured, DDP is not yet."""
    monkeypatch.chdir(tmp_path)
    _, _, rows = matrix_of(EXPERIMENT)
    report_factory.write(Path("results"), rows[0].cell)
    return rows


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("name", ["result.json", "failure.json", "lease.json", "plan.json"])
def test_a_damaged_file_of_one_cell_leaves_the_others(name, text, project):
    """hardening D1: ``status`` was a traceback, and one result stopped every cell."""
    base, cell = project
    path = result_file("local", cell.cell.id).with_name(name)
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    actual = states("demo", "local", project)
    assert actual[0].state == "ok"
    assert actual[1].state in {"result.json": ["invalid"], "failure.json": ["failed"]}.get(
        name, ["not run"]
    )
    assert all(line.isprintable() for line in status_lines(actual, every_cell=True))
    assert base.cell.id in actual[0].cell_id


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize(
    "path", [links_file("local", "default"), predictions_file("local", "demo")]
)
@pytest.mark.parametrize(
    "command",
    ["plan", "status", pytest.param("report", marks=pytest.mark.exhaustive)],  # all read alike
)
@pytest.mark.slow
def test_damaged_measurements_of_a_site_are_no_traceback(command, path, text, project):
    """hardening D1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="latin-1")
    Path("demo.yaml").write_text(json.dumps(EXPERIMENT))
    Path("config").symlink_to(ROOT / "config")
    Path("Snakefile").touch()
    ended = CliRunner().invoke(commands, [command, "--configfile", "demo.yaml"])
    assert ended.exit_code == 0 or isinstance(ended.exception, ConfigError), ended.exception


_WRITE = {"name": "device_to_device_memcpy_write_ce", "status": "Passed"}


@pytest.mark.parametrize(
    "cases",
    [
        [None], None, 1, [[]], [{"name": 1}], [{**_WRITE, "bandwidth_matrix": -1}],
        [{**_WRITE, "bandwidth_matrix": [-5, 1]}], [{**_WRITE, "bandwidth_matrix": [[{}]]}],
        [{**_WRITE, "status": None}],
    ],
)  # fmt: skip
def test_nvbandwidth_of_wrong_types_is_one_sentence(cases):
    """hardening D2: AttributeError and TypeError."""
    with pytest.raises(ConfigError) as caught:
        parse_nvbandwidth(json.dumps({"nvbandwidth": {"testcases": cases}}), "out")
    assert len(str(caught.value)) <= 300


def test_a_time_of_four_hundred_digits_is_one_sentence(tmp_path):
    """hardening D2: OverflowError."""
    path = tmp_path / "profile.csv"
    head = "node,layer,forward_ms,backward_ms,activation_bytes,parameter_bytes\n"
    path.write_text(f"{head}1,Conv2d,{'9' * 400},1,1,1\n2,Conv2d,1,1,1,{'9' * 400}\n")
    with pytest.raises(ConfigError, match="node 1: forward_ms") as caught:
        read_network(path)
    assert len(str(caught.value)) <= 300 + len(str(path))


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, DEEP.encode(), LONG.encode(), b"{}"])
def test_a_plan_of_bytes_is_a_short_printable_sentence(content, tmp_path):
    """hardening D3: 951 letters, with the bytes in them."""
    for name in ("plan.json", "trace.json"):
        (tmp_path / name).write_bytes(content)
    ended = CliRunner().invoke(timeline, [str(tmp_path)])
    assert isinstance(ended.exception, ConfigError)
    assert str(ended.exception).isprintable()
    assert len(str(ended.exception)) <= 300 + len(str(tmp_path))
