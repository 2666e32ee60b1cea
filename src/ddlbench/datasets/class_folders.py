"""Class folders as people keep them: what is a class, what is an image, and what is left out.

::

    train/ant/001.jpg            an image of class ant
    train/ant/wings/007.png      too: folders inside a class folder belong to it
    train/ant/002.heic           no image that is read: left out, and counted
    train/ant/._001.jpg          hidden: left out, and counted
    train/.ipynb_checkpoints/    a tool's folder: no class
    train/labels/001.txt         a folder without images: no class, and named
    train/bee/                   empty: a class of which training sees nothing
    val/ant/...                  the classes of train give the labels, here too
    val/zebra/...                a class that train lacks: refused

Images and their order are those of torchvision's ``ImageFolder``, hidden names, links into a loop
and endings that it does not know apart.

Without ``train``, class folders must hold images directly: of ``animals/ant`` and ``plants/oak``
nothing tells which level is the classes.

Where data is not in a folder, messages say what lies there, and what to do about it.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ddlbench.common.quantities import counted, few
from ddlbench.datasets.files import DataError, FileSplit, of_split, reading
from ddlbench.experiment.dataset_spec import DatasetSpec

IMAGE_FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (),  # of cameras with two lenses, called .jpg
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2",),
}
"""Formats that are decoded, as Pillow calls them, and the endings of their files.

They are those of torchvision's ``IMG_EXTENSIONS``, and more.
"""

EXTENSIONS = tuple(ending for endings in IMAGE_FORMATS.values() for ending in endings)

_NOT_READ = (
    ".csv", ".tsv", ".json", ".jsonl", ".txt", ".xlsx", ".npy", ".npz", ".h5", ".hdf5", ".pt",
    ".tfrecord", ".tfrecords", ".beton", ".rec", ".mdb",
    ".pth", ".pkl", ".mat",
)  # fmt: skip

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "test", "testing"),
}
"""Names of a split's folder, the first that is there."""

_OF_TOOLS = (
    "__macosx", "__pycache__", "lost+found", "$recycle.bin", "recycler", "recycled",
    "system volume information", "#recycle", "#snapshot", "~snapshot", "_thumbs", "cvs",
)  # fmt: skip


@dataclass(frozen=True)
class ClassFolder:
    """A folder, and the images below it.

    Args:
        name: of the folder.
        images: paths from the folder, in torchvision's order.
        left_out: how many further files below it have each ending.
    """

    name: str
    images: list[str]
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def is_class(self) -> bool:
        return bool(self.images) or not self.left_out


def read(root: Path, spec: DatasetSpec, split: str) -> FileSplit:
    """Lists one split under ``root``.

    Data that a configuration declares may lie in class folders directly under ``root``, or have no
    validation split; then some of its samples are held out.

    Raises:
        DataError: the folder is missing or holds no images, has more classes than ``spec``, or has
            a class that the training split lacks.
    """
    folder = _split_folder(root, "train")
    if folder is None and spec.source and _has_images(root):
        if (val := _split_folder(root, "val")) is not None:
            raise DataError(
                f"{root} has {val.name}, but no train; move the class folders of training into "
                f"{root / 'train'}"
            )
        folder = root
    if folder is None:
        raise DataError(_no_split(root, "train"))
    of_val = folder if folder == root else _split_folder(root, "val")
    if split == "val" and of_val is None and not spec.source:
        raise DataError(_no_split(root, "val"))
    if split == "train" or of_val in (None, folder):
        return _held_out(_train_split(folder, spec), split, of_val in (None, folder))
    assert of_val is not None
    return _val_split(of_val, folder, spec)


def _split_folder(root: Path, split: str) -> Path | None:
    """The folder of a split under ``root``, in small letters or not; None if it is not there."""
    spellings = {name.lower(): name for name in reversed(names_in(root))}
    for name in SPLIT_NAMES[split]:
        for spelling in (name, spellings.get(name)):
            if spelling is not None and (root / spelling).is_dir():
                return root / spelling
    return None


def recognises(root: Path) -> bool:
    """Whether folders of images lie in the training split under ``root``, or in itself."""
    train = _split_folder(root, "train")
    return _has_images(root) or (train is not None and _has_images(train))


def _held_out(whole: FileSplit, split: str, is_shared: bool) -> FileSplit:
    if not is_shared:
        return whole
    keep = of_split(len(whole), split)
    if not len(keep):
        raise DataError(
            f"{whole.folder} has {counted(len(whole), 'image')} and no validation split; give it "
            "one, or ten images or more, of which the tenth is held out"
        )
    left_out = whole.left_out if split == "train" else Counter[str]()
    return replace(whole, names=whole.names[keep], labels=whole.labels[keep], left_out=left_out)


def _train_split(folder: Path, spec: DatasetSpec) -> FileSplit:
    folders, left_out, not_classes = _scan(folder)
    if not any(entry.images for entry in folders):
        raise DataError(_no_images(folder, left_out))
    classes = [entry.name for entry in folders]
    _check_count(folder, classes, spec)
    return _file_split(folder, classes, folders, left_out, not_classes)


def _val_split(folder: Path, train: Path, spec: DatasetSpec) -> FileSplit:
    """The split under ``folder``, with the labels of the classes of ``train``."""
    folders, left_out, not_classes = _scan(folder)
    classes = list(_class_names(train))
    images = [entry for entry in folders if entry.images]
    if not images:
        raise DataError(_no_images(folder, left_out))
    foreign = [entry.name for entry in images if entry.name not in set(classes)]
    if foreign:
        missing = [name for name in classes if name not in {entry.name for entry in images}]
        foreign, missing = _escaped_if_alike(foreign, missing), _escaped_if_alike(missing, foreign)
        hint = f"; of train's classes it lacks {listed(missing)}" if missing else ""
        which = "class" if len(foreign) == 1 else "classes"
        raise DataError(
            f"{folder} has images of {which} {listed(foreign)}, which {train} lacks{hint}; name "
            "the class folders of both alike, or remove those that cannot be learnt"
        )
    _check_count(train, classes, spec)
    empty = [entry.name for entry in folders if not entry.images and entry.name not in classes]
    return _file_split(folder, classes, images, left_out, [*not_classes, *empty])


def _escaped_if_alike(names: list[str], others: list[str]) -> list[str]:
    """Names, those escaped that look like one of ``others``: é has two forms, a blank is unseen."""
    alike = set(map(_as_seen, others))
    return [ascii(name) if _as_seen(name) in alike else name for name in names]


def _as_seen(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip()


def _check_count(train: Path, classes: list[str], spec: DatasetSpec) -> None:
    if len(classes) > spec.num_classes:
        raise DataError(
            f"{train} has {counted(len(classes), 'class folder')}, but {spec.label} has "
            f"{spec.num_classes} classes; check the data source"
        )


def _file_split(
    folder: Path,
    classes: list[str],
    folders: list[ClassFolder],
    left_out: Counter[str],
    not_classes: list[str],
) -> FileSplit:
    number = {name: label for label, name in enumerate(classes)}
    names = [os.fsencode(image) for entry in folders for image in entry.images]
    labels = np.repeat(
        np.array([number[entry.name] for entry in folders], np.int64),
        [len(entry.images) for entry in folders],
    )
    return FileSplit(
        folder, classes, np.array(names, np.bytes_), labels, left_out, tuple(not_classes)
    )


def _scan(folder: Path) -> tuple[list[ClassFolder], Counter[str], list[str]]:
    """Class folders in order, all files that are left out by ending, and folders of no class."""
    classes: list[ClassFolder] = []
    left_out: Counter[str] = Counter()
    not_classes: list[str] = []
    with reading():
        for entry in _entries(folder):
            if not entry.is_dir():
                kind = ending(entry.name)
                left_out[f"{kind} outside class folders" if _is_image(entry.name) else kind] += 1
            elif _is_of_a_tool(entry.name):
                not_classes.append(entry.name)
            else:
                class_folder = _class_folder(Path(entry.path))
                left_out += class_folder.left_out
                if class_folder.is_class:
                    classes.append(class_folder)
                else:
                    not_classes.append(class_folder.name)
    return classes, left_out, not_classes


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _is_image(name: str) -> bool:
    return not is_hidden(name) and name.lower().endswith(EXTENSIONS)


def _is_of_a_tool(name: str) -> bool:
    return is_hidden(name) or name.lower() in _OF_TOOLS


def _class_folder(folder: Path) -> ClassFolder:
    left_out: Counter[str] = Counter()
    files = sorted(_files(str(folder), "", (os.path.realpath(folder),), left_out))
    return ClassFolder(folder.name, [image for _, images in files for image in images], left_out)


def _files(
    folder: str, within: str, above: tuple[str, ...], left_out: Counter[str]
) -> Iterator[tuple[str, list[str]]]:
    """Each folder below, as its path from the class folder, and its images."""
    images = []
    below = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                below.append(entry)
            elif _is_image(entry.name):
                if entry.is_file():
                    images.append(entry.name)
                else:  # a pipe, or a link to nothing
                    left_out["no regular file"] += 1
            else:
                left_out[ending(entry.name)] += 1
    yield within, [f"{within}/{name}"[1:] if within else name for name in sorted(images)]
    for entry in below:
        real = os.path.realpath(entry.path) if entry.is_symlink() else None
        # A link into a loop leads to one of these, or to what holds the first of them.
        is_loop = real is not None and (real in above or above[0].startswith(f"{real}/"))
        if is_loop or _is_of_a_tool(entry.name):
            continue
        inner = (*above, real or f"{above[-1]}/{entry.name}")
        yield from _files(entry.path, f"{within}/{entry.name}", inner, left_out)


def _class_names(train: Path) -> Iterator[str]:
    """Names of the class folders, in order; each is looked into as far as its first image."""
    with reading():
        for entry in _entries(train):
            if not entry.is_dir() or _is_of_a_tool(entry.name):
                continue
            left_out: Counter[str] = Counter()
            real = (os.path.realpath(entry.path),)
            if any(images for _, images in _files(entry.path, "", real, left_out)) or not left_out:
                yield entry.name


def _has_images(root: Path) -> bool:
    """Whether folders directly under ``root`` hold images directly."""
    for name in names_in(root):
        folder = root / name
        if folder.is_dir() and not _is_of_a_tool(name):
            images = (n for n in names_in(folder) if n.lower().endswith(EXTENSIONS))
            if next(images, None) is not None:
                return True
    return False


def _no_split(root: Path, split: str) -> str:
    wanted = f"{root / split} is missing"
    if (hint := unpack_hint(root)) is not None:
        return f"{wanted}; {hint}"
    holder = deeper(root, lambda folder: _split_folder(folder, split) is not None)
    if holder is not None and split == "train":
        return f"{wanted}; give {holder}, which holds {split}"
    if split == "train" and _has_images(root):
        return (
            f"{wanted}, but {lies_there(root)}; put the class folders into {root.name}/train and "
            f"some images of each into {root.name}/val"
        )
    if split == "train" and any(name.lower().endswith(EXTENSIONS) for name in names_in(root)):
        return (
            f"{wanted}, and {root} holds images outside class folders; move those of each class "
            "into a folder of its own"
        )
    if split == "train" and (hint := _nested_hint(root) or _not_read_hint(root)) is not None:
        return f"{wanted}; {hint}"
    return f"{wanted}: {lies_there(root)}; check the data source"


def _nested_hint(root: Path) -> str | None:
    """What to do where images lie two folders deep or more; None where they do not."""
    classes = deeper(root, _has_images)
    if classes is None:
        return None
    top = [name for name in names_in(root) if (root / name).is_dir()]
    if len(top) == 1:
        return f"give {classes}, which holds class folders"
    return (
        f"{classes} holds class folders within folders; to have {listed(top)} as classes, with all "
        f"images below them, move them into {root / 'train'}; to have {listed(names_in(classes))} "
        "as classes, move all such folders into one"
    )


def _not_read_hint(root: Path) -> str | None:
    """What to do where files of other kinds lie; None where there are none."""
    others = [name for name in names_in(root) if name.lower().endswith(_NOT_READ)]
    if not others:
        return None
    kinds = listed(sorted({ending(name) for name in others}))
    return (
        f"{root} holds {listed(others)}, and {kinds} is not read; write Parquet files with an "
        "image's file (bytes) and a label a row, or put images into a folder of each class"
    )


def _no_images(folder: Path, left_out: Counter[str]) -> str:
    wanted = f"{folder} holds no images in class folders"
    if (hint := unpack_hint(folder)) is not None:
        return f"{wanted}; {hint}, each into a folder of its class"
    loose = sum(count for kind, count in left_out.items() if "outside" in kind)
    if loose:
        return (
            f"{wanted}, but {loose:,} outside of them; move those of each class into a folder of "
            "its own"
        )
    if left_out:
        out = left_out_text(left_out)
        return f"{wanted} that can be read; left out: {out}; write JPEG or PNG files"
    return f"{wanted}: {lies_there(folder)}; check the data source"


_PACKED = (".tar", ".tgz", ".zip", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_MOST_NAMES = 5
_DEEPEST = 4
_MOST_FOLDERS = 500


def is_hidden(name: str) -> bool:
    """Whether a name is that of a hidden file or folder, or of a tool's such as ``@eaDir``."""
    return name.startswith((".", "@"))


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted, without hidden ones; none where it cannot be read."""
    try:
        return sorted(path.name for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []


def lies_there(folder: Path) -> str:
    """``it holds a, b and 3 more`` of a folder, or of the nearest one above that is there."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return f"{folder} holds {listed(names_in(folder)) or 'nothing'}"


def listed(names: list[str]) -> str:
    """A few names, and how many more there are; empty of none."""
    if len(names) > _MOST_NAMES:
        return few(names, _MOST_NAMES)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def left_out_text(left_out: Counter[str]) -> str:
    """``6 files: .heic`` or ``8 files: 6 .heic, 2 .gif`` of files that are left out."""
    kinds = left_out.most_common()
    text = kinds[0][0] if len(kinds) == 1 else ", ".join(f"{n:,} {kind}" for kind, n in kinds[:4])
    return f"{counted(left_out.total(), 'file')}: {text}"


def unpack_hint(folder: Path) -> str | None:
    """What to unpack in a folder; None if nothing there is packed."""
    packed = [name for name in names_in(folder) if name.lower().endswith(_PACKED)]
    if not packed:
        return None
    name = packed[0]
    lower = name.lower()
    if lower.endswith((".gz", ".bz2", ".xz")) and ".tar" not in lower:
        tool = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz"}[Path(lower).suffix]
        how = f"{tool} {name}" if len(packed) == 1 else f"{tool} *{Path(lower).suffix}"
    elif lower.endswith(".zip"):
        how = f"unzip {name}"
    elif ".tar" in lower or lower.endswith(".tgz"):
        how = f"tar xf {name}"
    else:
        how = f"unpack {name}"
    return f"it is packed: in {folder}, run {how}"


def deeper(folder: Path, is_wanted: Callable[[Path], bool]) -> Path | None:
    """The nearest folder below that is the wanted one; None if there is none near."""
    level, looked_at = [folder], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for parent in level:
            for name in names_in(parent):
                child = parent / name
                looked_at += 1
                if looked_at > _MOST_FOLDERS:
                    return None
                if not child.is_dir():
                    continue
                if is_wanted(child):
                    return child
                below.append(child)
        level = below
    return None


def ending(name: str) -> str:
    """The ending of a name in small letters; ``hidden`` or ``no ending`` where that tells more."""
    return "hidden" if is_hidden(name) else Path(name).suffix.lower() or "no ending"
