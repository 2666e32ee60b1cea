"""Shards of WebDataset: written by its library, and by tar; read by ours in any order."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.own_photos import assert_photos_are_read
from PIL import Image

from ddlbench.datasets import webdataset
from ddlbench.datasets.files import DataError, EncodedSplit, of_split
from ddlbench.experiment.dataset_spec import DatasetSpec

wds = pytest.importorskip("webdataset")

PHOTOS = DatasetSpec("photos", "Photos", 1000, 3, 8, 8, 1, 1, "webdataset", source="photos")


def image(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (number % 256, number // 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def sample(number: int, **further: Any) -> dict[str, Any]:
    return {"__key__": f"{number:05d}", "png": image(number), "cls": number % 3, **further}


def write(path: Path, samples: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path), encoder=True) as writer:
        for each in samples:
            writer.write(each)
    return path.parent


def write_members(path: Path, members: list[tuple[str, bytes]], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **settings) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path.parent


def read(root: Path, split: str = "train", spec: DatasetSpec = PHOTOS) -> EncodedSplit:
    return webdataset.read(root, spec, split)


def check_samples(data: EncodedSplit, numbers: list[int]) -> None:
    """Every sample is as written, in any order."""
    assert len(data) == len(numbers)
    order = list(range(len(data)))
    random.Random(3).shuffle(order)
    for sample_id in order:
        place, content = data.encoded(sample_id)
        assert content == image(numbers[sample_id])
        assert data.labels[sample_id] == numbers[sample_id] % 3
        assert place.startswith("photos/") and f"{numbers[sample_id]:05d}." in place
    assert data.labels.dtype == np.int64


def refused(root: Path, split: str = "train", spec: DatasetSpec = PHOTOS) -> str:
    with pytest.raises(DataError) as caught:
        webdataset.read(root, spec, split)
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def held_in(count: int) -> list[int]:
    return of_split(count, "train").tolist()


def test_what_the_library_writes_is_read_back_in_any_order(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    with wds.ShardWriter(str(root / "train-%06d.tar"), maxcount=70, verbose=0) as writer:
        for k in range(300):
            writer.write(sample(k))
    write(root / "val-000000.tar", [sample(k) for k in range(400, 411)])
    write(root / "test-000000.tar", [sample(500)])
    assert webdataset.recognises(root)
    train, val = read(root), read(root, "val")
    assert train.classes == val.classes == ["0", "1", "2"]
    check_samples(train, list(range(300)))
    check_samples(val, list(range(400, 411)))
    assert train.encoded(299)[0] == "photos/train-000004.tar, 00299.png"
    assert webdataset.own_files(root, "train") == [f"train-{k:06d}.tar" for k in range(5)]
    assert webdataset.own_files(root, "val") == ["val-000000.tar"]


def test_what_is_read_is_what_the_library_reads(tmp_path: Path) -> None:
    """With folders in keys, other members, two endings, and long names."""
    members = []
    for k in range(20):
        key = f"./a.b/{'long/' * 30}{k:05d}"
        members += [(f"{key}.JPEG" if k % 2 else f"{key}.png", image(k)), (f"{key}.seg.png", b"s"),
                    (f"{key}.cls", b" %d\n" % (k % 3)), (f"{key}.txt", b"a caption")]  # fmt: skip
    members += [("README", b"x"), ("__meta__/info.json", b"{}"), ("._00001.jpg", b"x")]
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        root = write_members(tmp_path / "photos" / "all.tar", members, format=form)
        check_samples(read(root), held_in(20))
        library = wds.WebDataset(str(root / "all.tar"), shardshuffle=False)
        expected = [each.get("png") or each["jpeg"] for each in library]
        kept = [expected[k] for k in of_split(len(expected), "train").tolist()]
        assert [read(root).encoded(k)[1] for k in range(18)] == kept


@pytest.mark.parametrize(
    "names",
    [
        ["photos-{}.tar", "val-{}.tar"],
        ["train/{}.tar", "validation/{}.tar"],
        ["data/imagenet-train-{}.tar", "data/imagenet-validation-{}.tar"],
        ["cifar_TRAIN_{}.tar", "cifar_TEST_{}.tar"],
    ],
)
def test_shards_name_their_split_and_come_in_the_order_of_their_numbers(
    tmp_path: Path, names: list[str]
) -> None:
    root = tmp_path / "photos"
    for number in range(12):
        write(root / names[0].format(number), [sample(number)])
    write(root / names[1].format(0), [sample(40), sample(41)])
    check_samples(read(root), list(range(12)))
    check_samples(read(root, "val"), [40, 41])


def test_of_shards_without_a_split_every_tenth_sample_is_held_out(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    write(root / "photos-000.tar", [sample(k) for k in range(13)])
    write(root / "photos-001.tar", [sample(k) for k in range(13, 25)])
    check_samples(read(root), held_in(25))
    check_samples(read(root, "val"), of_split(25, "val").tolist())
    assert webdataset.own_files(root, "val") == []
    write(root / "train-0.tar", [sample(0)])
    assert "names no split" in refused(root)


def test_more_shards_than_files_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "photos"
    for number in range(40):
        write(root / f"{number}.tar", [sample(number)])
    monkeypatch.setattr(webdataset.resource, "getrlimit", lambda _: (16, 16))
    data = read(root)
    before = open_files()
    check_samples(data, held_in(40))
    assert open_files() - before <= 4
    del data
    assert open_files() <= before


def test_a_forked_process_reads_the_same_files(tmp_path: Path) -> None:
    """As the parent does at the same time: no position in a file is shared."""
    data = read(write(tmp_path / "photos" / "all.tar", [sample(k) for k in range(200)]))
    child = os.fork()
    if child == 0:
        try:
            for _ in range(5):
                check_samples(data, held_in(200))
        except BaseException:
            os._exit(1)
        os._exit(0)
    for _ in range(5):
        check_samples(data, held_in(200))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("field", ["label", "cls", "class", "labels"])
def test_labels_in_json(tmp_path: Path, field: str) -> None:
    numbers = [{"__key__": f"{k:05d}", "png": image(k), "json": {field: k % 3, "caption": "x"}}
               for k in range(12)]  # fmt: skip
    check_samples(read(write(tmp_path / "photos" / "a.tar", numbers)), held_in(12))


@pytest.mark.parametrize(("picture", "label"), [("input.png", "target.cls"), ("PNG", "CLS")])
def test_endings_may_have_two_parts_or_capitals(tmp_path: Path, picture: str, label: str) -> None:
    members = [m for k in range(12) for m in ((f"v1.5/{k:05d}.{picture}", image(k)),
               (f"v1.5/{k:05d}.{label}", b"%d" % (k % 3)))]  # fmt: skip
    check_samples(read(write_members(tmp_path / "photos" / "a.2024.tar", members)), held_in(12))


def test_text_is_numbered_by_the_training_split(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    names = ["ant", "bee", "cat"]
    of_train = [{"__key__": f"{k:05d}", "jpg": b"", "json": {"label": names[k % 3]}}
                for k in range(12)]  # fmt: skip
    of_train = [{**each, "png": image(k)} for k, each in enumerate(of_train)]
    for each in of_train:
        del each["jpg"]
    write(root / "train.tar", of_train)
    write(root / "val.tar", of_train[2:3])
    check_samples(read(root), list(range(12)))
    check_samples(read(root, "val"), [2])
    assert read(root, "val").classes == names
    write(root / "val.tar", [{**of_train[0], "json": {"label": "dog"}}])
    assert "'dog', which train lacks" in refused(root, "val")
    write(root / "val.tar", [sample(0)])
    assert "text as labels" in refused(root, "val")


def test_a_configuration_names_endings_and_fields(tmp_path: Path) -> None:
    samples = [{"__key__": f"{k:05d}", "left.png": image(k), "right.png": b"r", "cls": 7,
                "kind.txt": ["ant", "bee", "cat"][k % 3], "json": {"sort": k % 3, "label": 8}}
               for k in range(12)]  # fmt: skip
    root = write(tmp_path / "photos" / "a.tar", samples)
    assert "left.png and right.png" in refused(root)
    for label in ("kind.txt", "sort", ".kind.txt"):
        spec = replace(PHOTOS, image_key="left.png", label_key=label)
        check_samples(read(root, spec=spec), held_in(12))
    check_samples(read(root, spec=replace(spec, image_key="jpg;left.png")), held_in(12))
    spec = replace(PHOTOS, image_key="left.png")
    assert "no label 'cls2'" in refused(root, spec=replace(spec, label_key="cls2"))
    assert "has the fields" in refused(root, spec=replace(spec, label_key="colour"))
    assert "KEY.jpg" in refused(root, spec=replace(spec, image_key="jpg"))


PICTURE = ("a.jpg", image(0))


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([PICTURE], "no label"),
        ([PICTURE, ("a.txt", b"a cat")], "columns: {label: txt}"),
        ([("a.cls", b"0")], "no image"),
        (
            [PICTURE, ("b.jpg", b"x"), ("a.cls", b"0"), ("b.cls", b"0")],
            "one after the other|no label",
        ),
        ([PICTURE, ("a.jpg", b"x"), ("a.cls", b"0")], "twice"),
        ([PICTURE, ("a.png", b"x"), ("a.cls", b"0")], "several images, jpg and png"),
        ([PICTURE, ("a.cls", b"cat")], "'cat', not a whole number"),
        ([PICTURE, ("a.cls", b"")], "not a whole number"),
        ([PICTURE, ("a.cls", b"1.5")], "not a whole number"),
        ([PICTURE, ("a.cls", b"-1")], "label -1"),
        ([PICTURE, ("a.cls", b"9" * 30)], "number the classes"),
        ([PICTURE, ("a.cls", b"9" * 9000)], "not a whole number"),
        ([PICTURE, ("a.cls", b"1000")], "1001 classes"),
        ([PICTURE, ("a.json", b"{")], "not JSON"),
        ([PICTURE, ("a.json", b'{"label": 1.5}')], "label 1.5"),
        ([PICTURE, ("a.json", b'{"label": null}')], "label None"),
        ([PICTURE, ("a.json", b'{"label": [1]}')], "label [1]"),
        ([PICTURE, ("a.json", b'{"label": true}')], "label True"),
        ([PICTURE, ("a.json", b'{"label": 1, "class": 1}')], "label and class"),
        ([PICTURE, ("a.json", b'{"width": 1}')], "fields width, but no label"),
        ([PICTURE, ("a.json", b"[" * 100_000)], "not JSON"),
        (
            [PICTURE, ("a.cls", b"0"), ("b.jpg", b"x"), ("b.json", b'"cat"')],
            "both text and numbers",
        ),
        ([PICTURE, ("a.npy", b"x")], "may run code"),
        ([("a.md", b"x"), ("b.txt", b"x")], "md and txt"),
        ([], "no samples"),
    ],
)
def test_samples_without_an_image_or_a_label_end_in_one_sentence(
    tmp_path: Path, members: list[tuple[str, bytes]], says: str
) -> None:
    root = write_members(tmp_path / "photos" / "train.tar", members)
    write(root / "val.tar", [sample(0)])
    message = refused(root)
    assert any(part in message for part in says.split("|"))


def test_pickles_are_left_alone(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = pickle.dumps(Trap())
    members = [PICTURE, ("a.pyd", trap)]
    root = write_members(tmp_path / "photos" / "a.tar", members)
    assert "may run code" in refused(root)
    assert "may run code" in refused(root, spec=replace(PHOTOS, label_key="pyd"))
    members = [m for k in range(12) for m in ((f"{k:05d}.png", image(k)),
               (f"{k:05d}.cls", b"%d" % (k % 3)), (f"{k:05d}.pkl", trap))]  # fmt: skip
    check_samples(read(write_members(root / "a.tar", members)), held_in(12))
    assert not (tmp_path / "sprung").exists()


def test_members_are_never_files(tmp_path: Path) -> None:
    """Paths out of the folder, links and devices: only bytes of regular members are read."""
    root = tmp_path / "photos"
    write_members(root / "all.tar", [(f"../../{k:05d}.{e}", c) for k in range(12)
                  for e, c in (("png", image(k)), ("cls", b"%d" % (k % 3)))])  # fmt: skip
    with tarfile.open(root / "all.tar", "a") as tar:
        for name, kind in (("x.jpg", tarfile.SYMTYPE), ("y.jpg", tarfile.LNKTYPE),
                           ("z.jpg", tarfile.CHRTYPE)):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    data = read(root)
    assert [data.encoded(k)[1] for k in range(len(data))] == [image(k) for k in held_in(12)]
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["all.tar", "photos"]


def test_damaged_shards_end_in_one_sentence(tmp_path: Path) -> None:
    root = write(tmp_path / "photos" / "train.tar", [sample(k) for k in range(30)])
    path = root / "train.tar"
    content = path.read_bytes()
    for end in (100, 512, 700, 5000, 512 * 7 + 100):
        path.write_bytes(content[:end])
        assert str(path) in refused(root)
    path.write_bytes(content[: 512 * 8])
    assert "ends without tar's end mark" in refused(root)
    path.write_bytes(content[: 512 * 8] + b"\xff" * 512 + content[512 * 9 :])
    assert f"damaged at byte {512 * 8}" in refused(root)
    path.write_bytes(gzip.compress(content))
    assert "gunzip" in refused(root)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in refused(root)
    path.write_bytes(b"")
    assert str(path) in refused(root)
    path.write_bytes(content)
    data = read(root)
    path.write_bytes(content[:700])
    with pytest.raises(DataError, match="ends early"):
        data.encoded(20)


@pytest.mark.parametrize("name", ["train-0.tar.gz", "train-0.tgz"])
def test_compressed_shards_are_to_be_unpacked(tmp_path: Path, name: str) -> None:
    root = write(tmp_path / "photos" / "train-1.tar", [sample(0)])
    (root / name).write_bytes(gzip.compress((root / "train-1.tar").read_bytes()))
    assert "run gunzip" in refused(root)
    (root / "train-1.tar").unlink()
    assert webdataset.recognises(root)
    assert "run gunzip" in refused(root)


def test_archives_of_other_things_are_not_recognised(tmp_path: Path) -> None:
    inner = [("n01440764.tar", b"x" * 700), ("n01443537.tar", b"x")]
    assert not webdataset.recognises(write_members(tmp_path / "imagenet" / "train.tar", inner))
    batches = [("cifar-10-batches-py/data_batch_1", b"x")]
    root = write_members(tmp_path / "cifar" / "a.tar", batches)
    (root / "cifar-10-python.tar.gz").write_bytes(gzip.compress((root / "a.tar").read_bytes()))
    (root / "a.tar").unlink()
    assert not webdataset.recognises(root)
    assert not webdataset.recognises(tmp_path / "none")
    assert not webdataset.recognises(tmp_path)
    assert "not a folder" in refused(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "no tar file" in refused(tmp_path / "empty")


def test_shards_of_several_datasets_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "photos" / "a" / "train-0.tar", [sample(0)])
    write(tmp_path / "photos" / "b" / "train-0.tar", [sample(1)])
    assert "a and b" in refused(tmp_path / "photos")


def test_a_shard_that_changes_is_listed_anew(tmp_path: Path) -> None:
    root = write(tmp_path / "photos" / "a.tar", [sample(k) for k in range(12)])
    check_samples(read(root), held_in(12))
    write(root / "a.tar", [sample(k) for k in range(34)])
    check_samples(read(root), held_in(34))


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "photos" / "a.tar", [sample(k) for k in range(12)])
    monkeypatch.setitem(sys.modules, "webdataset", None)
    assert webdataset.recognises(root)
    assert "pip install 'ddlbench[data]'" in refused(root)


def test_photos_of_both_splits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "photos" / "train-0.tar", [sample(k) for k in range(20)])
    write(tmp_path / "photos" / "val-0.tar", [sample(k) for k in range(20, 24)])
    assert_photos_are_read(tmp_path, "webdataset", monkeypatch)
    tokens = DatasetSpec("text", "Text", 9, 0, 0, 0, 1, 1, "tokens", sequence_length=4)
    assert "tokens are read from" in refused(tmp_path, spec=tokens)
