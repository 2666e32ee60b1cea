"""Datasets of Hugging Face on disk and Parquet files: written by their libraries, read by ours."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.own_photos import assert_photos_are_read
from PIL import Image

from ddlbench.datasets import huggingface, tables
from ddlbench.datasets.files import DataError, EncodedSplit, TokenSplit, of_split
from ddlbench.experiment.dataset_spec import DatasetSpec

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PHOTOS = DatasetSpec("photos", "Photos", 1000, 3, 8, 8, 1, 1, "huggingface", source="photos")
TEXT = DatasetSpec("text", "Text", 300, 0, 0, 0, 1, 1, "tokens", sequence_length=4, source="text")
PETS = ["cat", "dog", "eel"]


def image(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (number % 256, number // 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def rows(first: int, count: int, **further: list[Any]) -> dict[str, list[Any]]:
    numbers = range(first, first + count)
    return {
        "image": [{"bytes": image(k), "path": None} for k in numbers],
        "label": [k % 3 for k in numbers],
        **further,
    }


def features(**further: Any) -> Any:
    known = {"image": datasets.Image(), "label": datasets.ClassLabel(names=PETS), **further}
    return datasets.Features(known)


def pets(first: int, count: int) -> Any:
    return datasets.Dataset.from_dict(rows(first, count), features=features())


def write_table(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path, **settings)
    return path.parent


def read(root: Path, split: str = "train", spec: DatasetSpec = PHOTOS) -> EncodedSplit:
    data = huggingface.read(root, spec, split)
    assert isinstance(data, EncodedSplit)
    return data


def check_rows(data: EncodedSplit, numbers: list[int], folder: str = "") -> None:
    """Every sample is as written, in any order."""
    assert len(data) == len(numbers)
    order = list(range(len(data)))
    random.Random(3).shuffle(order)
    for sample_id in order:
        place, content = data.encoded(sample_id)
        assert content == image(numbers[sample_id])
        assert data.labels[sample_id] == numbers[sample_id] % 3
        assert folder in place and "row " in place
    assert data.labels.dtype == np.int64


def refused(root: Path, split: str = "train", spec: DatasetSpec = PHOTOS) -> str:
    with pytest.raises(DataError) as caught:
        huggingface.read(root, spec, split)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def test_a_saved_dictionary_is_read_back_in_any_order(tmp_path: Path) -> None:
    """More rows than a batch of Arrow holds, in two files."""
    saved = datasets.DatasetDict(train=pets(0, 2300), validation=pets(5000, 7), test=pets(0, 3))
    saved.save_to_disk(
        str(tmp_path / "photos"), num_shards={"train": 2, "validation": 1, "test": 1}
    )
    root = tmp_path / "photos"
    assert huggingface.recognises(root)
    train, val = read(root), read(root, "val")
    assert train.classes == val.classes == PETS
    check_rows(train, list(range(2300)), "photos/train")
    check_rows(val, list(range(5000, 5007)), "photos/validation")
    files = huggingface.own_files(root, "train") + huggingface.own_files(root, "val")
    assert len(files) == len(set(files)) and all((root / name).is_file() for name in files)
    assert "dataset_dict.json" in files and not any("test" in name for name in files)
    copy = tmp_path / "copy"
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, copy / name)
    check_rows(read(copy, "val"), list(range(5000, 5007)))


def test_of_a_single_dataset_every_tenth_row_is_held_out(tmp_path: Path) -> None:
    pets(0, 25).save_to_disk(str(tmp_path / "photos"))
    root = tmp_path / "photos"
    held_out = of_split(25, "val").tolist()
    check_rows(read(root, "val"), held_out)
    check_rows(read(root), [k for k in range(25) if k not in held_out])
    assert len(huggingface.own_files(root, "train")) == 3
    assert huggingface.own_files(root, "val") == []
    pets(0, 9).save_to_disk(str(tmp_path / "few"))
    assert "10 samples or more" in refused(tmp_path / "few")


def test_a_test_split_validates_only_where_there_is_no_other(tmp_path: Path) -> None:
    datasets.DatasetDict(train=pets(0, 3), test=pets(30, 2)).save_to_disk(str(tmp_path / "a"))
    check_rows(read(tmp_path / "a", "val"), [30, 31])
    pets(0, 12).save_to_disk(str(tmp_path / "b" / "train"))
    pets(40, 2).save_to_disk(str(tmp_path / "b" / "dev"))
    check_rows(read(tmp_path / "b", "val"), [40, 41])
    datasets.DatasetDict(validation=pets(0, 3), test=pets(3, 3)).save_to_disk(str(tmp_path / "c"))
    assert "no training split" in refused(tmp_path / "c")
    datasets.DatasetDict(red=pets(0, 3), blue=pets(3, 3)).save_to_disk(str(tmp_path / "d"))
    assert "several datasets" in refused(tmp_path / "d")


@pytest.mark.parametrize(
    ("of_train", "of_val"),
    [
        ("data/train-{:05}-of-00002.parquet", "data/validation-{:05}-of-00001.parquet"),
        ("train/{}.parquet", "val/{}.parquet"),
        ("photos_train_{}.parquet", "photos_test_{}.parquet"),
        ("plain_text/train-{}.parquet", "plain_text/valid-{}.parquet"),
        ("Train{}.parquet", "Dev{}.parquet"),
        ("{}.parquet", "val-{}.parquet"),
    ],
)
def test_parquet_files_name_their_split(tmp_path: Path, of_train: str, of_val: str) -> None:
    root = tmp_path / "photos"
    for number, (first, count) in enumerate([(0, 40), (40, 25)]):
        path = root / of_train.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pets(first, count).to_parquet(str(path))
    (root / of_val).parent.mkdir(parents=True, exist_ok=True)
    pets(70, 4).to_parquet(str(root / of_val.format(0)))
    assert huggingface.recognises(root)
    train = read(root)
    assert train.classes == PETS
    check_rows(train, list(range(65)), "photos/")
    assert train.encoded(64)[0].endswith(", row 24")
    check_rows(read(root, "val"), [70, 71, 72, 73])
    assert huggingface.own_files(root, "train") == [of_train.format(k) for k in range(2)]
    assert huggingface.own_files(root, "val") == [of_val.format(0)]


def test_row_groups_are_decoded_once_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"image": [image(k) for k in range(60)], "label": [k % 3 for k in range(60)]}
    root = write_table(tmp_path / "photos" / "train.parquet", columns, row_group_size=7)
    decoded = []
    original = tables.ParquetTable._decoded

    def counted(self: Any, name: str, number: int) -> Any:
        decoded.append((name, number))
        return original(self, name, number)

    monkeypatch.setattr(tables.ParquetTable, "_decoded", counted)
    data = read(root)
    check_rows(data, of_split(60, "train").tolist())
    check_rows(data, of_split(60, "train").tolist())
    assert sum(name == "image" for name, _ in decoded) == 9
    monkeypatch.setattr(tables, "KEPT_BYTES", 2000)
    check_rows(read(root), of_split(60, "train").tolist())
    monkeypatch.setattr(tables, "KEPT_BYTES", 300)
    assert "row_group_size" in refused(root)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("image", "binary"),
        ("IMG", "large_binary"),
        ("jpg", "struct"),
        ("scan", "binary"),
        ("picture", "path first"),
        ("image", "of pandas"),
    ],
)
def test_a_column_of_bytes_needs_no_features(tmp_path: Path, name: str, kind: str) -> None:
    contents = [image(k) for k in range(12)]
    if kind == "struct":
        column = pa.array([{"bytes": c, "path": "gone.png"} for c in contents])
    elif kind == "of pandas":
        column = pa.array([{"bytes": c, "path": None} for c in contents])
        assert column.type.field("path").type == pa.null()
    elif kind == "path first":
        column = pa.array([{"path": None, "bytes": c} for c in contents],
                          pa.struct([("path", pa.string()), ("bytes", pa.binary())]))  # fmt: skip
    else:
        column = pa.array(contents, getattr(pa, kind)())
    columns = {name: column, "label": [k % 3 for k in range(12)], "caption": ["x"] * 12}
    root = write_table(tmp_path / "photos" / "a.parquet", columns)
    data = read(root)
    assert data.classes == ["0", "1", "2"]
    check_rows(data, of_split(12, "train").tolist())


def test_images_may_lie_in_files_beside_the_table(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "files").mkdir(parents=True)
    paths = []
    for k in range(12):
        path = root / "files" / f"{k}.png"
        path.write_bytes(image(k))
        paths.append(str(path) if k % 2 else f"files/{k}.png")
    column = pa.array([{"bytes": None, "path": path} for path in paths],
                      pa.struct([("bytes", pa.binary()), ("path", pa.string())]))  # fmt: skip
    write_table(root / "train.parquet", {"image": column, "label": [k % 3 for k in range(12)]})
    data = read(root)
    check_rows(data, of_split(12, "train").tolist())
    gone = int(of_split(12, "train")[3])
    (root / "files" / f"{gone}.png").unlink()
    with pytest.raises(DataError, match=rf"{gone}\.png.*cannot be read"):
        data.encoded(3)


@pytest.mark.parametrize("path", ["https://example.org/a.png", "/dev/zero", "nul\0l", "", "."])
def test_a_path_is_that_of_a_regular_file(tmp_path: Path, path: str) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([{"bytes": None, "path": path}] * 10, kind)
    root = write_table(tmp_path / "photos" / "t.parquet", {"image": column, "label": [0] * 10})
    with pytest.raises(DataError):
        read(root).encoded(0)


def test_text_is_numbered_by_the_training_split(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    pictures = [image(k) for k in range(3)]
    write_table(root / "train.parquet", {"image": pictures, "label": ["eel", "cat", "eel"]})
    kind = pa.dictionary(pa.int8(), pa.string())
    write_table(
        root / "val.parquet", {"image": pictures[:1], "label": pa.array(["eel"]).cast(kind)}
    )
    assert "same columns" not in str(read(root, "val"))
    assert read(root).classes == read(root, "val").classes == ["cat", "eel"]
    assert read(root).labels.tolist() == [1, 0, 1]
    assert read(root, "val").labels.tolist() == [1]
    write_table(root / "val.parquet", {"image": pictures[:2], "label": ["eel", "fox"]})
    assert "'fox', which train lacks" in refused(root, "val")
    write_table(root / "val.parquet", {"image": pictures[:1], "label": [1]})
    assert "text as labels" in refused(root, "val")


def test_names_of_classes_agree_and_end_where_labels_do(tmp_path: Path) -> None:
    other = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["dog", "cat"])
    )
    val = datasets.Dataset.from_dict({"image": rows(0, 1)["image"], "label": [1]}, features=other)
    datasets.DatasetDict(train=pets(0, 3), val=val).save_to_disk(str(tmp_path / "photos"))
    assert "ClassLabel" in refused(tmp_path / "photos", "val")
    for split, numbers in (("train", [0, 1]), ("val", [2])):
        columns = {"image": [image(k) for k in numbers], "label": numbers}
        write_table(tmp_path / "more" / f"{split}.parquet", columns)
    assert "label 2" in refused(tmp_path / "more", "val")
    assert "2 classes" in refused(tmp_path / "more", spec=replace(PHOTOS, num_classes=1))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, None], "row 2 has no label"),
        ([0, -1, 2], "row 1 has label -1"),
        ([0.0, 1.5, 2.0], "double that are not whole"),
        ([0.0, 1.0, float("nan")], "double that are not whole"),
        ([0.0, 1.0, None], "row 2 has no label"),
        ([[0], [1], [2]], "list"),
        ([b"a", b"b", b"c"], "no labels"),
        (pa.array([0, 1, 1 << 63], pa.uint64()), "64 bits"),
        ([0, 1, 5000], "5001 classes"),
    ],
)
def test_labels_are_whole_numbers_or_text(tmp_path: Path, labels: Any, says: str) -> None:
    columns = {"image": [image(k) for k in range(3)], "label": labels}
    root = write_table(tmp_path / "photos" / "train.parquet", columns)
    columns["label"] = [0, 1, 2]
    write_table(tmp_path / "photos" / "val.parquet", columns)
    assert says in refused(root)


@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.uint8()], ids=str
)
def test_numbers_that_are_whole_are_labels(tmp_path: Path, kind: Any) -> None:
    numbers = np.array([k % 2 for k in range(20)])
    columns = {
        "image": [image(k) for k in range(20)],
        "label": pa.array(numbers.astype(kind.to_pandas_dtype()), kind),
    }
    data = read(write_table(tmp_path / "photos" / "all.parquet", columns))
    assert data.classes == ["0", "1"]
    assert data.labels.tolist() == numbers[of_split(20, "train")].tolist()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"image": [{"bytes": None, "path": None}] * 2, "label": [0, 1]}, "no encoded images"),
        ({"image": [[1, 2], [3, 4]], "label": [0, 1]}, "of pixels"),
        ({"image": ["a.png", "b.png"], "label": [0, 1]}, "cast_column"),
        ({"image": [1, 2], "label": [0, 1]}, "no encoded images"),
        ({"front": [b"a", b"b"], "back": [b"a", b"b"], "label": [0, 1]}, "front and back"),
        ({"image": [b"a", b"b"], "img": [b"a", b"b"], "label": [0, 1]}, "image and img"),
        ({"text": ["a", "b"], "label": [0, 1]}, "no column of images; it has text (string)"),
        ({"image": [b"a", b"b"], "label": [0, 1], "class": [0, 1]}, "label and class"),
        ({"image": [b"a", b"b"], "weight": [0, 1]}, "columns: {label: NAME}"),
        ({"image": [b"a", None], "label": [0, 1]}, "has no image"),
        ({"image": [{"bytes": [1, 2], "path": "x"}] * 2, "label": [0, 1]}, "no encoded images"),
    ],
)
def test_columns_that_cannot_be_told_are_listed(
    tmp_path: Path, columns: dict[str, Any], says: str
) -> None:
    root = write_table(tmp_path / "photos" / "train.parquet", columns)
    shutil.copyfile(root / "train.parquet", root / "val.parquet")
    assert says in refused(root)


def test_a_configuration_names_columns(tmp_path: Path) -> None:
    columns = {
        "front": [image(k) for k in range(12)],
        "back": [b""] * 12,
        "label": [0.5] * 12,
        "kind.of": [k % 3 for k in range(12)],
    }
    root = write_table(tmp_path / "photos" / "all.parquet", columns)
    spec = replace(PHOTOS, image_key="front", label_key="kind.of")
    check_rows(read(root, spec=spec), of_split(12, "train").tolist())
    assert "no column 'side'" in refused(root, spec=replace(spec, image_key="side"))
    assert "no encoded images" in refused(root, spec=replace(spec, image_key="label"))
    assert "double" in refused(root, spec=replace(spec, label_key="label"))


def test_features_tell_images_and_classes_among_other_columns(tmp_path: Path) -> None:
    further = {
        "mask_bytes": datasets.Value("binary"),
        "pixels": datasets.Array3D((2, 2, 3), "uint8"),
        "words": datasets.Sequence(datasets.Value("int64")),
    }
    values = rows(0, 12, mask_bytes=[b"m"] * 12, pixels=[np.zeros((2, 2, 3), np.uint8)] * 12,
                  words=[[1]] * 12)  # fmt: skip
    values["scan"], values["kind"] = values.pop("image"), values.pop("label")
    of_scan = {"scan": datasets.Image(), "kind": datasets.ClassLabel(names=PETS), **further}
    data = datasets.Dataset.from_dict(values, features=datasets.Features(of_scan))
    data.save_to_disk(str(tmp_path / "photos"))
    check_rows(read(tmp_path / "photos"), of_split(12, "train").tolist())
    assert "of pixels" in refused(tmp_path / "photos", spec=replace(PHOTOS, image_key="pixels"))


def test_missing_images_of_a_saved_dataset_are_named_at_once(tmp_path: Path) -> None:
    values = rows(0, 12)
    values["image"][4] = None
    datasets.Dataset.from_dict(values, features=features()).save_to_disk(str(tmp_path / "photos"))
    assert "row 4 has no image" in refused(tmp_path / "photos")


@pytest.mark.parametrize("name", ["photos", "photos::old", "größe 日本"])
def test_any_name_of_a_folder_is_that_of_files_here(tmp_path: Path, name: str) -> None:
    """The library would take two colons for one file system within another."""
    pets(0, 12).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved").rename(tmp_path / name)
    check_rows(read(tmp_path / name), of_split(12, "train").tolist(), name)


def test_several_images_or_classes_a_row_are_refused(tmp_path: Path) -> None:
    lists = {"image": [[each] for each in rows(0, 12)["image"]], "label": [[0, 1]] * 12}
    of_image = datasets.Sequence(datasets.Image())
    of_label = datasets.Sequence(datasets.ClassLabel(names=PETS))
    for name, feature, says in (
        ("image", of_image, "one image a row"),
        ("label", of_label, "no labels"),
    ):
        values = {**rows(0, 12), name: lists[name]}
        saved = datasets.Dataset.from_dict(values, features=features(**{name: feature}))
        saved.save_to_disk(str(tmp_path / name))
        assert says in refused(tmp_path / name)


def test_rows_in_a_new_order_are_read_as_saved(tmp_path: Path) -> None:
    shuffled = pets(0, 60).shuffle(seed=4).filter(lambda row: row["label"] < 2).with_format("numpy")
    root = tmp_path / "photos"
    shuffled.save_to_disk(str(root), num_shards=3)
    plain = shuffled.with_format(None).cast_column("image", datasets.Image(decode=False))
    expected = [each["bytes"] for each in plain["image"]]
    data = read(root)
    kept = [expected[k] for k in of_split(len(expected), "train").tolist()]
    assert [data.encoded(k)[1] for k in range(len(data))] == kept
    assert data.encoded(len(data) - 1)[0].startswith("photos/data-00002-of-00003.arrow, row ")


def test_incomplete_and_foreign_folders_end_in_one_sentence(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    datasets.DatasetDict(train=pets(0, 30), test=pets(0, 3)).save_to_disk(str(root))
    shutil.rmtree(root / "test")
    assert "'test', whose folder is missing" in refused(root)
    (root / "dataset_dict.json").write_text("[1]")
    assert "does not list" in refused(root)
    (root / "dataset_dict.json").unlink()
    read(root)
    state = root / "train" / "state.json"
    whole = state.read_text()
    state.write_text(json.dumps({**json.loads(whole), "_data_files": [{"filename": "../x"}]}))
    assert "another folder" in refused(root)
    state.write_text("{")
    assert "does not list" in refused(root)
    state.unlink()
    assert "state.json" in refused(root)
    state.write_text(whole)
    table = root / "train" / "data-00000-of-00001.arrow"
    content = table.read_bytes()
    table.write_bytes(content[: len(content) // 2])
    assert "cannot be read" in refused(root)
    table.unlink()
    assert "is missing" in refused(root)
    assert "not a folder" in refused(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert not huggingface.recognises(tmp_path / "empty")
    assert "holds nothing" in refused(tmp_path / "empty")
    assert not huggingface.recognises(tmp_path / "none")


def test_damaged_parquet_files_end_in_one_sentence(tmp_path: Path) -> None:
    columns = {"image": [image(k) for k in range(12)], "label": [0] * 12}
    root = write_table(tmp_path / "photos" / "train-0.parquet", columns)
    content = (root / "train-0.parquet").read_bytes()
    (root / "train-1.parquet").write_bytes(content[:-40])
    assert "train-1.parquet cannot be read" in refused(root)
    (root / "train-1.parquet").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    assert "git lfs pull" in refused(root)
    write_table(root / "train-1.parquet", {"image": [image(0)], "label": ["cat"]})
    assert "same columns" in refused(root)
    write_table(root / "train-1.parquet", {"image": [image(0)]})
    assert "lacks it" in refused(root)
    write_table(root / "train-1.parquet", {"image": [], "label": pa.array([], pa.int64())})
    (root / "train-0.parquet").unlink()
    assert "no rows" in refused(root)


def test_parquet_files_of_several_datasets_or_none_are_not_mixed(tmp_path: Path) -> None:
    columns = {"image": [image(k) for k in range(12)], "label": [0] * 12}
    root = tmp_path / "photos"
    write_table(root / "digits" / "train.parquet", columns)
    write_table(root / "letters" / "train.parquet", columns)
    assert "digits and letters" in refused(root)
    write_table(root / "digits" / "more.parquet", columns)
    assert "more.parquet, which names no split" in refused(root / "digits")


def test_reading_leaves_no_copy_and_needs_no_network(tmp_path: Path) -> None:
    datasets.DatasetDict(train=pets(0, 20), test=pets(0, 3)).save_to_disk(str(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    pets(0, 20).to_parquet(str(tmp_path / "b" / "train.parquet"))
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from pathlib import Path\n"
        "from ddlbench.datasets import huggingface\n"
        "from ddlbench.experiment.dataset_spec import DatasetSpec\n"
        "spec = DatasetSpec('p', 'P', 9, 3, 8, 8, 1, 1, 'huggingface', source='p')\n"
        "for root in sys.argv[1:]:\n"
        "    for split in ('train', 'val'):\n"
        "        huggingface.read(Path(root), spec, split).encoded(0)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "b")],
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets(0, 12).save_to_disk(str(tmp_path / "photos"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert huggingface.recognises(tmp_path / "photos")
    assert "pip install 'ddlbench[data]'" in refused(tmp_path / "photos")


def read_tokens(root: Path, split: str = "train") -> TokenSplit:
    huggingface.check(root, TEXT, split)
    data = huggingface.read(root, TEXT, split)
    assert isinstance(data, TokenSplit)
    return data


@pytest.mark.parametrize("column", ["input_ids", "tokens"])
@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_lists_of_tokens_are_one_stream(tmp_path: Path, form: str, column: str) -> None:
    lists = [[(7 * k + j) % 300 for j in range(k % 5)] for k in range(2500)]
    stream = np.array([token for row in lists for token in row])
    values = {column: lists, "attention_mask": [[1]] * 2500}
    train = datasets.Dataset.from_dict(values)
    val = datasets.Dataset.from_dict({column: lists[:9], "attention_mask": [[1]] * 9})
    root = tmp_path / "text"
    if form == "saved":
        datasets.DatasetDict(train=train, validation=val).save_to_disk(str(root))
    else:
        root.mkdir()
        train.to_parquet(str(root / "train.parquet"), batch_size=400)
        val.to_parquet(str(root / "validation.parquet"))
    data = read_tokens(root)
    assert len(data) == (len(stream) - 1) // 4
    np.testing.assert_array_equal(np.asarray(data.tokens), stream)
    places = np.random.default_rng(1).integers(0, len(stream), (6, 5))
    np.testing.assert_array_equal(data.tokens[places], stream[places])
    for cut in (slice(3, 900), slice(1990, 2010), slice(-5, None), slice(4, 4), slice(0, 50, 7)):
        np.testing.assert_array_equal(np.asarray(data.tokens[cut]), stream[cut])
    np.testing.assert_array_equal(
        np.asarray(read_tokens(root, "val").tokens), [t for row in lists[:9] for t in row]
    )


def test_the_last_tenth_of_a_single_stream_is_held_out(tmp_path: Path) -> None:
    stream = np.arange(101) % 300
    datasets.Dataset.from_dict({"input_ids": [stream[:50], stream[50:]]}).save_to_disk(
        str(tmp_path / "text")
    )
    train, val = (read_tokens(tmp_path / "text", split) for split in ("train", "val"))
    assert (len(train), len(val)) == (23, 2)
    np.testing.assert_array_equal(np.asarray(train.tokens), stream[:93])
    np.testing.assert_array_equal(np.asarray(val.tokens), stream[92:])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"text": ["a b", "c"]}, "tokenise it first"),
        ({"input_ids": ["a b", "c"]}, "tokenise it first"),
        ({"input_ids": [[0.5] * 60]}, "no tokens"),
        ({"input_ids": [[[1] * 60]]}, "no tokens"),
        ({"input_ids": [[1] * 60, None]}, "lacks a token"),
        ({"input_ids": [[1] * 60 + [None]]}, "lacks a token"),
        ({"input_ids": [[1] * 30]}, "write more tokens"),
        ({"input_ids": [[]], "tokens": [[1] * 60]}, "several columns"),
        ({"input_ids": pa.array([[]], pa.list_(pa.int32()))}, "write more tokens"),
        ({"input_ids": [[300] + [1] * 60]}, "token 300"),
        ({"input_ids": [[-100] + [1] * 60]}, "token -100"),
        ({"labels": [[1] * 60]}, "no column of tokens"),
    ],
)
@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_other_columns_are_no_tokens(
    tmp_path: Path, columns: dict[str, Any], says: str, form: str
) -> None:
    if form == "saved":
        datasets.Dataset(pa.table(columns)).save_to_disk(str(tmp_path / "text"))
    else:
        write_table(tmp_path / "text" / "all.parquet", columns)
    with pytest.raises(DataError) as caught:
        read_tokens(tmp_path / "text")
    assert says in str(caught.value)


def test_photos_of_both_splits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = datasets.DatasetDict(train=pets(0, 20), validation=pets(20, 4), test=pets(0, 2))
    saved.save_to_disk(str(tmp_path / "photos"))
    assert_photos_are_read(tmp_path, "huggingface", monkeypatch)
