"""How gradients are grouped: sizes by hand, and no second place with a size of its own."""

from __future__ import annotations

import re
from pathlib import Path

import ddlbench
from ddlbench.planning.step import buckets, buckets_once_full
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES


def grouped(groups, sizes):
    return [[sizes[index] for index in bucket] for bucket in groups]


def test_buckets_hold_neighbours_up_to_their_size():
    sizes = [12, 12, 36, 4, 4, 8]
    kinds = ["float32"] * 5 + ["float64"]
    assert grouped(buckets(sizes, 24, kinds), sizes) == [[12, 12], [36], [4, 4], [8]]
    assert grouped(buckets(sizes, 24), sizes) == [[12, 12], [36], [4, 4, 8]]
    assert buckets([], 24) == []


def test_ddp_closes_a_bucket_once_it_is_full():
    sizes = [1, 2, 3, 4, 5]
    assert grouped(buckets_once_full(sizes, 6, 2), sizes) == [[1, 2], [3, 4], [5]]
    assert grouped(buckets_once_full(sizes, 6, 6), sizes) == [[1, 2, 3], [4, 5]]
    assert buckets_once_full([], 6, 2) == []


def test_25_mib_stand_in_one_place():
    assert DEFAULT_BUCKET_BYTES == 25 * 1024 * 1024
    spelt = [
        path.name
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        if re.search(r"25 \* (2\*\*20|1024)|26_?214_?400", path.read_text("utf-8"))
    ]
    assert spelt == ["workload.py"]
