"""Spans of torchgpipe's partitions: every piece of work once, in an order that can be."""

from itertools import pairwise

import pytest
import torch
from cases.rank_reports import rank_report
from torch import nn
from torchgpipe import GPipe

from ddlbench.runtime.result import partitions_csv
from ddlbench.strategies.torchgpipe.executor import recording

CHUNKS, PARTS = 4, 2
RECOMPUTED = {"never": 0, "except_last": CHUNKS - 1, "always": CHUNKS}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 36, 8),
        nn.Linear(8, 3),
    )


def step(pipe):
    torch.manual_seed(1)
    inputs, labels = torch.rand(8, 1, 8, 8), torch.randint(3, (8,))
    loss = nn.functional.cross_entropy(pipe(inputs), labels)
    loss.backward()
    return loss.detach()


def recorded(checkpoint):
    devices = [torch.device("cpu")] * PARTS
    pipe = GPipe(network(), balance=[3, 3], devices=devices, chunks=CHUNKS, checkpoint=checkpoint)
    with recording(list(pipe.partitions), devices) as recorder:
        loss = step(pipe)
    return pipe, loss, recorder.spans()


@pytest.mark.parametrize("checkpoint", RECOMPUTED)
def test_every_piece_of_work_is_there_once(checkpoint):
    _, _, spans = recorded(checkpoint)
    pieces = [(span.partition, span.kind, span.micro_batch) for span in spans]
    expected = [
        (partition, kind, micro_batch)
        for partition in range(PARTS)
        for kind, count in (
            ("forward", CHUNKS),
            ("recompute", RECOMPUTED[checkpoint]),
            ("backward", CHUNKS),
        )
        for micro_batch in range(count)
    ]
    assert sorted(pieces) == sorted(expected)


@pytest.mark.parametrize("checkpoint", RECOMPUTED)
def test_order_is_that_of_a_pipeline(checkpoint):
    _, _, spans = recorded(checkpoint)
    at = {(span.partition, span.kind, span.micro_batch): span for span in spans}
    for span in spans:
        assert 0 <= span.start_s <= span.end_s
    for micro_batch in range(CHUNKS):
        earlier, later = (at[0, "forward", micro_batch], at[1, "forward", micro_batch])
        assert earlier.end_s <= later.start_s
        assert at[1, "backward", micro_batch].start_s <= at[0, "backward", micro_batch].start_s
        if micro_batch < RECOMPUTED[checkpoint]:
            for partition in range(PARTS):
                again = at[partition, "recompute", micro_batch]
                assert again.end_s <= at[partition, "backward", micro_batch].start_s
    for partition in range(PARTS):
        partition_spans = sorted(
            (span for span in spans if span.partition == partition), key=lambda s: s.start_s
        )
        assert all(first.end_s <= second.start_s for first, second in pairwise(partition_spans))


def test_recording_changes_nothing_and_leaves_no_hooks():
    watched, loss, _ = recorded("except_last")
    plain = GPipe(network(), balance=[3, 3], devices=[torch.device("cpu")] * PARTS, chunks=CHUNKS)
    assert torch.equal(step(plain), loss)
    for first, second in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(first.grad, second.grad)
    for module in watched.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_partitions_csv_has_a_row_a_span_and_is_empty_without():
    assert partitions_csv([rank_report()]) == ""
    text = partitions_csv([rank_report(partition_spans=((1, "forward", 0, 0.25, 0.5),))])
    assert text.splitlines() == [
        "partition,kind,micro_batch,start_s,end_s",
        "1,forward,0,0.25,0.5",
    ]
