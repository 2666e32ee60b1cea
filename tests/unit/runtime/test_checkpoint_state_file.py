"""Training state in files that hold no code: bit for bit, whole or not at all."""

from __future__ import annotations

import json
import pickle
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from ddlbench.runtime.checkpoint import rank
from ddlbench.runtime.checkpoint.rank import (
    DamagedState,
    random_state,
    read_state,
    set_random_state,
    write_state,
)

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats()
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 99), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(trees)
def test_what_is_no_tensor_comes_back_as_it_was(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("state") / "rank0.safetensors"
    write_state(path, {"tree": tree, "one": torch.zeros(1)})
    assert repr(read_state(path)["tree"]) == repr(tree)  # NaN is not equal to itself


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_tensors_come_back_bit_for_bit(tmp_path):
    flat = torch.randn(12)
    tensors = {
        "double": torch.tensor([0.1 + 0.2, -0.0, float("inf"), float("nan")], dtype=torch.float64),
        "half": torch.randn(5).to(torch.bfloat16),
        "whole": torch.tensor([2**62 + 1, -1]),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "nothing": torch.empty(0),
        "turned": torch.randn(3, 4).t(),
        # Views of one memory, as a parameter server's weights are.
        "left": flat[:5],
        "right": flat[5:].view(7, 1),
        "again": flat[:5],
    }
    path = tmp_path / "deep" / "rank0.safetensors"
    size = write_state(path, {"state": tensors, 7: [tensors["half"]]})
    assert size == path.stat().st_size
    actual = read_state(path)
    for name, tensor in tensors.items():
        restored = actual["state"][name]
        assert (restored.dtype, restored.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(restored), bits(tensor)), name
    assert torch.equal(actual[7][0], tensors["half"])
    assert torch.equal(read_state(path, only="state")["scalar"], tensors["scalar"])


def test_an_optimizer_goes_on_from_its_file(tmp_path):
    def trained(steps):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
        train(network, optimizer, range(steps))
        return network, optimizer

    def train(network, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            network(torch.randn(6, 3, generator=generator)).square().sum().backward()
            optimizer.step()

    network, optimizer = trained(2)
    path = tmp_path / "rank0.safetensors"
    write_state(path, {"network": network.state_dict(), "optimizer": optimizer.state_dict()})
    other, second = trained(1)
    state = read_state(path)
    other.load_state_dict(state["network"])
    second.load_state_dict(state["optimizer"])
    path.unlink()  # nothing that was read hangs on the file
    train(network, optimizer, range(2, 5))
    train(other, second, range(2, 5))
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"hook": lambda: None}, "function in /hook, which cannot be written without pickle"),
        ({"deep": [{"set": {1}}]}, "set in /deep/0/set"),
        ({"pairs": {(1, 2): 3}}, "key (1, 2) in /pairs"),
        ({"yes": {True: 1}}, "key True"),
    ],
)
def test_what_would_need_pickle_is_refused(tmp_path, state, sentence):
    with pytest.raises(TypeError) as refused:
        write_state(tmp_path / "rank0.safetensors", state)
    assert sentence in str(refused.value)
    assert not list(tmp_path.iterdir())


class Trap:
    """Whoever unpickles it sets it off."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(pickle.dumps({"state": Trap()})),
        lambda path: torch.save({"state": Trap()}, path),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 4096),
        lambda path: save_file({"a": torch.zeros(3)}, str(path)),
        lambda path: save_file({"a": torch.zeros(3)}, str(path), metadata={"state": "{"}),
        lambda path: save_file(
            {"a": torch.zeros(3)}, str(path), metadata={"state": json.dumps({"tensor": "b"})}
        ),
        lambda path: save_file(
            {"a": torch.zeros(3)}, str(path), metadata={"state": json.dumps({"call": "os.abort"})}
        ),
    ],
    ids=["pickle", "torch", "empty", "noise", "no header", "half", "no tensor", "kind"],
)
def test_other_files_are_damaged_and_nothing_of_them_runs(tmp_path, write):
    path = tmp_path / "rank0.safetensors"
    write(path)
    with pytest.raises(DamagedState, match=r"rank0\.safetensors is no checkpoint"):
        read_state(path)
    assert not Trap.sprung


def test_a_truncated_file_is_damaged(tmp_path):
    path = tmp_path / "rank0.safetensors"
    size = write_state(path, {"weights": torch.randn(1000)})
    for kept in (size - 1, size // 2, 9, 1):
        with path.open("r+b") as file:
            file.truncate(kept)
        with pytest.raises(DamagedState):
            read_state(path)


def test_a_write_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "rank0.safetensors"
    write_state(path, {"step": 1, "weights": torch.ones(3)})

    def disk_full(tensors, name, metadata):
        (tmp_path / name).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rank, "save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_state(path, {"step": 2, "weights": torch.zeros(3)})
    monkeypatch.undo()
    assert read_state(path)["step"] == 1
    assert [actual.name for actual in tmp_path.iterdir()] == ["rank0.safetensors"]


def test_random_numbers_go_on_where_they_were(tmp_path):
    devices = [torch.device("cpu"), torch.device("cpu")]
    path = tmp_path / "rank0.safetensors"
    random.gauss(0, 1)  # leaves a second number behind
    write_state(path, random_state(devices))

    def draw():
        return random.gauss(0, 1), random.random(), torch.rand(3).tolist()

    expected = draw()
    torch.manual_seed(99)
    random.seed(99)
    assert draw() != expected
    set_random_state(read_state(path), devices)
    assert draw() == expected
