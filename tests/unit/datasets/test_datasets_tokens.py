"""Tokens: a chain of known entropy, its files and batches, and the user's own files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ddlbench.common.errors import ConfigError
from ddlbench.datasets import DataError, stage, tokens
from ddlbench.datasets.formats import write_dataset
from ddlbench.datasets.loading import make_feed, open_split
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest, DatasetSpec, estimate_bytes
from ddlbench.networks import build
from ddlbench.strategies.training import MeanCrossEntropy

ENTROPY_RATE = 1.75 * math.log(2)  # nats a token, of the chain
SMALL = DatasetSpec("small-tokens", "Small", 32, 0, 0, 0, 2048, 64, "tokens", sequence_length=12)
LARGE = DatasetSpec("large-tokens", "Large", 100_000, 0, 0, 0, 40, 8, "tokens", sequence_length=8)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (SMALL, LARGE):
        monkeypatch.setitem(DATASETS.built_in, spec.name, spec)


def test_what_a_sample_is() -> None:
    spec = DATASETS["tokens-gpt2"]
    assert (spec.kind, spec.shape, spec.target_shape) == ("tokens", (1024,), (1024,))
    assert (spec.input_dtype, spec.input_bytes) == ("int64", 8 * 1024)
    assert (spec.token_bytes, spec.image_bytes, LARGE.token_bytes) == (2, 2048, 4)
    images = DATASETS["cifar10"]
    assert (images.kind, images.target_shape, images.input_dtype) == ("images", (), "float32")
    assert images.input_bytes == 4 * images.image_bytes


def test_the_chain_has_the_entropy_that_it_says() -> None:
    """Counted on 64 runs: the share of each follower, and the frequency of each token."""
    content = tokens.TokenContent(SMALL, seed=3)
    runs = content.runs("train", 0, 64)
    place = np.empty(32, np.int64)
    place[content.follower] = np.arange(32)
    steps = (place[runs[:, 1:]] - runs[:, :-1]) % 32
    shares = np.bincount(steps.ravel(), minlength=32) / steps.size
    np.testing.assert_allclose(shares[:4], [0.5, 0.25, 0.125, 0.125], atol=0.005)
    assert not shares[4:].any()
    entropy = -sum(share * math.log(share) for share in shares[:4])
    assert entropy == pytest.approx(ENTROPY_RATE, rel=0.005)
    frequencies = np.bincount(runs.ravel(), minlength=32) / runs.size
    np.testing.assert_allclose(frequencies, 1 / 32, rtol=0.1)
    assert 0.5 * math.log(32) > ENTROPY_RATE


def test_a_run_depends_on_its_place_split_and_seed_only() -> None:
    content = tokens.TokenContent(SMALL, seed=3)
    runs = content.runs("train", 0, 5)
    np.testing.assert_array_equal(content.runs("train", 3, 2), runs[3:])
    assert not np.array_equal(content.runs("val", 0, 1), runs[:1])
    assert not np.array_equal(tokens.TokenContent(SMALL, seed=4).runs("train", 0, 1), runs[:1])


def test_files_are_the_same_for_any_number_of_writers_and_a_smaller_scale_is_their_beginning(
    tmp_path: Path,
) -> None:
    whole = write_dataset(DataRequest(SMALL.name), tmp_path / "one", workers=1)
    again = write_dataset(DataRequest(SMALL.name), tmp_path / "two", workers=2)
    assert whole.digest == again.digest
    assert set(whole.files) == {"train.bin", "val.bin"}
    assert whole.total_bytes == 2 * (12 * (2048 + 64) + 2)
    assert whole.total_bytes <= estimate_bytes(DataRequest(SMALL.name))
    write_dataset(DataRequest(SMALL.name, scale=0.01), tmp_path / "few", workers=1)
    few = (tmp_path / "few" / "train.bin").read_bytes()
    assert len(few) == 2 * (12 * 20 + 1)
    assert (tmp_path / "one" / "train.bin").read_bytes().startswith(few)


@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["uint16", "uint32"])
def test_staged_sequences_are_fed_with_the_token_behind_each(
    spec: DatasetSpec, tmp_path: Path
) -> None:
    request = DataRequest(spec.name, scale=16 / spec.num_train)
    staged = stage(request, tmp_path)
    assert stage(request, tmp_path).reused
    runs = tokens.TokenContent(spec, seed=0).runs("train", 0, 1).ravel()
    (length,) = spec.shape
    seen = []
    for shard in (0, 1):
        feed = make_feed(staged.path, request, global_batch=8, shard=shard, num_shards=2)
        for batch in feed.batches(epoch=0):
            assert batch.inputs.dtype == batch.labels.dtype == torch.int64
            assert batch.inputs.shape == batch.labels.shape == (4, length)
            samples = zip(batch.sample_ids.tolist(), batch.inputs, batch.labels, strict=True)
            for number, inputs, labels in samples:
                begin = number * length
                assert inputs.tolist() == runs[begin : begin + length].tolist()
                assert labels.tolist() == runs[begin + 1 : begin + length + 1].tolist()
                seen.append(number)
    assert sorted(seen) == list(range(16))
    (labels_only,) = make_feed(staged.path, request, global_batch=16, labels_only=True).batches(
        epoch=0
    )
    assert labels_only.inputs.shape == (0, length)
    assert labels_only.labels.shape == (16, length)


@pytest.mark.slow
def test_a_network_learns_more_than_frequencies(tmp_path: Path) -> None:
    """Within 60 steps of batch 16, the loss on validation data is under that of frequencies."""
    request = DataRequest(SMALL.name)
    staged = stage(request, tmp_path)
    loss_of = MeanCrossEntropy()
    network = build("gpt-tiny", SMALL, seed=1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for batch in make_feed(staged.path, request, global_batch=16).batches(0, count=60):
        optimizer.zero_grad()
        loss_of(network(batch.inputs), batch.labels).backward()
        optimizer.step()
    inputs, labels = open_split(staged.path, request, "val").gather(np.arange(64))
    with torch.no_grad():
        loss = float(loss_of(network(inputs), labels))
    assert ENTROPY_RATE < loss < 0.8 * math.log(32)


def _token_folder(
    folder: Path, dtype: str = "<u2", train: int = 200, val: int = 30, top: int = 32
) -> Path:
    folder.mkdir(exist_ok=True)
    name = "bin" if dtype == "<u2" else "uint32.bin"
    for split, count in (("train", train), ("val", val)):
        (np.arange(count) % top).astype(dtype).tofile(folder / f"{split}.{name}")
    return folder


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_own_tokens_are_read(dtype: str, tmp_path: Path) -> None:
    folder = _token_folder(tmp_path / "own", dtype)
    request = DataRequest(SMALL.name, source=str(folder))
    staged = stage(request, tmp_path / "scratch")
    assert staged.path == folder
    data = open_split(staged.path, request, "train")
    assert len(data) == inspect_user_data(request).samples["train"] == 199 // 12
    inputs, labels = data.gather(np.array([1]))
    assert inputs[0].tolist() == list(range(12, 24))
    assert labels[0].tolist() == list(range(13, 25))
    half = DataRequest(SMALL.name, source=str(folder), scale=0.5)
    assert len(open_split(folder, half, "train")) == 8


def test_own_tokens_that_cannot_work_are_said_in_a_sentence(tmp_path: Path) -> None:
    def refused(folder: Path, message: str) -> None:
        request = DataRequest(SMALL.name, source=str(folder))
        for look in (
            inspect_user_data,
            lambda data_request: stage(data_request, tmp_path / "scratch"),
        ):
            with pytest.raises(DataError, match=message) as raised:
                look(request)
            assert "\n" not in str(raised.value)

    refused(tmp_path / "none", "none is not a folder")
    refused(
        _token_folder(tmp_path / "few", val=12), r"val.bin has 12 tokens, but one sequence of Small"
    )
    large = r"train.bin has token 32 at place 32, but the vocabulary of Small has 32 tokens; .* 31"
    refused(_token_folder(tmp_path / "large", top=40), large)
    odd = _token_folder(tmp_path / "odd")
    (odd / "train.bin").write_bytes(b"\0" * 401)
    refused(odd, "has 401 bytes, which are no whole tokens of 2 bytes")
    (odd / "train.bin").unlink()
    refused(odd, r"train.bin is missing: .*odd holds val.bin; write token numbers into train.bin")


def test_other_formats_are_refused_both_ways() -> None:
    with pytest.raises(ConfigError, match="tokens are not written as raw"):
        DataRequest("tokens", "raw")
    with pytest.raises(ConfigError, match="images are not written as tokens"):
        DataRequest("cifar10", "tokens")


@pytest.mark.parametrize(
    ("dtype", "vocabulary", "message"),
    [
        ("<u4", 32, "numbers of 4 bytes, not of 2"),
        ("<i8", 32, "numbers of 8 bytes, not of 2"),
        (">u4", 32, "numbers of 4 bytes in big-endian order"),
        ("<u4", 50_000, "numbers of 4 bytes, not of 2"),
    ],
)
def test_tokens_of_another_width_are_refused(dtype, vocabulary, message, tmp_path):
    numbers = np.random.default_rng(0).integers(0, vocabulary, 4000)
    for split in ("train", "val"):
        numbers.astype(dtype).tofile(tmp_path / f"{split}.bin")
    request = DataRequest("tokens-gpt2", source=str(tmp_path))
    with pytest.raises(DataError, match=message):
        open_split(tmp_path, request, "train")


@pytest.mark.parametrize(
    ("dtype", "vocabulary", "message"),
    [
        ("<u1", 64, "seems to hold numbers of 1 byte, not of 2; write them as uint16"),
        ("<u1", 256, "seems to hold numbers of 1 byte, not of 2"),
        (">u2", 64, "holds numbers in big-endian order"),
        (">u2", 1000, "seems to hold numbers in big-endian order"),
        (">u2", 50_257, "seems to hold numbers in big-endian order"),
        ("<u2", 100_000, "seems to hold numbers of 2 bytes, not of 4; write them as uint32"),
        (">u4", 100_000, "holds numbers in big-endian order"),
    ],
)
def test_numbers_of_another_kind_are_named_where_it_is_likely(dtype, vocabulary, message, tmp_path):
    top = min(vocabulary, 65_536 if dtype == "<u2" else vocabulary)
    path = tmp_path / "corpus.bin"
    np.random.default_rng(0).integers(0, top, 4000).astype(dtype).tofile(path)
    with pytest.raises(DataError, match=message):
        tokens.check(path, own_tokens(vocabulary), "train")


@pytest.mark.parametrize("vocabulary", [64, 100, 128, 256, 300, 50_257])
@pytest.mark.parametrize("wrong", [1, 200, 3600])
def test_tokens_outside_the_vocabulary_are_named_with_the_causes(vocabulary, wrong, tmp_path):
    generator = np.random.default_rng(0)
    numbers = generator.integers(0, vocabulary, 4000)
    top = min(65_536, vocabulary * 3)
    numbers[7 : 7 + wrong] = generator.integers(vocabulary, top, wrong)
    numbers.astype("<u2").tofile(tmp_path / "corpus.bin")
    with pytest.raises(DataError, match=rf"has token {numbers[7]} at place 7, .*correct the") as at:
        tokens.check(tmp_path / "corpus.bin", own_tokens(vocabulary), "train")
    assert "little-endian uint16, if they are not" in str(at.value)


def own_tokens(vocabulary: int) -> DatasetSpec:
    spec = DatasetSpec("own", "Own", vocabulary, 0, 0, 0, 1, 1, "tokens", sequence_length=16)
    return replace(spec, source="corpus.bin")


@pytest.mark.parametrize("vocabulary", [2, 10, 256, 50_257])
def test_tokens_of_the_right_width_are_read(vocabulary, tmp_path):
    numbers = np.random.default_rng(0).integers(0, vocabulary, 4000)
    numbers[::7] = 0  # padding
    for split in ("train", "val"):
        numbers.astype("<u2").tofile(tmp_path / f"{split}.bin")
    request = DataRequest("tokens-gpt2", source=str(tmp_path))
    assert len(open_split(tmp_path, request, "train")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x93NUMPY\x01\x00" + bytes(4000), "is a file of numpy"),
        (b"PK\x03\x04" + bytes(4000), "is a zip archive"),
        (b"\x80\x04\x95" + bytes(4001), "is a pickle"),
        ((20240520).to_bytes(4, "little") + bytes(4000), "has llm.c's header"),
        (b"It was the best of times. " * 400, "holds text, not token numbers"),
    ],
)
def test_files_that_are_no_tokens_are_named(content, message, tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"{split}.bin").write_bytes(content[: len(content) // 2 * 2])
    with pytest.raises(DataError, match=message):
        inspect_user_data(DataRequest("tokens", source=str(tmp_path)))


def test_a_second_file_of_a_split_and_megatrons_index_are_refused(tmp_path):
    folder = _token_folder(tmp_path / "both")
    (folder / "train.uint32.bin").write_bytes(bytes(4000))
    with pytest.raises(DataError, match="holds train.bin and train.uint32.bin"):
        inspect_user_data(DataRequest(SMALL.name, source=str(folder)))
    folder = _token_folder(tmp_path / "megatron")
    (folder / "train.idx").write_bytes(b"MMIDIDX")
    with pytest.raises(DataError, match="it is Megatron's"):
        inspect_user_data(DataRequest(SMALL.name, source=str(folder)))
