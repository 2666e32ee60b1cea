"""Image files as arrays: every mode of Pillow is scaled or refused, and never clipped."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddlbench.datasets.decoding import decode
from ddlbench.datasets.files import DataError
from ddlbench.experiment.dataset_spec import DATASETS

SPEC = replace(DATASETS["imagenet"], height=8, width=8)
GREY = replace(SPEC, channels=1)
RAMP = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)


@pytest.mark.parametrize("spec", [SPEC, GREY])
@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled(spec, ending, tmp_path):
    path = tmp_path / f"x.{ending}"
    if ending == "pgm":
        path.write_bytes(b"P5 8 8 65535\n" + RAMP.astype(">u2").tobytes())
    else:
        Image.fromarray(RAMP).save(path)
    pixels = decode("x", path, spec)
    assert pixels.shape == (spec.channels, 8, 8)
    for channel in pixels:
        assert np.array_equal(channel, RAMP >> 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (RAMP.astype(np.float32) / 65535, "floating-point numbers, whose range"),
        (RAMP.astype(np.int32) * 1000, "whole numbers of 32 bits, whose range"),
    ],
)
def test_numbers_of_unknown_range_are_refused(values, message, tmp_path):
    Image.fromarray(values).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=message):
        decode("x", tmp_path / "x.tif", SPEC)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_eight_bits_are_those_of_pillow(mode, tmp_path):
    image = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).convert(mode)
    path = tmp_path / ("x.tif" if mode in ("CMYK", "YCbCr") else "x.png")
    image.save(path)
    with Image.open(path) as opened:
        wanted = np.asarray(opened.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(decode("x", path, SPEC), wanted)
    assert np.array_equal(decode("a place", path.read_bytes(), SPEC), wanted)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (8, 90), (5, 5), (1, 3)])
def test_the_centre_is_scaled_as_by_scaling_all_and_cropping(size):
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (3, 3, 3), np.uint8)
    image = Image.fromarray(smooth).resize(size, Image.Resampling.BICUBIC)
    factor = max(8 / size[0], 8 / size[1])
    whole = image.resize((max(8, round(size[0] * factor)), max(8, round(size[1] * factor))),
                         Image.Resampling.BILINEAR)  # fmt: skip
    left, top = (whole.width - 8) // 2, (whole.height - 8) // 2
    cropped = np.asarray(whole.crop((left, top, left + 8, top + 8))).astype(int)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    ours = decode("x", buffer.getvalue(), SPEC).transpose(1, 2, 0).astype(int)
    assert np.abs(ours - cropped).mean() < 16  # they differ by up to half a pixel of place


def test_a_thin_image_takes_little_memory(tmp_path: Path):
    Image.new("RGB", (1, 60_000), (7, 8, 9)).save(tmp_path / "x.png")
    tracemalloc.start()
    pixels = decode("x", tmp_path / "x.png", DATASETS["imagenet"])
    assert pixels[:, 0, 0].tolist() == [7, 8, 9]
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
