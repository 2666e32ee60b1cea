"""How weights are laid in a row and cut into messages; threads that end with the first error."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.parameter_server.server import ALIGNMENT, Layout, Row, in_threads

SIZES = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


def parameters_of(sizes):
    return [nn.Parameter(torch.randn(size)) for size in sizes]


@given(SIZES, st.integers(1, 5), st.integers(64, 5000))
def test_messages_part_the_row_evenly(sizes, servers, message_bytes):
    parameters = parameters_of(sizes)
    layout = Layout(parameters, servers, message_bytes)
    edges = [message.begin for message in layout.messages] + [layout.elements]
    assert edges[0] == 0
    assert edges == sorted(set(edges))
    assert [message.end for message in layout.messages] == edges[1:]
    lengths = [message.end - message.begin for message in layout.messages]
    assert max(lengths) * 4 <= message_bytes + ALIGNMENT * 4
    assert max(lengths) - min(lengths) <= ALIGNMENT
    # Servers differ by a rounding for each of their messages.
    held = [sum(m.end - m.begin for m in layout.of_server(server)) for server in range(servers)]
    rounds = -(-len(layout.messages) // servers)
    assert max(held) - min(held) <= ALIGNMENT * rounds
    assert sum(held) == layout.elements


@given(SIZES, st.integers(1, 4), st.integers(64, 5000))
def test_every_gradient_is_in_the_messages_that_wait_for_it(sizes, servers, message_bytes):
    parameters = parameters_of(sizes)
    layout = Layout(parameters, servers, message_bytes)
    row = torch.zeros(layout.elements)
    for index, view in enumerate(layout.views(row, parameters)):
        view.fill_(1)
        filled = {m.number for m in layout.messages if row[m.begin : m.end].any()}
        assert filled == set(layout.messages_of(index))
        view.zero_()
    waited = {number for index in range(len(sizes)) for number in layout.messages_of(index)}
    assert waited == set(range(len(layout.messages)))


def test_last_layers_come_first_and_all_begin_aligned():
    layout = Layout(parameters_of([5, 20, 16]), 1, 64)
    # 16 of the last, 20 in 32 of the second, 5 in 16 of the first.
    assert layout.elements == 64
    assert [(m.begin, m.end) for m in layout.messages] == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert [layout.messages_of(index) for index in range(3)] == [[3], [1, 2], [0]]


def test_a_network_with_fewer_messages_than_servers():
    layout = Layout(parameters_of([5]), 3, 4096)
    assert [len(layout.of_server(server)) for server in range(3)] == [1, 0, 0]


def test_a_network_in_a_row_is_the_same_network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    expected = [parameter.detach().clone() for parameter in network.parameters()]
    inputs = torch.randn(4, 7)
    gradients = torch.autograd.grad(network(inputs).sum(), list(network.parameters()))
    row = Row(network, Layout(list(network.parameters()), 2, 64))
    for parameter, value in zip(network.parameters(), expected, strict=True):
        assert torch.equal(parameter, value)
    row.gradients.zero_()
    network(inputs).sum().backward()
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        assert parameter.grad.untyped_storage()._cdata == row.gradients.untyped_storage()._cdata
    row.weights.zero_()
    assert not any(parameter.any() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "no trained weights"),
        (
            [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))],
            "torch.float32 and torch.float64",
        ),
    ],
)
def test_what_cannot_be_served(parameters, message):
    with pytest.raises(Unsupported, match=message):
        Layout(parameters, 1, 64)


def test_the_first_error_ends_it_whatever_others_wait_for():
    never = threading.Event()

    def fail():
        raise ConnectionError("a worker is gone")

    with pytest.raises(ConnectionError, match="a worker is gone"):
        in_threads([never.wait, fail])
    never.set()


def test_all_threads_are_waited_for():
    done = []
    in_threads([lambda: done.append(1), lambda: done.append(2)])
    assert sorted(done) == [1, 2]
