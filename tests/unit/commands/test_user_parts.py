"""Own networks and own data are tried before any job, and cost nothing where there are none."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_factory import result, write

from ddlbench import user_parts
from ddlbench.commands.plan import plan as plan_command
from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import Container, load_site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.tried_networks import (
    TRIED,
    compared_before,
    key_of,
    network_digest,
    tried_before,
)
from ddlbench.user_parts import try_user_parts

LOCAL = replace(load_site("local"), devices_per_node=2)
BASE = Cell("cifar10", "resnet18", "sequential", batch_size=16)
GOOD = """
from torch import nn
print("noise")
def net(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, spec.num_classes))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _rows(*cells: Cell) -> list[MatrixRow]:
    return [MatrixRow(cell, None, None) for cell in cells]


def _no_process(*_: Any, **__: Any) -> None:
    raise AssertionError("a process was started")


def test_built_in_networks_and_generated_data_start_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_parts.subprocess, "Popen", _no_process)
    assert not try_user_parts(LOCAL, _rows(BASE)).operations


FORKS = """
import os, time
from torch import nn
def net(spec):
    if os.fork() == 0:
        time.sleep(0.2)
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, spec.num_classes))
def other(spec):
    time.sleep(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, 20), nn.Linear(20, 10))
"""


@pytest.mark.slow
def test_a_fork_that_a_network_lets_go_on_answers_nothing(folder: Path) -> None:
    (folder / "own_forks.py").write_text(FORKS)
    rows = _rows(*(BASE.with_(network=f"own_forks:{name}") for name in ("net", "other")))
    assert try_user_parts(LOCAL, rows).operations == {
        ("own_forks:net", "cifar10"): 2 * 3072 * 10,
        ("own_forks:other", "cifar10"): 2 * (3072 * 20 + 20 * 10),
    }


@pytest.mark.slow
def test_a_network_is_tried_once_until_its_file_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "own_tried_nets.py"
    file.write_text(GOOD)
    rows = _rows(BASE.with_(network="own_tried_nets:net"))
    actual = try_user_parts(LOCAL, rows).operations
    assert actual == {("own_tried_nets:net", "cifar10"): 2 * 3072 * 10}
    with monkeypatch.context() as patch:
        patch.setattr(user_parts.subprocess, "Popen", _no_process)
        assert try_user_parts(LOCAL, rows).operations == actual
        reason = MatrixRow(rows[0].cell.with_(network="no.such:net"), None, "cannot run")
        assert try_user_parts(LOCAL, [*rows, reason]).operations == actual
    file.write_text(GOOD.replace("spec.num_classes", "7"))
    with pytest.raises(ConfigError, match=r"'own_tried_nets:net' must return .* \(N, 10\)"):
        try_user_parts(LOCAL, rows)


def test_what_is_remembered_of_a_library_s_network(folder: Path) -> None:
    assert not compared_before("hf:mine.json", "tokens")
    (folder / "mine.json").write_text("{}")
    key = key_of("hf:mine.json", "tokens")
    assert key == key_of("hf:mine.json", "tokens")
    for uncut in ("", "it reads a value of its data"):
        write_json(TRIED, {key: {"operations": 1, "traits": {"uncut": uncut}}})
        assert compared_before("hf:mine.json", "tokens") == (not uncut)
    (folder / "mine.json").write_text("{} ")
    assert key != key_of("hf:mine.json", "tokens")
    assert not compared_before("hf:mine.json", "tokens")


def test_a_network_is_tried_again_when_what_it_imports_changes(folder: Path) -> None:
    (folder / "user_parts_of").mkdir()
    inner = folder / "user_parts_of" / "layers.py"
    inner.write_text("import own_cycle\n")
    (folder / "own_cycle.py").write_text("import own_importing, torch, no_such_module\n")
    beside = folder / "own_beside.py"
    beside.write_text("")
    (folder / "own_importing.py").write_text(
        "def net(spec):\n    from user_parts_of import layers\n"
    )
    key = key_of("own_importing:net", "cifar10")
    beside.write_text("# of another network")
    assert key == key_of("own_importing:net", "cifar10")
    for file in (inner, folder / "own_cycle.py"):
        before = key_of("own_importing:net", "cifar10")
        file.write_text(f"{file.read_text()} # changed")
        assert before != key_of("own_importing:net", "cifar10")


def test_only_statements_decide_which_code_a_network_has(folder: Path) -> None:
    file, helper = folder / "own_code.py", folder / "own_helper.py"
    file.write_text("import own_helper\ndef net(spec):\n    return own_helper.net(spec, 16)\n")
    helper.write_text("def net(spec, width):\n    return width\n")
    digest = network_digest("own_code:net")
    file.write_text(f"# a comment\n\n{file.read_text()}")
    assert network_digest("own_code:net") == digest is not None
    helper.write_text("def net(spec, width):\n    return 2 * width\n")
    assert network_digest("own_code:net") not in (None, digest)
    assert network_digest("resnet18") is network_digest("no_such_module:net") is None


def test_cells_of_other_code_are_named(folder: Path) -> None:
    file = folder / "own_coded.py"
    file.write_text(GOOD)
    rows = _rows(BASE.with_(network="own_coded:net"), BASE)
    for row in rows:
        values = result(row.cell, epoch_s=1.0)
        values["inputs"]["network_digest"] = network_digest(row.cell.network)
        write(Path("results"), row.cell, values)
    cells = [row.cell for row in rows]
    assert user_parts.other_code_remark(LOCAL, cells) == []
    file.write_text(GOOD.replace("nn.Flatten()", "nn.Flatten(), nn.Tanh()"))
    (remark,) = user_parts.other_code_remark(LOCAL, cells)
    assert remark.startswith("1 cell of own_coded:net was measured with other code than is here")
    assert "status forget --state other-code" in remark
    assert try_user_parts(LOCAL, rows).remarks == (remark,)


def test_a_block_with_most_of_the_work_is_a_remark_on_stages(folder: Path) -> None:
    name = "torchvision:densenet121"
    cell = BASE.with_(network=name, devices_per_node=2)
    answer = {"operations": 9, "largest": ["stages_3", 0.8], "traits": {"unused": ["a", "b", "c"]}}
    write_json(TRIED, {key_of(name, "cifar10"): answer})
    unused = f"{name} on cifar10: a, b and 1 more get no gradient, for which ddp looks at each step"
    dealt = (("balance", "7+7"),)
    for strategy, options, remarks in (("ddp", (), 1), ("pipe-1f1b", dealt, 2)):
        actual = try_user_parts(
            LOCAL, _rows(cell.with_(strategy=strategy, options=options))
        ).remarks
        assert len(actual) == remarks
        assert unused in actual[-1]
    assert "80% of its work is in block stages_3, which cannot be cut, so stages" in actual[0]


def _tried_as(name: str, **traits: Any) -> None:
    write_json(TRIED, {key_of(name, "cifar10"): {"operations": 9, "traits": traits}})


def test_weights_that_some_samples_use_are_not_to_be_left_out() -> None:
    rows = _rows(BASE.with_(network="torchvision:densenet121"))
    _tried_as("torchvision:densenet121", unused=["a", "b"], irregular=["b"])
    (remark,) = try_user_parts(LOCAL, rows).remarks
    assert "cifar10: a get no gradient" in remark
    _tried_as("torchvision:densenet121", unused=["b"], irregular=["b"])
    assert not try_user_parts(LOCAL, rows).remarks


def test_a_softmax_of_the_network_is_a_remark(folder: Path) -> None:
    _tried_as("torchvision:densenet121", normalised_by="softmax")
    (remark,) = try_user_parts(LOCAL, _rows(BASE.with_(network="torchvision:densenet121"))).remarks
    assert "its outputs pass a softmax; the loss, cross entropy, has" in remark


def test_blocks_are_dealt_as_a_trial_has_counted_them() -> None:
    name = "torchvision:densenet121"
    two = BASE.with_(network=name, devices_per_node=2, strategy="pipe-1f1b")
    blocks, nine, three = (
        two.with_(options=(("balance", rule),)) for rule in ("blocks", "4+5", "1+1+1")
    )
    assert strategy_of("pipe-1f1b").supports(blocks) is None
    with pytest.raises(ConfigError, match="was not tried here; try it with: ddlbench plan"):
        make_plan(blocks, None)
    rows = _rows(blocks, nine, three)
    _tried_as(name, blocks=[f"block_{number}" for number in range(8)])
    assert make_plan(blocks, None).details["stages"] == [[0, 4, 1], [4, 8, 1]]
    parts = try_user_parts(LOCAL, rows)
    assert parts.unsupported == {
        nine.id: f"balance 4+5 deals 9 blocks, {name} has 8",
        three.id: "balance 1+1+1 has 3 parts for 2 stages; write a number of blocks per stage, as "
        "5+9",
    }
    assert (
        f"{name} with pipe-1f1b will be unsupported: balance 4+5"
        in (parts.unsupported_remarks()[0])
    )


def test_a_network_that_nothing_trains_is_unsupported_in_the_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = BASE.with_(network="torchvision:densenet121")
    _tried_as(cell.network, trains=False)
    experiment = parse_experiment(
        {
            "experiment": "trial",
            "matrix": {
                "dataset": ["cifar10"],
                "network": [cell.network],
                "strategy": ["sequential"],
                "geometry": ["1x1"],
            },
            "settings": {"batch_size": 16},
        }
    )
    plan = inspect.unwrap(plan_command.callback)
    plan(experiment=experiment, site=LOCAL, rows=_rows(cell), every_cell=False, as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert "1 cell, 0 to run, 0 done, 1 cannot run" in text
    assert "cannot run sequential, 1 cell: no gradient reaches a weight" in text


@pytest.mark.slow
def test_a_module_that_is_not_there_is_a_sentence(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no module own_missing; put its file or folder beside"):
        try_user_parts(LOCAL, _rows(BASE.with_(network="own_missing:net")))
    (folder / "own_dying.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(ConfigError, match="own_dying:net: the process that builds it ended: .* 3"):
        try_user_parts(LOCAL, _rows(BASE.with_(network="own_dying:net")))


@pytest.mark.slow
def test_a_network_that_closes_files_and_changes_the_folder_is_tried(folder: Path) -> None:
    closing = "import os\nos.closerange(3, 64)\nos.chdir('/')\n"
    (folder / "own_closing.py").write_text(closing + GOOD)
    name = "own_closing:net"
    assert (name, "cifar10") in try_user_parts(LOCAL, _rows(BASE.with_(network=name))).operations


_TRIALS = """
import atexit, json, os, pathlib, signal, sys, time
atexit.register(lambda: (time.sleep(0.3), pathlib.Path("ended").touch()))
with open(sys.argv[2], "w") as answers:
    for network, _ in json.loads(sys.argv[1]):
        print("noise")
        if network == "ends:net":
            sys.exit("no such device")
        if network == "dies:net":
            print("a warning", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60 if network == "waits:net" else 0)
        traits = {"uncut": "no"}
        print(json.dumps({"operations": 1, "traits": traits}), file=answers, flush=True)
"""


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ("ends:net", "the process that builds it ended: no such device"),
        ("dies:net", "the process that builds it ended: a warning; exit status -9"),
        ("waits:net", "not built"),
    ],
)
def test_what_was_tried_before_a_fault_is_kept(
    last: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is printed last comes last
    monkeypatch.setattr(user_parts, "_TRY", ("-c", _TRIALS))
    monkeypatch.setattr(user_parts, "_TRY_TIMEOUT_S", 2.0)
    cells = (replace(BASE, network=network) for network in ("a:net", last))
    with pytest.raises(ConfigError, match=f"{last}.*{sentence}"):
        try_user_parts(LOCAL, _rows(*cells))
    assert list(tried_before()) == [key_of("a:net", "cifar10")]


def test_what_networks_do_at_the_end_of_their_process_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_parts, "_TRY", ("-c", _TRIALS))
    try_user_parts(LOCAL, _rows(BASE.with_(network="a:net")))
    assert (folder / "ended").is_file()


@pytest.mark.slow
def test_what_only_a_gpu_computes_is_a_remark_on_a_site_of_gpus(folder: Path) -> None:
    (folder / "own_gpu.py").write_text(GOOD.replace("spec.image_bytes", "99"))
    rows = _rows(BASE.with_(network="own_gpu:net"))
    with pytest.raises(ConfigError, match=r"block '1' fails on an input of shape \(2, 3072\)"):
        try_user_parts(LOCAL, rows)
    actual = try_user_parts(replace(LOCAL, device="cuda"), rows)
    assert actual.operations == {}
    assert "the CPU of this machine said so" in actual.remarks[0]


def test_nodes_with_another_environment_try_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_parts.subprocess, "Popen", _no_process)
    boxed = replace(LOCAL, launcher="slurm", container=Container(image="/x.sif"))
    assert not try_user_parts(boxed, _rows(BASE.with_(network="own_missing:net"))).operations


def _write_cifar(folder: Path, images: int) -> None:
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        data = np.zeros((images // 5, 3072), np.uint8)
        batch = {b"data": data, b"labels": [k % 10 for k in range(len(data))]}
        (batches / name).write_bytes(pickle.dumps(batch))


def test_own_data_is_counted(folder: Path) -> None:
    _write_cifar(folder / "mine", 200)
    site = replace(LOCAL, real_data={"cifar10": str(folder / "mine")})
    real = BASE.with_(data_source="real")
    halves = real.with_(data_scale=0.5)
    actual = try_user_parts(site, _rows(real, halves)).images
    assert actual == {("cifar10", 1.0): 200, ("cifar10", 0.5): 100}
    with pytest.raises(ConfigError, match=r"200 training samples .* for a mini-batch of 256"):
        try_user_parts(site, _rows(real.with_(batch_size=256)))


def test_what_is_wrong_with_own_data_is_a_sentence(folder: Path) -> None:
    _write_cifar(folder / "mine", 200)
    site = replace(LOCAL, real_data={"cifar10": str(folder / "mine")})
    real = _rows(BASE.with_(data_source="real"))
    (folder / "mine" / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(ConfigError, match="data_batch_3 has no key 'data' and no key 'labels'"):
        try_user_parts(site, real)
    lost = replace(site, real_data={"cifar10": str(folder / "nowhere")})
    with pytest.raises(ConfigError, match=r"real_data.cifar10: .*nowhere is not a folder"):
        try_user_parts(lost, real)


def test_a_folder_of_the_nodes_is_left_to_them() -> None:
    site = replace(LOCAL, launcher="slurm", real_data={"cifar10": "/nodes/cifar10"})
    (remark,) = try_user_parts(site, _rows(BASE.with_(data_source="real"))).remarks
    assert remark == "/nodes/cifar10 (cifar10) is not on this machine; the nodes will look at it"


def test_code_that_was_changed_back_has_its_answer_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = "mine:net mnist"
    tried = {f"{pair} now": {"operations": 1}, f"{pair} between": {"operations": 2}}
    monkeypatch.setattr(user_parts, "tried_before", lambda: tried)
    monkeypatch.setattr(user_parts, "key_of", lambda network, dataset: f"{network} {dataset} now")
    remembered = user_parts._try_networks([("mine:net", "mnist")], LOCAL, {})
    assert remembered == {("mine:net", "mnist"): tried[f"{pair} now"]}
