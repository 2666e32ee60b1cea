"""Image files as arrays of one shape, with Pillow.

::

    +-----------------+
    |   :         :   |     scaled until the shorter side fits, and cropped at the centre: only what
    |   : scaled  :   |     stays is scaled, so a very long image costs no more than others
    +-----------------+

Modes that hold more than 8 bits a channel are scaled to 8 where their range is known; Pillow would
clip them. What a camera's EXIF tags say about rotation is ignored, as torchvision does.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from ddlbench.datasets.class_folders import IMAGE_FORMATS
from ddlbench.datasets.files import DataError
from ddlbench.experiment.dataset_spec import DatasetSpec

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_BITS_PER_SAMPLE = 258  # tag of TIFF
_INTEGER_IS_16_BITS = ("PNG", "PPM")  # formats whose images of mode I have 16 bits


def decode(place: str, file: Path | bytes, spec: DatasetSpec) -> np.ndarray:
    """Decodes an image file as uint8 (C, H, W) of ``spec``'s shape; ``place`` is for messages.

    Raises:
        DataError: it cannot be read or decoded, or its pixels have no known range.
    """
    try:
        source = io.BytesIO(file) if isinstance(file, bytes) else file
        with Image.open(source, formats=_formats()) as opened:
            image = _of_bytes(opened, "L" if spec.channels == 1 else "RGB", place)
            image = _fitted(image, spec.width, spec.height)
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{place} is not a readable image ({error}); replace it, and find "
            "others like it: ddlbench check --data"
        ) from error
    pixels = np.asarray(image)
    return pixels[None] if spec.channels == 1 else pixels.transpose(2, 0, 1)


def _of_bytes(image: Image.Image, mode: str, place: str) -> Image.Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _INTEGER_IS_16_BITS):
        numbers = np.asarray(image).astype(np.uint32)
        bits = _bits(image)
        if bits == 16 and 0 < numbers.max() < 256:
            raise DataError(
                f"{place} holds numbers of 16 bits, none of them over {numbers.max()}, so it would "
                "be black; write images of 8 bits"
            )
        return Image.fromarray((numbers >> (bits - 8)).astype(np.uint8)).convert(mode)
    if image.mode in ("I", "F"):
        kind = "whole numbers of 32 bits" if image.mode == "I" else "floating-point numbers"
        raise DataError(
            f"{place} holds {kind}, whose range the file does not tell; write images of 8 bits"
        )
    return image.convert(mode)


def _bits(image: Image.Image) -> int:
    """Bits of a number that a TIFF file tells, else 16."""
    stated = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, 16)
    bits = stated[0] if isinstance(stated, tuple) else stated
    return int(bits) if 8 <= bits <= 16 else 16


@cache
def _formats() -> tuple[str, ...]:
    """Formats that Pillow reads by itself; of others, as PostScript, it starts a program."""
    Image.init()
    return tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)


def _fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """The centre of the image, as much of it as has the shape, in that size."""
    if image.size == (width, height):
        return image
    factor = max(width / image.width, height / image.height)
    across, down = width / factor, height / factor
    left, top = (image.width - across) / 2, (image.height - down) / 2
    box = (
        max(0.0, left),
        max(0.0, top),
        min(float(image.width), left + across),
        min(float(image.height), top + down),
    )
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)
