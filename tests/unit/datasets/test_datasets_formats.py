"""What is written is what was drawn, byte for byte the same whoever wrote it, and readable."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddlbench.common.errors import ConfigError
from ddlbench.datasets import cifar
from ddlbench.datasets import raw as raw_format
from ddlbench.datasets.decoding import decode
from ddlbench.datasets.files import MANIFEST_NAME, DataError, Manifest
from ddlbench.datasets.formats import FORMATS, write_dataset
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest, DatasetSpec
from ddlbench.networks.torchvision_compat import datasets as torchvision_datasets

REQUESTS = [
    DataRequest("mnist", "idx", 0.003),
    DataRequest("mnist", "raw", 0.003),
    DataRequest("mnist", "imagefolder", 0.003),
    DataRequest("cifar10", "cifar", 0.003),
    DataRequest("cifar10", "raw", 0.003),
    DataRequest("cifar10", "imagefolder", 0.003),
]


def _name(request):
    return f"{request.dataset}-{request.format}"


def _bytes_of(folder):
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_NAME]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def _expected(request, split):
    content = Content(request.spec, request.seed)
    recipe = content.recipe(split, 0, request.num_images(split))
    return content.draw(recipe), recipe.labels


@pytest.mark.parametrize("request_", REQUESTS, ids=_name)
def test_files_do_not_depend_on_the_number_of_writers(request_, tmp_path, monkeypatch):
    monkeypatch.setattr(raw_format, "_SHARD_BYTES", 50_000)  # several shards
    manifests = [
        write_dataset(request_, tmp_path / str(workers), workers=workers) for workers in (1, 3)
    ]
    assert manifests[0].digest == manifests[1].digest
    by_one, by_three = _bytes_of(tmp_path / "1"), _bytes_of(tmp_path / "3")
    assert by_one == by_three
    assert manifests[0].total_bytes == sum(map(len, by_one.values()))
    assert Manifest.read(tmp_path / "1") == manifests[0]
    assert manifests[0].damage(tmp_path / "1", workers=2) is None


@pytest.mark.parametrize("request_", REQUESTS, ids=_name)
@pytest.mark.parametrize("split", ["train", "val"])
def test_what_is_read_is_what_was_drawn(request_, split, tmp_path, monkeypatch):
    monkeypatch.setattr(raw_format, "_SHARD_BYTES", 50_000)
    write_dataset(request_, tmp_path)
    images, labels = _expected(request_, split)
    dataset = open_split(tmp_path, request_, split)
    ids = np.random.default_rng(0).permutation(len(dataset))
    actual, found_labels = dataset.gather(ids)
    image, label = dataset[int(ids[5])]
    assert len(dataset) == len(labels)
    assert label == found_labels[5]
    assert np.array_equal(image, actual[5])
    if request_.format == "imagefolder":  # in torchvision's order: class by class
        order = np.argsort(labels, kind="stable")
        np.testing.assert_array_equal(found_labels.numpy(), labels[order][ids])
        difference = actual.numpy().astype(int) - images[order][ids]
        assert np.abs(difference).mean() < 25
        assert np.abs(difference.mean((2, 3))).max() < 8  # colours of the right image
    else:
        np.testing.assert_array_equal(found_labels.numpy(), labels[ids])
        np.testing.assert_array_equal(actual.numpy(), images[ids])


def test_torchvision_reads_mnist(tmp_path):
    write_dataset(REQUESTS[0], tmp_path)
    for split in ("train", "val"):
        images, labels = _expected(REQUESTS[0], split)
        actual = torchvision_datasets.MNIST(tmp_path, train=split == "train")
        np.testing.assert_array_equal(actual.data.numpy(), images[:, 0])
        np.testing.assert_array_equal(actual.targets.numpy(), labels)


class StagedCIFAR10(torchvision_datasets.CIFAR10):
    """torchvision takes the MD5 sums of the original download only; the manifest's hold here."""

    train_list = [[name, None] for name in cifar.BATCHES["train"]]  # noqa: RUF012
    test_list = [[name, None] for name in cifar.BATCHES["val"]]  # noqa: RUF012
    meta = {"filename": cifar.META, "key": "label_names", "md5": None}  # noqa: RUF012

    def _check_integrity(self):
        return Manifest.read(Path(self.root)).damage(Path(self.root), workers=1) is None


def test_torchvision_reads_cifar10_and_notices_changed_files(tmp_path):
    request = DataRequest("cifar10", "cifar", 0.003)
    write_dataset(request, tmp_path)
    for split in ("train", "val"):
        images, labels = _expected(request, split)
        actual = StagedCIFAR10(tmp_path, train=split == "train")
        np.testing.assert_array_equal(actual.data, images.transpose(0, 2, 3, 1))
        assert actual.targets == labels.tolist()
        assert len(actual.classes) == 10
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="corrupted"):
        StagedCIFAR10(tmp_path)


def test_torchvision_reads_image_folders_in_the_same_order(tmp_path):
    request = DataRequest("cifar10", "imagefolder", 0.003)
    write_dataset(request, tmp_path)
    ours = open_split(tmp_path, request, "train")
    theirs = torchvision_datasets.ImageFolder(tmp_path / "train")
    assert theirs.classes == [f"{label:04d}" for label in range(10)]
    assert len(theirs) == len(ours)
    for index in range(0, len(ours), 17):
        image, label = theirs[index]
        actual, found_label = ours[index]
        assert label == found_label
        np.testing.assert_array_equal(np.asarray(image).transpose(2, 0, 1), actual)


def test_all_classes_have_a_folder_even_without_images(tmp_path):
    request = DataRequest("mnist", "imagefolder", 0.0001)
    write_dataset(request, tmp_path, workers=1)
    assert len(list((tmp_path / "train").iterdir())) == 10
    assert len(list((tmp_path / "val").iterdir())) == 10
    assert len(list((tmp_path / "val").rglob("*.jpg"))) == 1
    dataset = open_split(tmp_path, request, "val")
    assert dataset[0][1] == Content(request.spec, 0).labels("val", 0, 1)[0]


def test_a_fault_of_one_writer_of_image_folders_ends_the_others(tmp_path):
    """As does an interrupt: the rest of a large dataset would take hours, for nothing."""
    (tmp_path / "train" / "0000").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        write_dataset(DataRequest("cifar10", "imagefolder", 0.5), tmp_path, workers=2)
    assert not (tmp_path / "train" / "0009").exists()


def test_a_smaller_scale_is_the_beginning_of_a_larger_one(tmp_path):
    small, large = DataRequest("mnist", "raw", 0.001), DataRequest("mnist", "raw", 0.002)
    for request in (small, large):
        write_dataset(request, tmp_path / str(request.scale))
    few = open_split(tmp_path / "0.001", small, "val")
    many = open_split(tmp_path / "0.002", large, "val")
    ids = np.arange(len(few))
    assert np.array_equal(few.gather(ids)[0], many.gather(ids)[0])
    with pytest.raises(DataError, match="made for scale"):
        open_split(tmp_path / "0.001", large, "val")


class _Evil:
    def __reduce__(self):
        return print, ("never run",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"data": _Evil(), "labels": [1]}, r"asks for builtins.print"),
        ({"data": np.array([_Evil()]), "labels": [1]}, r"array of 'O8'"),
        ({"data": np.zeros((1, 7), np.uint8), "labels": [1]}, r"uint8 of shape \(1, 7\); write"),
        ({"data": np.zeros((1, 3072)), "labels": [1]}, "array of float64"),
        ({"data": [[0] * 3072], "labels": [1]}, "'data' is list; write a numpy array of uint8"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "label 10.* 10 classes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "1 images .* 2 numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["a"]}, "no list of whole numbers"),
        ({"x": 1, "labels": [1]}, "no key 'data'; it has 'x', 'labels'"),
        ({}, "no key 'data' and no key 'labels'; it has nothing"),
        ([1, 2], "no dictionary"),
    ],
)
def test_a_cifar_batch_may_hold_data_only(value, reason, tmp_path, capsys):
    request = DataRequest("cifar10", "cifar", 0.001)
    write_dataset(request, tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(DataError, match=reason) as caught:
        open_split(tmp_path, request, "val")
    assert str(path) in str(caught.value)
    assert "never run" not in capsys.readouterr().out


def test_a_batch_in_the_style_of_the_original_is_read(tmp_path):
    """Protocol 2, as Python 2 wrote them."""
    data = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": data, "labels": [3, 4]}, protocol=2))
    np.testing.assert_array_equal(cifar.load_pickle(path)["data"], data)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("keys", [("data", "labels"), (b"data", b"labels")], ids=["str", "bytes"])
@pytest.mark.parametrize("labels", [[3, 4], np.array([3, 4]), list(np.array([3, 4], np.int32))])
def test_keys_and_labels_of_either_type_are_read(protocol, keys, labels, tmp_path):
    data = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    request = DataRequest("cifar10", "cifar", 0.001)
    write_dataset(request, tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps(dict(zip(keys, (data, labels), strict=True)), protocol))
    split = cifar.read(tmp_path, request.spec, "val")
    assert split.labels.tolist() == [3, 4]
    assert np.array_equal(split.shards[0], data.reshape(2, 3, 32, 32))


@pytest.mark.parametrize("request_", REQUESTS, ids=_name)
def test_damage_is_a_sentence(request_, tmp_path):
    write_dataset(request_, tmp_path, workers=1)
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        if path.name != MANIFEST_NAME:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError) as caught:
        open_split(tmp_path, request_, "train").gather(np.arange(3))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_of_another_size_are_scaled_and_cropped(tmp_path):
    wide = np.zeros((100, 300, 3), np.uint8)
    wide[:, 100:200] = (255, 0, 0)
    Image.fromarray(wide).save(tmp_path / "a.png")
    spec = replace(DATASETS["cifar10"], height=50, width=50)
    image = decode("a.png", tmp_path / "a.png", spec)
    assert image.shape == (3, 50, 50)
    assert image[0].min() > 200
    assert image[1].max() < 50


def test_raw_shards_are_few_and_all_but_the_last_are_full():
    spec = DATASETS["imagenet"]
    step = raw_format.images_per_shard(spec, spec.num_train)
    assert -(-spec.num_train // step) <= 512
    assert raw_format.images_per_shard(spec, 10) * spec.image_bytes >= 60 << 20
    huge = DatasetSpec("x", "x", 2, 3, 10_000, 10_000, 10, 10, "raw")
    assert raw_format.images_per_shard(huge, 10) == 1


def test_every_format_is_in_the_table():
    read_only = {"huggingface", "webdataset"}
    assert set(FORMATS) == {"idx", "cifar", "imagefolder", "raw", "tokens", *read_only}


@pytest.mark.parametrize("name", ["huggingface", "webdataset"])
def test_formats_that_are_read_only_are_not_written(name, tmp_path):
    with pytest.raises(ConfigError, match="not written"):
        FORMATS[name].write(None, tmp_path, {}, 1, ())
