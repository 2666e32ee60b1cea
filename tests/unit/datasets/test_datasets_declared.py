"""Datasets that a configuration declares: their facts are counted, and every process knows them."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases.own_folders import class_folders

from ddlbench.common.errors import ConfigError
from ddlbench.datasets.files import of_split
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DataRequest
from ddlbench.experiment.site import parse_site


@pytest.fixture(autouse=True)
def nothing_declared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(OWN_DATA, raising=False)
    yield
    DATASETS.forget_declared()


def declare(data):
    axes = {"dataset": ["mnist"], "network": ["vgg11"], "strategy": ["ddp"], "geometry": ["1x1"]}
    parse_experiment({"experiment": "e", "matrix": axes, "data": data}, "here.yaml")


def spec_of(**entry):
    declare({"own": entry})
    return DATASETS["own"]


def read_all(spec):
    request = DataRequest(spec.name, source=spec.source)
    splits = {split: open_split(Path(spec.source), request, split) for split in ("train", "val")}
    assert {name: len(split) for name, split in splits.items()} == {
        "train": spec.num_train, "val": spec.num_val,
    }  # fmt: skip
    assert inspect_user_data(request).samples["train"] == spec.num_train
    return splits


def idx_files(folder, count=20, side=9):
    folder.mkdir(parents=True)
    images = np.zeros((count, side, side), np.uint8)
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">HBB3I", 0, 8, 3, count, side, side) + images.tobytes()
        )
        labels = (np.arange(count) % 5).astype(np.uint8)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes()
        )


def cifar100(folder, count=30):
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        batch = {b"data": np.zeros((count, 3072), np.uint8),
                 b"fine_labels": [n % 7 for n in range(count)],
                 b"coarse_labels": [0] * count}  # fmt: skip
        (folder / name).write_bytes(pickle.dumps(batch))


def test_class_folders_are_counted(tmp_path):
    spec = spec_of(folder=str(class_folders(tmp_path / "p")), size=[8, 6], title="Insects")
    assert (spec.label, spec.num_classes, spec.shape) == ("Insects", 3, (3, 8, 6))
    assert (spec.num_train, spec.num_val, spec.native_format) == (12, 12, "imagefolder")
    assert read_all(spec)["val"][5][0].shape == (3, 8, 6)


def test_without_splits_a_tenth_of_the_images_is_held_out(tmp_path):
    spec = spec_of(folder=str(class_folders(tmp_path, splits=("",), each=20)), size=8)
    splits = read_all(spec)
    assert (spec.num_train, spec.num_val) == (54, 6)
    assert set(splits["val"].labels(np.arange(6)).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("count", [10, 60, 1000])
@pytest.mark.parametrize("period", [2, 3, 5, 10])
def test_labels_in_turns_have_a_share_of_what_is_held_out(count, period):
    train, val = of_split(count, "train"), of_split(count, "val")
    assert sorted([*train, *val]) == list(range(count))
    assert len(val) == count // 10
    if count == 1000:
        shares = np.bincount(val % period, minlength=period)
        assert shares.min() >= 0.5 * len(val) / period


def test_without_validation_images_of_training_are_held_out(tmp_path):
    spec = spec_of(folder=str(class_folders(tmp_path, splits=("train",), each=20)), size=8)
    assert (spec.num_train, spec.num_val) == (54, 6)
    read_all(spec)


@pytest.mark.parametrize("folder", ["MNIST/raw", "raw", ".", "FashionMNIST/raw"])
def test_files_as_mnists_tell_shape_and_classes(folder, tmp_path):
    idx_files(tmp_path / "data" / folder)
    spec = spec_of(folder=str(tmp_path / "data"))
    assert (spec.shape, spec.num_classes, spec.num_train) == ((1, 9, 9), 5, 20)
    read_all(spec)


def test_files_as_emnists_are_read(tmp_path):
    idx_files(tmp_path / "data/raw")
    for file in list((tmp_path / "data/raw").iterdir()):
        file.rename(file.with_name(f"emnist-letters-{file.name.replace('t10k', 'test')}"))
    spec = spec_of(folder=str(tmp_path / "data"))
    assert (spec.shape, spec.num_classes, spec.num_train) == ((1, 9, 9), 5, 20)
    read_all(spec)


def test_files_as_cifar_100s_are_read(tmp_path):
    cifar100(tmp_path / "data/cifar-100-python")
    spec = spec_of(folder=str(tmp_path / "data"))
    assert (spec.shape, spec.num_classes, spec.num_train) == ((3, 32, 32), 7, 30)
    assert read_all(spec)["train"].labels(np.arange(8)).tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


@pytest.mark.parametrize(
    ("name", "dtype", "vocabulary"),
    [("corpus.bin", "<u2", 50_304), ("corpus.bin", "<u4", 100_000), ("c.uint32.bin", "<u4", 99)],
)
def test_one_file_of_tokens_is_split(name, dtype, vocabulary, tmp_path):
    numbers = np.random.default_rng(0).integers(0, vocabulary, 1001)
    numbers.astype(dtype).tofile(tmp_path / name)
    spec = spec_of(tokens=str(tmp_path / name), vocabulary=vocabulary, sequence=10)
    assert (spec.num_train, spec.num_val, spec.num_classes) == (90, 10, vocabulary)
    splits = read_all(spec)
    for split, first in (("train", 0), ("val", 90)):
        inputs, labels = splits[split].gather(np.array([3]))
        begin = (first + 3) * 10
        assert inputs[0].tolist() == numbers[begin : begin + 10].tolist()
        assert labels[0].tolist() == numbers[begin + 1 : begin + 11].tolist()


def test_variables_and_the_home_folder_are_filled_in(tmp_path, monkeypatch):
    class_folders(tmp_path / "p")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DATA", str(tmp_path))
    for written in ("~/p", "$DATA/p", "${DATA}/p", "p"):
        assert spec_of(folder=written, size=8).num_train == 12
    with pytest.raises(ConfigError, match=r"data.own: '\$NOWHERE/p' .* \$NOWHERE is not set"):
        spec_of(folder="$NOWHERE/p", size=8)


def test_facts_are_kept_until_the_data_changes_and_after_it_is_gone(tmp_path):
    class_folders(tmp_path / "p")
    entry = {"folder": str(tmp_path / "p"), "size": 8}
    assert spec_of(**entry).num_train == 12
    class_folders(tmp_path / "p", ("dog",))
    assert (spec_of(**entry).num_train, DATASETS["own"].num_classes) == (16, 4)
    shutil.rmtree(tmp_path / "p")
    assert spec_of(**entry).num_train == 16


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "photos.zip").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"folder: .*photos.zip is a file; write the folder"):
        spec_of(folder=str(tmp_path / "photos.zip"), size=8)


def test_data_that_only_nodes_see_is_written_out():
    entry = {"folder": "/nodes/p", "size": 8}
    with pytest.raises(ConfigError, match=r"/nodes/p is not on this machine.* samples and classes"):
        spec_of(**entry)
    spec = spec_of(**entry, classes=4, samples=[100, 20], format="imagefolder")
    assert (spec.num_train, spec.num_val, spec.num_classes) == (100, 20, 4)


def test_a_process_that_is_started_knows_the_dataset(tmp_path):
    spec = spec_of(folder=str(class_folders(tmp_path)), size=8)
    code = "from ddlbench.experiment.dataset_spec import DATASETS; print(DATASETS['own'])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == str(spec)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "write either folder"),
        ({"folder": "p", "tokens": "q"}, "write either folder"),
        ({"folder": "p"}, "size is missing; write the height and width"),
        ({"folder": "p", "size": 0}, "own.size"),
        ({"folder": "p", "sice": 9}, "sice"),
        (
            {"folder": "p", "size": 8, "samples": [100, 10]},
            r"p has 12 training and 12 validation samples, not 100 and 10; write .*: \[12, 12\]",
        ),
        ({"folder": "hf://datasets/mnist", "size": 8}, "is an address, and nothing is downloaded"),
        ({"folder": "p", "size": 8, "classes": 2}, "has 3 class folders, but own has 2 classes"),
        (
            {"folder": "p", "size": 8, "vocabulary": 9},
            "vocabulary belongs to tokens; leave it out, or write tokens: p in place of folder",
        ),
        ({"tokens": "p", "vocabulary": 9}, "sequence is missing"),
        ({"tokens": "p", "vocabulary": 9, "sequence": 4, "size": 8}, "size belongs to images"),
    ],
)
def test_a_wrong_entry_is_a_sentence(entry, message, tmp_path):
    class_folders(tmp_path / "p")
    with pytest.raises(ConfigError, match=message) as raised:
        spec_of(**entry)
    assert "data" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("entry", [{"dataset": "mydata:MyDS"}, "mydata:MyDS", {"class": "a.b:C"}])
def test_classes_of_datasets_are_refused_with_what_to_do_instead(entry):
    with pytest.raises(ConfigError, match=r"here.yaml: data.own.*classes cannot be used; save"):
        declare({"own": entry})
    with pytest.raises(ConfigError, match=r"e.site.yaml: data.own.*classes cannot be used; save"):
        parse_site({"data": {"own": entry}}, Path("e.site.yaml"))
    with pytest.raises(ConfigError, match=r"unknown dataset 'my:Set'; .*classes cannot be used"):
        DATASETS.check("my:Set")


@pytest.mark.parametrize("name", ["mnist", "a/b", "", "x" * 60])
def test_a_wrong_name_is_a_sentence(name):
    with pytest.raises(ConfigError, match=r"here.yaml: data"):
        declare({name: {"folder": "p", "size": 8}})


def test_the_facts_are_json(tmp_path):
    spec_of(folder=str(class_folders(tmp_path)), size=8)
    kept = json.loads((tmp_path / "results/.own-data.json").read_text())
    assert len(kept) == 1
