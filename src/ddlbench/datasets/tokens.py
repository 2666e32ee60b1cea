"""Sequences of tokens: files of token numbers, and synthetic text whose entropy is known.

::

    train.bin, val.bin                  uint16, little-endian, no header
    train.uint32.bin, val.uint32.bin    uint32, of vocabularies over 65,536

    stream   | t0 t1 ... t127 | t128 ... t255 | t256 ...      sequences of T = 128 tokens
    inputs   | t0 t1 ... t127 |
    labels     | t1 t2 ... t128 |                             the token that follows each

The text is a Markov chain. Behind token ``s`` comes ``follower[(s + j) mod V]``, where ``follower``
is a random permutation of the vocabulary and j is 0, 1, 2 or 3 with probability 1/2, 1/4, 1/8 and
1/8. So the entropy rate is 1.75 bits a token, which is 1.213 nats (Shannon 1948, section 7). All
tokens are equally frequent: whoever knows their frequencies only has a loss of ln V. The most
likely follower is right in half of all positions.

The chain begins anew every ``RUN`` tokens, so that writers need no order.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from ddlbench.datasets.files import CheckedFile, DataError, Record, Records, TokenSplit, in_parallel
from ddlbench.datasets.synthetic import CounterRng
from ddlbench.experiment.dataset_spec import DatasetSpec

RUN = 8192
"""Tokens from one beginning of the chain to the next."""

ENTROPY_RATE = 1.75 * math.log(2)
"""Nats a token: the loss of a network that knows the chain."""

BEST_ACCURACY = 0.5
"""Share of positions at which the most likely follower is right."""

_STEPS = np.array([0, 0, 0, 0, 1, 1, 2, 3])  # j of three random bits
_WORDS = RUN // 8  # a byte of random bits for each token
_RUNS_AT_ONCE = 256
_SUFFIXES = {2: "bin", 4: "uint32.bin"}
_CHECKED_AT_ONCE = 1 << 24


def file_name(split: str, token_bytes: int) -> str:
    """File of a split, whose tokens have 2 or 4 bytes."""
    return f"{split}.{_SUFFIXES[token_bytes]}"


class TokenContent:
    """The text of a synthetic dataset; the seed decides the chain and where it goes."""

    def __init__(self, spec: DatasetSpec, seed: int) -> None:
        self.spec = spec
        self._name = (spec.name, seed)
        self.follower = CounterRng(*self._name, "follower").permutations(0, 1, spec.num_classes)[0]

    def runs(self, split: str, first: int, count: int) -> np.ndarray:
        """Runs ``first`` to ``first + count`` of a split; int64 of shape (count, RUN)."""
        vocabulary = self.spec.num_classes
        begin = CounterRng(*self._name, split, "begin").take(first, count)
        words = CounterRng(*self._name, split, "steps").take(first * _WORDS, count * _WORDS)
        bits = words.astype("<u8", copy=False).view(np.uint8).reshape(count, RUN) & 7
        steps = _STEPS[bits.T]
        tokens = np.empty((RUN, count), np.int64)
        tokens[0] = begin % np.uint64(vocabulary)
        for place in range(1, RUN):
            tokens[place] = self.follower[(tokens[place - 1] + steps[place]) % vocabulary]
        return tokens.T


def write(
    content: TokenContent,
    root: Path,
    images: dict[str, int],
    workers: int,
    keep_fds: tuple[int, ...],
) -> Records:
    """Writes all splits under ``root``; see :mod:`ddlbench.datasets.formats`."""
    jobs = [partial(_write_split, content, root, split, count) for split, count in images.items()]
    return dict(in_parallel(jobs, workers))


def _write_split(
    content: TokenContent, root: Path, split: str, sequences: int
) -> tuple[str, Record]:
    spec = content.spec
    assert spec.sequence_length is not None
    left = sequences * spec.sequence_length + 1  # the last token is a label only
    name = file_name(split, spec.token_bytes)
    with CheckedFile(root / name) as file:
        for first in range(0, -(-left // RUN), _RUNS_AT_ONCE):
            runs = content.runs(split, first, min(_RUNS_AT_ONCE, -(-left // RUN)))
            part = runs.ravel()[:left]
            file.write(part.astype(f"<u{spec.token_bytes}").tobytes())
            left -= len(part)
    return name, file.record


def own_files(root: Path, split: str) -> list[str]:
    """The file of a split of the user's own tokens: of uint16, unless only the other is there."""
    names = [file_name(split, token_bytes) for token_bytes in _SUFFIXES]
    return [next((name for name in names if (root / name).exists()), names[0])]


def read(root: Path, spec: DatasetSpec, split: str) -> TokenSplit:
    """Maps one split of tokens under ``root`` into memory.

    Raises:
        DataError: the file is missing or unreadable, holds no whole tokens, or is too small.
    """
    (name,) = own_files(root, split)
    path = root / name
    token_bytes = 4 if name == file_name(split, 4) else 2
    assert spec.sequence_length is not None
    try:
        size = path.stat().st_size
        if size % token_bytes:
            raise DataError(
                f"{path} has {size} bytes, which are no whole tokens of {token_bytes} bytes; write "
                f"uint16 numbers into {file_name(split, 2)}, or uint32 into {file_name(split, 4)}"
            )
        if size // token_bytes <= spec.sequence_length:
            raise DataError(
                f"{path} has {size // token_bytes} tokens, but one sequence of {spec.label} takes "
                f"{spec.sequence_length + 1}, its last label included; write more tokens"
            )
        tokens = np.asarray(np.memmap(path, f"<u{token_bytes}", "r"))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); give a folder that holds "
            f"{file_name('train', 2)} and {file_name('val', 2)}, or both of uint32"
        ) from error
    return TokenSplit(tokens, spec.sequence_length)


def check(root: Path, spec: DatasetSpec, split: str) -> None:
    """Reads all tokens of a split of the user's own.

    Raises:
        DataError: as :func:`read`, or a token is outside the vocabulary.
    """
    tokens = read(root, spec, split).tokens
    for first in range(0, len(tokens), _CHECKED_AT_ONCE):
        wrong = np.flatnonzero(tokens[first : first + _CHECKED_AT_ONCE] >= spec.num_classes)
        if len(wrong):
            place = first + int(wrong[0])
            (name,) = own_files(root, split)
            raise DataError(
                f"{root / name} has token {tokens[place]} at place {place}, but the vocabulary of "
                f"{spec.label} has {spec.num_classes} tokens; write tokens from 0 to "
                f"{spec.num_classes - 1}, or take a dataset with a larger vocabulary"
            )
