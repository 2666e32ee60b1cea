"""ImageNet's usual layout: ``train/<class>/<image>.jpg`` and ``val/...``.

Class folders are the jobs: a class has one folder, one checksum and one writer. JPEG encoding
keeps Python's lock, so the writers are processes (:mod:`ddlbench.datasets.jpeg_worker`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from ddlbench.datasets.errors import DataError
from ddlbench.datasets.files import Record, Records, folder_crc
from ddlbench.datasets.jpeg_pool import write_class_folders
from ddlbench.datasets.split_data import FileSplit
from ddlbench.datasets.synthetic import Content, Recipe
from ddlbench.experiment.dataset_spec import DatasetSpec

__all__ = ["JPEG_QUALITY", "ClassFolders", "class_folder", "decode", "read", "write"]

JPEG_QUALITY = 75  # Pillow's default, as in DDLBench
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def class_folder(split: str, label: int) -> str:
    """Path of a class's folder under the root; sorted as text it is sorted by number."""
    return f"{split}/{label:04d}"


class ClassFolders:
    """Writes class folders of a dataset, in any order."""

    def __init__(self, content: Content, root: Path, images: dict[str, int]) -> None:
        self._content = content
        self._root = root
        self._images = images
        self._recipes: dict[str, Recipe] = {}

    def write(self, split: str, label: int) -> Record:
        """Write all images of ``label`` in ``split``; the folder is there even if it has none."""
        if split not in self._recipes:
            self._recipes[split] = self._content.recipe(split, 0, self._images[split])
        recipe = self._recipes[split]
        ids = np.flatnonzero(recipe.labels == label)
        folder = self._root / class_folder(split, label)
        folder.mkdir(parents=True)
        size = crc = 0
        for index in ids.tolist():
            image = self._content.draw(recipe[index : index + 1])[0]
            content = _encode(image)
            name = f"{index:08d}.jpg"
            (folder / name).write_bytes(content)
            size += len(content)
            crc = folder_crc(crc, name, content)
        return {"files": len(ids), "size_bytes": size, "crc32": crc}


def _encode(image: np.ndarray) -> bytes:
    """JPEG of a uint8 image (C, H, W)."""
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def write(
    content: Content, root: Path, images: dict[str, int], workers: int, keep_fds: tuple[int, ...]
) -> Records:
    """Write all splits under ``root``; see :mod:`ddlbench.datasets.formats`."""
    jobs = [(split, label) for split in images for label in range(content.spec.num_classes)]
    if workers <= 1:
        folders = ClassFolders(content, root, images)
        records = [folders.write(split, label) for split, label in jobs]
    else:
        records = write_class_folders(
            content, root, images, jobs, workers=workers, keep_fds=keep_fds
        )
    return {class_folder(*job): record for job, record in zip(jobs, records, strict=True)}


def read(root: Path, spec: DatasetSpec, split: str) -> FileSplit:
    """List one split under ``root``.

    Raises:
        DataError: the folder is missing, empty, or has more classes than ``spec``.

    """
    folder = root / split
    try:
        with os.scandir(folder) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
        names: list[bytes] = []
        counts = []
        for name in classes:
            with os.scandir(folder / name) as entries:
                found = sorted(entry.name for entry in entries if _is_image(entry.name))
            names.extend(os.fsencode(file) for file in found)
            counts.append(len(found))
    except FileNotFoundError as error:
        raise DataError(f"{folder} is missing; check the data source") from error
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror})") from error
    if not names:
        raise DataError(f"{folder} holds no images in class folders; check the data source")
    if len(classes) > spec.num_classes:
        raise DataError(
            f"{folder} has {len(classes)} class folders, but {spec.label} has "
            f"{spec.num_classes} classes; check the data source"
        )
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return FileSplit(folder, classes, np.array(names, dtype=np.bytes_), labels)


def _is_image(name: str) -> bool:
    return name.lower().endswith(_EXTENSIONS)


def decode(path: Path, spec: DatasetSpec) -> np.ndarray:
    """Decode the image in ``path`` as uint8 (C, H, W) of ``spec``'s shape.

    An image of another size is scaled until its shorter side fits, then cropped at the centre.

    Raises:
        DataError: the file cannot be read or decoded.

    """
    try:
        with Image.open(path) as opened:
            image = opened.convert("L" if spec.channels == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable image ({error}); replace it") from error
    if image.size != (spec.width, spec.height):
        factor = max(spec.width / image.width, spec.height / image.height)
        wide = max(spec.width, round(image.width * factor))
        high = max(spec.height, round(image.height * factor))
        left, top = (wide - spec.width) // 2, (high - spec.height) // 2
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + spec.width, top + spec.height))
    pixels = np.asarray(image)
    return pixels[None] if spec.channels == 1 else pixels.transpose(2, 0, 1)
