"""Synthetic images: smooth colour patterns that identify their class, moved, plus noise.

Image ``i`` of a split depends on (dataset, seed, split, i) only, not on the scale, the format, or
the writer::

    planes   a few smooth, periodic grey patterns, shared by all classes
    class    one plane a channel, chosen so that two classes agree in at most one channel
    image    its class's planes, moved by a few pixels, plus a slice of a bank of noise

The labels of each run of ``num_classes`` images are a shuffle of all classes, so any
prefix is balanced. Images of a class take slices at distinct places of the bank (a stride modulo
a prime), so no two images are equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ddlbench.experiment.dataset_spec import DatasetSpec

CONTENT_VERSION = 1  # raise it when any byte of any image changes

_SLICES = 1_048_573  # places a slice of noise can begin; the largest prime under 2**20
_MAX_PLANES = 37
_WAVES = 6
_MAX_FREQUENCY = 3
_SIGNAL = (16, 168)  # grey levels of a plane; with the noise below, sums stay under 256
_NOISE_LEVELS = 72
_BRIGHTNESS_LEVELS = 16
_BRIGHTNESS_PERIOD = 1 << 18  # places of the bank; longer than an image of MNIST or CIFAR
_COS_ONE = 1 << 12  # waves are summed in integers, alike on every processor


@dataclass(frozen=True)
class Recipe:
    """Parameters of some images; every array is int64 of shape (n,).

    Args:
        labels: the class.
        shifts: how far the planes are moved, in places of a flattened plane.
        slices: where in the bank the noise begins.
    """

    labels: np.ndarray
    shifts: np.ndarray
    slices: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: slice | np.ndarray) -> Recipe:
        return Recipe(self.labels[which], self.shifts[which], self.slices[which])


class Content:
    """The images of a synthetic dataset; the seed decides patterns, labels and noise."""

    def __init__(self, spec: DatasetSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._name = (spec.name, seed)
        self._plane_size = spec.rows * spec.width
        num_planes = _num_planes(spec)
        self._codes = _class_codes(spec.num_classes, spec.channels, num_planes).tolist()
        # Two copies in a row: a moved plane is then one contiguous slice.
        self._planes = np.tile(self._draw_planes(num_planes), 2)
        self._noise = self._draw_noise()

    def labels(self, split: str, first: int, count: int) -> np.ndarray:
        """Labels of images ``first`` to ``first + count`` of ``split``; int64 of shape (count,)."""
        classes = self.spec.num_classes
        group, skip = divmod(first, classes)
        groups = -(-(skip + count) // classes)
        words = CounterRng(*self._name, split, "labels")
        return words.permutations(group, groups, classes).ravel()[skip : skip + count]

    def recipe(self, split: str, first: int, count: int) -> Recipe:
        """Recipe of images ``first`` to ``first + count`` of ``split`` ("train" or "val")."""
        spec = self.spec
        labels = self.labels(split, first, count)
        words = CounterRng(*self._name, split, "shifts").take(first, count)
        reach_y, reach_x = round(spec.rows / 14), round(spec.width / 14)
        moved_y = (words & 0xFFFFFFFF).astype(np.int64) % (2 * reach_y + 1) - reach_y
        moved_x = (words >> np.uint64(32)).astype(np.int64) % (2 * reach_x + 1) - reach_x
        shifts = (moved_y * spec.width + moved_x) % self._plane_size
        # An image is the only one of its class in its run of num_classes images, so the run's
        # number, counted down for "val", is its own within the class.
        number = np.arange(first, first + count) // spec.num_classes
        number = number if split == "train" else _SLICES - 1 - number
        per_class = CounterRng(*self._name, "slices").take(0, 2 * spec.num_classes)
        begin = (per_class[0::2] % np.uint64(_SLICES)).astype(np.int64)
        stride = (per_class[1::2] % np.uint64(_SLICES - 1)).astype(np.int64) + 1
        return Recipe(labels, shifts, (begin[labels] + number * stride[labels]) % _SLICES)

    def draw(self, recipe: Recipe, out: np.ndarray | None = None) -> np.ndarray:
        """Draws images into ``out``, or a new array: uint8 (n, C, H, W), C-contiguous."""
        shape = (len(recipe), *self.spec.shape)
        out = np.empty(shape, np.uint8) if out is None else out
        size, planes, noise = self._plane_size, self._planes, self._noise
        flat = out.reshape(shape[0], shape[1], size)
        columns = (recipe.labels.tolist(), recipe.shifts.tolist(), recipe.slices.tolist())
        for image, label, shift, place in zip(flat, *columns, strict=True):
            start = place
            for target, plane in zip(image, self._codes[label], strict=True):
                np.add(planes[plane, shift : shift + size], noise[start : start + size], out=target)
                start += size
        return out

    def _draw_planes(self, count: int) -> np.ndarray:
        """Smooth periodic patterns, uint8 of shape (count, H * W)."""
        spec = self.spec
        words = CounterRng(*self._name, "planes").take(0, count * _WAVES * 4)
        draws = words.reshape(count, _WAVES, 4)
        low, high = _SIGNAL
        planes = np.empty((count, self._plane_size), np.uint8)
        for plane, waves in zip(planes, draws, strict=True):
            frequency_y = (waves[:, 0] % np.uint64(_MAX_FREQUENCY + 1)).astype(np.int64)
            frequency_x = (waves[:, 1] % np.uint64(2 * _MAX_FREQUENCY + 1)).astype(np.int64)
            frequency_x -= _MAX_FREQUENCY
            frequency_x[(frequency_y == 0) & (frequency_x == 0)] = 1
            phase = (waves[:, 2] >> np.uint64(32)).astype(np.float64) / 2.0**32
            height = 2 + (waves[:, 3] % np.uint64(3)).astype(np.int64)
            y = np.arange(spec.rows)[:, None] / spec.rows * frequency_y + phase
            x = (np.arange(spec.width)[:, None] / spec.width * frequency_x).T
            # cos(a + b) = cos a cos b - sin a sin b: a sum of outer products.
            left = np.hstack([_table(np.cos, y) * height, _table(np.sin, y) * -height])
            right = np.vstack([_table(np.cos, x), _table(np.sin, x)])
            total = left @ right
            total -= total.min()
            plane[:] = (low + total * (high - low) // max(1, int(total.max()))).ravel()
        return planes

    def _draw_noise(self) -> np.ndarray:
        """The bank of noise, uint8; its slow rise and fall makes images light or dark."""
        length = _SLICES + self.spec.image_bytes
        words = CounterRng(*self._name, "noise").take(0, -(-length // 8))
        noise = words.astype("<u8", copy=False).view(np.uint8)[:length].astype(np.uint16)
        half = _BRIGHTNESS_PERIOD // 2
        rise = np.abs(np.arange(length) % _BRIGHTNESS_PERIOD - half) * _BRIGHTNESS_LEVELS
        return ((noise * _NOISE_LEVELS >> 8) + rise // (half + 1)).astype(np.uint8)


def _table(function: np.ufunc, turns: np.ndarray) -> np.ndarray:
    """``function`` of an angle in turns, as int64 in units of 1 / 4096."""
    return np.rint(function(2 * np.pi * turns) * _COS_ONE).astype(np.int64)


def _num_planes(spec: DatasetSpec) -> int:
    """The smallest prime number of planes that gives every class its own code."""
    needed = spec.num_classes if spec.channels == 1 else int(np.ceil(np.sqrt(spec.num_classes)))
    number = max(3, needed, min(spec.num_classes, _MAX_PLANES))
    while any(number % factor == 0 for factor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


def _class_codes(num_classes: int, channels: int, num_planes: int) -> np.ndarray:
    """The plane of every class and channel; int64 (num_classes, channels).

    Class ``q * p + r`` has plane ``(r + channel * q) mod p``: with ``p`` prime and at least as
    many planes as channels, two classes agree in at most one channel.
    """
    high, low = np.divmod(np.arange(num_classes), num_planes)
    spread = np.arange(channels)
    # With one row only (q = 0) all channels would be alike: begin with q = 1.
    first = 0 if channels == 1 else 1
    return (low[:, None] + spread * (high[:, None] + first)) % num_planes


_WORDS_PER_COUNT = 4  # Philox 4x64 makes four words a counter value


class CounterRng:
    """An endless sequence of random 64-bit words named by ``parts``, read from any place.

    Philox is a counter generator: its output at place ``k`` depends on the key and ``k`` alone, so
    writers need no order. Only raw 64-bit words are used (their values are fixed by the algorithm,
    while the methods of ``numpy.random.Generator`` may change between numpy versions).

    Args:
        parts: name of the sequence, e.g. ``("mnist", 7, "labels")``; sequences of different
            names are independent.
    """

    def __init__(self, *parts: str | int) -> None:
        name = "\0".join(str(part) for part in parts).encode()
        self._key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")

    def take(self, first: int, count: int) -> np.ndarray:
        """Words ``first`` to ``first + count``, uint64 of shape (count,)."""
        counter, skip = divmod(first, _WORDS_PER_COUNT)
        bits = np.random.Philox(key=self._key, counter=counter)
        return bits.random_raw(skip + count)[skip:]

    def permutations(self, first: int, count: int, size: int) -> np.ndarray:
        """Permutations ``first`` to ``first + count`` of ``range(size)``, int64 (count, size)."""
        words = self.take(first * size, count * size).reshape(count, size)
        return np.argsort(words, axis=1, kind="stable")
