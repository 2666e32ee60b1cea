"""Class folders as people keep them: labels and order are torchvision's, the rest is counted."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from cases.own_folders import class_folders, picture
from PIL import Image

from ddlbench.datasets.class_folders import EXTENSIONS, IMAGE_FORMATS, read
from ddlbench.datasets.files import DataError, FileSplit, crc_of_pieces
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.networks.torchvision_compat import datasets as torchvision_datasets

SPEC = DATASETS["imagenet"]


def request(root: Path, **settings: object) -> DataRequest:
    return DataRequest("imagenet", source=str(root), **settings)


def labels(split: FileSplit) -> dict[str, set[int]]:
    """The labels of the images of each class folder."""
    by_folder: dict[str, set[int]] = {}
    for sample_id in range(len(split)):
        place = split.path(sample_id).relative_to(split.folder)
        by_folder.setdefault(place.parts[0], set()).add(int(split.labels[sample_id]))
    return by_folder


def test_order_and_labels_are_torchvisions(tmp_path):
    root = class_folders(tmp_path)
    (root / "train/bee/a-b").mkdir()
    (root / "train/bee/a/deep").mkdir(parents=True)
    for place in ("a/x.png", "a-b/x.png", "a/deep/y.png", "UPPER.PNG"):
        picture(1, 0).save(root / "train/bee" / place, "PNG")
    theirs = torchvision_datasets.ImageFolder(root / "train")
    ours = read(root, SPEC, "train")
    assert [str(ours.path(k)) for k in range(len(ours))] == [path for path, _ in theirs.samples]
    assert ours.labels.tolist() == theirs.targets
    assert set(torchvision_datasets.folder.IMG_EXTENSIONS) <= set(EXTENSIONS)


@pytest.mark.parametrize("kind", [k for k, endings in IMAGE_FORMATS.items() if endings])
def test_each_format_that_is_decoded_is_found_by_its_endings(kind, tmp_path):
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number, end in enumerate(IMAGE_FORMATS[kind]):
            picture(label, number).save(tmp_path / "train" / name / f"{number}{end}", kind)
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    assert open_split(tmp_path, request(tmp_path), "train")[0][0].shape == SPEC.shape
    assert inspect_user_data(request(tmp_path)).samples["val"] == 2 * len(IMAGE_FORMATS[kind])


@pytest.mark.parametrize(
    "name", [".ipynb_checkpoints", "@eaDir", "__MACOSX", "lost+found", ".thumbnails"]
)
@pytest.mark.parametrize("holds_an_image", [False, True])
def test_a_folder_of_a_tool_is_no_class(name, holds_an_image, tmp_path):
    root = class_folders(tmp_path)
    (root / "train" / name).mkdir()
    if holds_an_image:
        picture(0, 0).save(root / "train" / name / "x.png")
    for split in ("train", "val"):
        assert labels(read(root, SPEC, split)) == {"ant": {0}, "bee": {1}, "cat": {2}}
    assert inspect_user_data(request(root)).not_classes == (name,)


def test_a_class_that_validation_lacks_keeps_its_number(tmp_path):
    root = class_folders(tmp_path, splits=("train",))
    class_folders(root, ("bee", "cat"), ("val",))
    assert labels(read(root, SPEC, "val")) == {"bee": {1}, "cat": {2}}


@pytest.mark.parametrize("empty", [False, True])
def test_a_class_that_training_lacks_is_refused_unless_it_has_no_image(empty, tmp_path):
    root = class_folders(tmp_path)
    (root / "val/zebra").mkdir()
    if empty:
        assert labels(read(root, SPEC, "val")) == {"ant": {0}, "bee": {1}, "cat": {2}}
        return
    picture(0, 0).save(root / "val/zebra/x.png")
    with pytest.raises(DataError, match=r"val has images of class zebra, which .*train lacks"):
        read(root, SPEC, "val")


@pytest.mark.parametrize(
    ("train", "val", "says"),
    [
        ("bee", "bee ", r"class 'bee ', which .* lacks; of train's classes it lacks 'bee'"),
        (
            "caf\xe9",
            "cafe\u0301",
            r"class 'cafe\\u0301', .* of train's classes it lacks 'caf\\xe9'",
        ),
    ],
)
def test_names_that_look_alike_are_told_apart(train, val, says, tmp_path):
    root = class_folders(tmp_path)
    (root / "train/bee").rename(root / "train" / train)
    (root / "val/bee").rename(root / "val" / val)
    with pytest.raises(DataError, match=says):
        read(root, SPEC, "val")


def test_an_empty_class_keeps_its_number_and_is_named(tmp_path):
    root = class_folders(tmp_path)
    for file in (root / "train/bee").iterdir():
        file.unlink()
    assert labels(read(root, SPEC, "train")) == {"ant": {0}, "cat": {2}}
    assert labels(read(root, SPEC, "val")) == {"ant": {0}, "bee": {1}, "cat": {2}}
    assert "without images: bee" in inspect_user_data(request(root)).described()


def test_a_folder_without_images_is_no_class_and_is_named(tmp_path):
    root = class_folders(tmp_path)
    (root / "train/annotations").mkdir()
    (root / "train/annotations/boxes.xml").write_text("<x/>")
    data = inspect_user_data(request(root))
    assert data.classes == 3
    assert "no class: annotations" in data.described()


def test_what_is_left_out_is_counted(tmp_path):
    root = class_folders(tmp_path)
    for number in range(3):
        (root / f"train/bee/{number}.heic").write_bytes(b"x")
    (root / "train/ant/._000.png").write_bytes(b"x")
    (root / "train/notes.txt").write_text("x")
    (root / "train/loose.png").write_bytes(b"x")
    (root / "train/ant/README").write_text("x")
    os.mkfifo(root / "train/cat/pipe.png")
    (root / "train/cat/gone.jpg").symlink_to(root / "nowhere")
    (root / "train/cat/album.jpg").mkdir()
    data = inspect_user_data(request(root))
    assert data.left_out == Counter(
        {".heic": 3, "no regular file": 2, "hidden": 1, ".txt": 1, "no ending": 1,
         ".png outside class folders": 1}
    )  # fmt: skip
    assert data.described().startswith(
        "12 images in 3 classes (12 for validation), 9 files left out: 3 .heic, "
    )
    assert data.samples == {"train": 12, "val": 12}


def test_a_loop_of_links_is_read_once(tmp_path):
    root = class_folders(tmp_path / "data")
    (root / "train/bee/again").symlink_to("..")
    (root / "train/bee/self").symlink_to(".")
    (root / "train/ant/elsewhere").symlink_to(class_folders(tmp_path / "other", splits=("",)))
    split = read(root, SPEC, "train")
    assert Counter(split.labels.tolist()) == {0: 16, 1: 4, 2: 4}


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "test", "Val", "TEST"])
def test_other_names_of_a_split_are_known(name, tmp_path):
    root = class_folders(tmp_path, splits=("training", name))
    assert labels(read(root, SPEC, "val")) == {"ant": {0}, "bee": {1}, "cat": {2}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: class_folders(r / "ILSVRC/Data/CLS-LOC"), r"give .*ILSVRC/Data/CLS-LOC"),
        (lambda r: class_folders(r, splits=("",)), r"ant, bee and cat; put the class folders"),
        (lambda r: (r / "images.tar.gz").write_bytes(b"x"), r"run tar xf images.tar.gz"),
        (lambda r: picture(0, 0).save(r / "x.png"), r"images outside class folders; move those"),
        (lambda r: (r / "pictures").mkdir(), r"holds pictures; check"),
        (lambda r: class_folders(r, splits=("animals", "plants")),
         r"animals holds class folders within folders; to have animals and plants as classes, with "
         r"all images below them, move them into .*train; to have ant, bee and cat as classes"),
        (lambda r: class_folders(r, splits=("photos",)), r"missing; give .*photos, which holds"),
        (lambda r: (r / "train.csv").write_text("x"),
         r"holds train.csv, and .csv is not read; write Parquet files"),
        (lambda r: (r / "train-00000-of-00010.tfrecord").touch(),
         r"and .tfrecord is not read; write Parquet files"),
        (lambda r: class_folders(r, splits=("train",)), r"val is missing: .* holds train"),
        (lambda r: [(r / s).mkdir() or (r / s / "n01.tar").touch() for s in ("train", "val")],
         r"train holds no images in class folders; .*tar xf n01.tar"),
        (lambda r: [class_folders(r, splits=("val",)), (r / "train").mkdir(),
                    picture(0, 0).save(r / "train/x.png")],
         r"train holds no images in class folders, but 1 outside of them"),
    ],
)  # fmt: skip
def test_what_lies_there_is_said(make, message, tmp_path):
    make(tmp_path)
    with pytest.raises(DataError, match=message) as raised:
        inspect_user_data(request(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", ["larger", "same size", "copied"])
def test_other_images_of_the_same_names_are_other_data(change, tmp_path):
    root = class_folders(tmp_path / "own")
    before = inspect_user_data(request(root)).digest
    for number, file in enumerate(root.rglob("*.png")):
        if change == "larger":
            picture(0, 0, (50, 40)).save(file)
        elif change == "same size" and number == 5:
            bytes_before = file.read_bytes()
            file.write_bytes(bytes_before[:-20] + bytes(4) + bytes_before[-16:])
        os.utime(file, (1, 1))
    assert (inspect_user_data(request(root)).digest == before) == (change == "copied")


@pytest.mark.parametrize("place", [0, 150_000, 4 << 20, -1])
def test_a_large_file_is_read_in_pieces(place, tmp_path):
    file = tmp_path / "large.tar"
    content = bytearray(9 << 20)
    file.write_bytes(content)
    before = crc_of_pieces(file, 1 << 20, pieces=64)
    first = place % len(content)
    changed = min(len(content) // 60, len(content) - first)  # pieces are nearer to each other
    content[first : first + changed] = b"x" * changed
    file.write_bytes(content)
    assert crc_of_pieces(file, 1 << 20, pieces=64) != before
