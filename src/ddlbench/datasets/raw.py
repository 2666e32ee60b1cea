"""Our own fast format: decoded images in shards that are mapped into memory.

::

    index.json          shape, classes, and for each split its images, shards and labels
    train-00000.bin     uint8, (images, C, H, W), one after the other, no header
    train-labels.bin    int32, little-endian
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.document import read_object
from ddlbench.datasets.files import (
    ArraySplit,
    CheckedFile,
    DataError,
    Record,
    Records,
    in_parallel,
    write_checked,
)
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DatasetSpec

INDEX_NAME = "index.json"
_SHARD_BYTES = 64 << 20  # a shard is at least this large ...
_MAX_SHARDS = 512  # ... and larger where a split would have more than these
_BLOCK_BYTES = 1 << 20  # drawn at once: stays in a core's cache until it is written


def images_per_shard(spec: DatasetSpec, count: int) -> int:
    """Images of every shard but the last; depends on the split's size only."""
    return max(1, _SHARD_BYTES // spec.image_bytes, -(-count // _MAX_SHARDS))


def write(
    content: Content, root: Path, images: dict[str, int], workers: int, keep_fds: tuple[int, ...]
) -> Records:
    """Writes all splits under ``root``; see :mod:`ddlbench.datasets.formats`."""
    spec = content.spec
    index: dict[str, Any] = {"shape": list(spec.shape), "num_classes": spec.num_classes}
    jobs: list[Callable[[], tuple[str, Record]]] = []
    for split, count in images.items():
        step = images_per_shard(spec, count)
        names = []
        for number, first in enumerate(range(0, count, step)):
            names.append(f"{split}-{number:05d}.bin")
            span = first, min(first + step, count)
            jobs.append(partial(_write_shard, content, root, split, names[-1], span))
        label_name = f"{split}-labels.bin"
        labels = content.labels(split, 0, count).astype("<i4")
        jobs.append(partial(write_checked, root, label_name, labels.tobytes()))
        index[split] = {
            "images": count,
            "images_per_shard": step,
            "shards": names,
            "labels": label_name,
        }
    text = json.dumps(index, indent=1) + "\n"
    jobs.append(partial(write_checked, root, INDEX_NAME, text.encode()))
    # Twice as many threads: one draws while another waits for the disk.
    return dict(in_parallel(jobs, 2 * workers))


def _write_shard(
    content: Content, root: Path, split: str, name: str, span: tuple[int, int]
) -> tuple[str, Record]:
    first, end = span
    recipe = content.recipe(split, first, end - first)
    block = np.empty((max(1, _BLOCK_BYTES // content.spec.image_bytes), *content.spec.shape), "u1")
    with CheckedFile(root / name) as file:
        for start in range(0, len(recipe), len(block)):
            part = recipe[start : start + len(block)]
            file.write(content.draw(part, block[: len(part)]))
    return name, file.record


def read(root: Path, spec: DatasetSpec, split: str) -> ArraySplit:
    """Maps one split of raw shards under ``root`` into memory.

    Raises:
        DataError: a file is missing, truncated, or not of ``spec``'s shape.
    """
    path = root / INDEX_NAME
    try:
        index = read_object(path)
        shape, facts = tuple(index["shape"]), index[split]
        count, step = int(facts["images"]), int(facts["images_per_shard"])
        names = [Path(name).name for name in facts["shards"]]
        label_path = root / Path(facts["labels"]).name
        labels = np.fromfile(label_path, "<i4").astype(np.int64)
        if shape != spec.shape or len(labels) != count or len(names) != -(-count // step):
            raise DataError(f"{path} is not the index of {spec.label} images; stage the data again")
        shards = []
        for number, name in enumerate(names):
            held = min(step, count - number * step)
            if (root / name).stat().st_size != held * spec.image_bytes:
                raise DataError(f"{root / name} is truncated; stage the data again")
            mapped = np.memmap(root / name, np.uint8, "c", shape=(held, *spec.shape))
            shards.append(np.asarray(mapped))
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise DataError(f"{path} is not an index of raw images; stage the data again") from error
    return ArraySplit(shards, labels)
