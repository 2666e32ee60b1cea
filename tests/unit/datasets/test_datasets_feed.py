"""Every consumer sees its part of the same global batches, however they are read."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.datasets import DataError, DataRequest, stage
from ddlbench.datasets.loader import BatchLoader, epoch_order, normalise
from ddlbench.datasets.loading import make_feed, open_split

CIFAR = DataRequest("cifar10", scale=0.004)  # 200 images
FOLDERS = DataRequest("cifar10", "imagefolder", 0.004)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("scratch")
    return {request: stage(request, scratch).path for request in (CIFAR, FOLDERS)}


@pytest.mark.parametrize("request_", [CIFAR, FOLDERS], ids=["cifar", "imagefolder"])
def test_shards_make_up_the_global_batch(staged, request_):
    def batches(shard, num_shards):
        feed = make_feed(
            staged[request_], request_, global_batch=16, shard=shard, num_shards=num_shards
        )
        return list(feed.batches(1, 2, 3))

    whole = batches(0, 1)
    for num_shards in (2, 4):
        shards = [batches(shard, num_shards) for shard in range(num_shards)]
        for expected, *parts in zip(whole, *shards, strict=True):
            for field in range(3):
                assert torch.equal(torch.cat([part[field] for part in parts]), expected[field])


@pytest.mark.parametrize("request_", [CIFAR, FOLDERS], ids=["cifar", "imagefolder"])
def test_labels_alone_are_those_of_whole_batches(staged, request_):
    settings_ = {"global_batch": 16, "shard": 1, "num_shards": 2}
    whole = make_feed(staged[request_], request_, **settings_)
    dataset = open_split(staged[request_], request_, "train")
    dataset.gather = None  # no image is asked for
    labels = BatchLoader(dataset, **settings_, loader_workers=2, labels_only=True)
    labels.start()
    for expected, actual in zip(whole.batches(1), labels.batches(1), strict=True):
        assert torch.equal(actual.labels, expected.labels)
        assert torch.equal(actual.sample_ids, expected.sample_ids)
        assert actual.inputs.shape == (0, 3, 32, 32)


@given(st.integers(1, 500), st.integers(0, 2**31), st.integers(0, 50))
def test_an_order_is_a_permutation(num_samples, seed, epoch):
    order = epoch_order(num_samples, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(num_samples))


def test_an_epoch_visits_every_sample_once_but_the_left_over(staged):
    feed = make_feed(staged[CIFAR], CIFAR, global_batch=48)
    ids = torch.cat([batch.sample_ids for batch in feed.batches(0)])
    assert feed.steps_per_epoch == 4
    assert len(ids) == len(ids.unique()) == 192


def test_epochs_and_seeds_differ_and_repeat(staged):
    def ids(seed, epoch):
        feed = make_feed(staged[CIFAR], CIFAR, global_batch=50, seed=seed)
        return torch.cat([batch.sample_ids for batch in feed.batches(epoch)]).tolist()

    assert ids(0, 0) == ids(0, 0)
    assert len({tuple(ids(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_batches_hold_the_samples_they_name(staged):
    dataset = open_split(staged[CIFAR], CIFAR, "train")
    feed = BatchLoader(dataset, global_batch=8)
    batch = next(feed.batches(0, 5))
    assert batch.inputs.dtype == torch.float32
    assert batch.inputs.shape == (8, 3, 32, 32)
    assert batch.labels.dtype == batch.sample_ids.dtype == torch.int64
    for inputs, label, sample_id in zip(*batch, strict=True):
        image, expected = dataset[int(sample_id)]
        assert label == expected
        torch.testing.assert_close(inputs, (image / 255 - 0.5) / 0.25)


def test_steps_run_across_epochs(staged):
    feed = make_feed(staged[CIFAR], CIFAR, global_batch=48)
    across = [batch.sample_ids.tolist() for batch in feed.steps(2, 5)]
    apart = [
        batch.sample_ids.tolist() for args in ((0, 2), (1, 0, 3)) for batch in feed.batches(*args)
    ]
    assert across == apart


@pytest.mark.parametrize("request_", [CIFAR, FOLDERS], ids=["cifar", "imagefolder"])
def test_loader_workers_change_nothing(staged, request_):
    """Not the batches, across epochs and after an iteration given up, nor torch's own draws."""
    torch.manual_seed(0)
    expected_draw = torch.rand(3)
    torch.manual_seed(0)
    alone = make_feed(staged[request_], request_, global_batch=16, num_shards=2, shard=1)
    helped = make_feed(
        staged[request_], request_, global_batch=16, num_shards=2, shard=1, loader_workers=2
    )
    try:
        next(helped.batches(0))
        stale = helped.steps(0, 9)
        next(stale)
        actual = list(helped.steps(10, 6))
        with pytest.raises(RuntimeError, match="began another one"):
            next(stale)
        for batch, expected in zip(actual, alone.steps(10, 6), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    finally:
        helped.close()
    assert torch.equal(torch.rand(3), expected_draw)


def test_misfits_are_said(staged):
    dataset = open_split(staged[CIFAR], CIFAR, "val")
    with pytest.raises(ValueError, match="into 3 equal parts"):
        BatchLoader(dataset, global_batch=16, num_shards=3)
    with pytest.raises(ValueError, match=r"shard 2 is not in 0\.\.1"):
        BatchLoader(dataset, global_batch=16, num_shards=2, shard=2)
    with pytest.raises(DataError, match="has 40 samples, fewer than"):
        BatchLoader(dataset, global_batch=41)
    with pytest.raises(ValueError, match=r"has steps 0\.\.1"):
        BatchLoader(dataset, global_batch=20).batches(0, 1, 2)
    with pytest.raises(IndexError):
        dataset[40]
    with pytest.raises(DataError, match=r"manifest\.json cannot be read"):
        open_split(staged[CIFAR].parent, CIFAR, "val")


def test_inputs_may_be_of_another_type():
    images = torch.arange(256, dtype=torch.uint8)
    wanted = (images.double() / 255 - 0.5) / 0.25
    torch.testing.assert_close(normalise(images).double(), wanted, atol=1e-6, rtol=0)
    assert normalise(images, torch.bfloat16).dtype == torch.bfloat16


def test_an_emulated_device_reads_the_same_samples_and_normalises_none(staged):
    dataset = open_split(staged[CIFAR], CIFAR, "train")
    real, emulated = (
        next(BatchLoader(dataset, global_batch=8, normalised=normalised).batches(0, 5))
        for normalised in (True, False)
    )
    assert emulated.inputs.shape == real.inputs.shape
    assert emulated.inputs.dtype == real.inputs.dtype
    assert not emulated.inputs.any()
    assert emulated.labels.equal(real.labels)
    assert emulated.sample_ids.equal(real.sample_ids)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_batches_reach_a_gpu(staged, loader_workers):
    feeds = [
        make_feed(
            staged[CIFAR], CIFAR, global_batch=8, device=device, loader_workers=loader_workers
        )
        for device in ("cpu", "cuda")
    ]
    for here, there in zip(*(feed.batches(0) for feed in feeds), strict=True):
        assert there.inputs.device.type == there.labels.device.type == "cuda"
        torch.testing.assert_close(there.inputs.cpu(), here.inputs)
    for feed in feeds:
        feed.close()


def test_the_page_on_networks_says_how_images_are_normalised() -> None:
    page = (Path(__file__).parents[3] / "docs" / "networks.md").read_text("utf-8")
    (divisor, centre, width) = re.findall(r"\(x / (\d+) - ([\d.]+)\) / ([\d.]+)", page)[0]
    x = torch.arange(256, dtype=torch.uint8)
    expected = (x.double() / float(divisor) - float(centre)) / float(width)
    assert torch.allclose(normalise(x).double(), expected, atol=1e-6)
