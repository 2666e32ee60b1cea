"""Rows and pieces by arithmetic: what every rank has, needs, sends and receives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from ddlbench.strategies.process_group import across, groups_of
from ddlbench.strategies.splits.layout import (
    Parts,
    Window,
    channel_pieces,
    filter_pieces,
    halo_of,
    overlap,
)
from ddlbench.strategies.splits.shard_group import axes_of


@given(extent=st.integers(0, 50), count=st.integers(1, 9))
def test_parts_are_whole_and_even(extent, count):
    parts = Parts.even(extent, count)
    assert sum(parts.sizes) == extent
    assert max(parts.sizes) - min(parts.sizes) <= 1
    assert [parts[rank] for rank in range(count)] == [
        (parts.bounds[rank], parts.bounds[rank + 1]) for rank in range(count)
    ]


def test_a_halo_by_hand():
    """Eight rows on two ranks, kernel 3, padding 1: a row of the neighbour, one of padding."""
    halo = halo_of(Window(3, before=1, after=1), Parts.even(8, 2), Parts.even(8, 2))
    assert halo.wanted == ((0, 5), (3, 8))
    assert halo.padding == ((1, 0), (0, 1))
    assert halo.sent(0) == [(1, (3, 4))]
    assert halo.received(0) == [(1, (4, 5))]
    assert halo.kept(0) == (0, 4)
    assert not halo.is_needless


def test_thin_parts_ask_several_ranks():
    halo = halo_of(Window(5, before=2, after=2), Parts.even(4, 4), Parts.even(4, 4))
    assert halo.wanted[0] == (0, 3)
    assert halo.received(0) == [(1, (1, 2)), (2, (2, 3))]
    assert halo.sent(2) == [(0, (2, 3)), (1, (2, 3)), (3, (2, 3))]


def test_a_kernel_of_one_asks_nobody():
    assert halo_of(Window(1), Parts.even(7, 3), Parts.even(7, 3)).is_needless
    assert not halo_of(Window(1, stride=2), Parts.even(7, 3), Parts.even(4, 3)).is_needless


@given(
    extent=st.integers(1, 30),
    ranks=st.integers(1, 6),
    kernel=st.integers(1, 6),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    padding=st.integers(0, 5),
)
def test_every_rank_gets_what_its_outputs_read(*, extent, ranks, kernel, stride, dilation, padding):
    reach = dilation * (kernel - 1) + 1
    outputs = (extent + 2 * padding - reach) // stride + 1
    assume(extent + 2 * padding >= reach and outputs >= ranks)
    halo = halo_of(
        Window(kernel, stride, dilation, padding, padding),
        Parts.even(extent, ranks),
        Parts.even(outputs, ranks),
    )
    values = torch.arange(1.0, extent + 1).view(1, 1, -1)
    weight = torch.arange(1.0, kernel + 1).view(1, 1, -1)
    whole = F.conv1d(values, weight, stride=stride, padding=padding, dilation=dilation)
    for rank in range(ranks):
        held = torch.full((extent,), torch.nan)
        first, end = halo.kept(rank)
        held[first:end] = values[0, 0, first:end]
        for owner, (first, end) in halo.received(rank):
            assert (rank, (first, end)) in halo.sent(owner)
            assert overlap(halo.owned[owner], (first, end)) == (first, end)
            assert held[first:end].isnan().all()  # nothing comes twice
            held[first:end] = values[0, 0, first:end]
        first, end = halo.wanted[rank]
        rows = F.pad(held[first:end], halo.padding[rank]).view(1, 1, -1)
        first, end = Parts.even(outputs, ranks)[rank]
        part = F.conv1d(rows, weight, stride=stride, dilation=dilation)
        assert torch.equal(part, whole[..., first:end])


@given(
    groups=st.integers(1, 6),
    filters=st.integers(1, 4),
    channels=st.integers(1, 4),
    ranks=st.integers(1, 8),
    by_filter=st.booleans(),
)
def test_pieces_hold_every_weight_once(groups, filters, channels, ranks, by_filter):
    all_filters, all_channels = groups * filters, groups * channels
    make, dealt = (filter_pieces, all_filters) if by_filter else (channel_pieces, all_channels)
    assume(dealt >= ranks)
    held = torch.zeros(all_filters, channels)
    parts = Parts.even(dealt, ranks)
    for rank in range(ranks):
        pieces = make(parts[rank], all_filters, all_channels, groups)
        assert len(pieces) <= 3
        for piece in pieces:
            held[slice(*piece.filters), slice(*piece.within)] += 1
            outputs = piece.filters[1] - piece.filters[0]
            inputs = piece.channels[1] - piece.channels[0]
            assert outputs % piece.groups == inputs % piece.groups == 0
            assert inputs // piece.groups == piece.within[1] - piece.within[0]
            # The channels that it reads are those of the groups that its filters are in.
            first_group = piece.filters[0] // filters
            assert piece.channels[0] == first_group * channels + piece.within[0]
    assert torch.equal(held, torch.ones(all_filters, channels))


def test_groups_and_lines_of_a_picture():
    groups = groups_of(8, 4)
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert across(groups) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert axes_of(groups, {-2: 2, -1: 2}) == {
        -2: [[0, 2], [1, 3], [4, 6], [5, 7]],
        -1: [[0, 1], [2, 3], [4, 5], [6, 7]],
    }
    assert axes_of(groups, {-2: 4}) == {-2: groups}


@pytest.mark.parametrize(
    ("first", "second", "shared"), [((0, 3), (2, 5), (2, 3)), ((0, 2), (4, 5), (4, 4))]
)
def test_overlap(first, second, shared):
    assert overlap(first, second) == shared
