"""Small folders of one's own data, as people keep them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def picture(label: int, number: int, size: tuple[int, int] = (12, 10)) -> Image.Image:
    """An image whose colour channel ``label`` is bright."""
    pixels = np.full((size[1], size[0], 3), 20 + number, np.uint8)
    pixels[..., label % 3] = 200
    return Image.fromarray(pixels)


def class_folders(
    root: Path,
    classes: tuple[str, ...] = CLASSES,
    splits: tuple[str, ...] = ("train", "val"),
    each: int = 4,
) -> Path:
    """Images in ``<split>/<class>/<number>.png``; of no split where its name is empty."""
    for split in splits:
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                picture(label, number).save(folder / f"{number:03}.png")
    return root
