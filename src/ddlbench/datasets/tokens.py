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

from functools import partial
from pathlib import Path

import numpy as np

from ddlbench.common.quantities import counted
from ddlbench.datasets.class_folders import (
    SPLIT_NAMES,
    deeper,
    lies_there,
    listed,
    names_in,
    unpack_hint,
)
from ddlbench.datasets.files import (
    HELD_OUT,
    CheckedFile,
    DataError,
    Record,
    Records,
    TokenSplit,
    in_parallel,
)
from ddlbench.datasets.synthetic import CounterRng
from ddlbench.experiment.dataset_spec import DatasetSpec

RUN = 8192
"""Tokens from one beginning of the chain to the next."""

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
    """The file of a split of the user's own tokens, relative to the root; "" if that is a file.

    Raises:
        DataError: there is none, or one of each width.
    """
    if root.is_file():
        return [""]
    names = _names(split)
    there = [name for name in names if (root / name).is_file()]
    if len(there) > 1:
        raise DataError(f"{root} holds {there[0]} and {there[1]}; keep the right file of them")
    if not there:
        raise DataError(_missing(root, names[0], split))
    return there


def _missing(root: Path, name: str, split: str) -> str:
    wanted = f"{root / name} is missing"
    if (hint := unpack_hint(root)) is not None:
        return f"{wanted}; {hint}"
    usual = {file_name(either, width) for either in ("train", "val") for width in _SUFFIXES}
    others = [other for other in names_in(root) if other.endswith(".bin") and other not in usual]
    if others:
        return f"{wanted}: {root} holds {listed(others)}; name the {split} split {name}"
    holder = deeper(root, lambda folder: (folder / name).is_file())
    if holder is not None:
        return f"{wanted}; give {holder}, which holds {name}"
    return (
        f"{wanted}: {lies_there(root)}; write token numbers into {file_name('train', 2)} and "
        f"{file_name('val', 2)}, or both of uint32"
    )


def read(root: Path, spec: DatasetSpec, split: str) -> TokenSplit:
    """Maps one split of tokens under ``root`` into memory.

    ``root`` may be a file, or hold no validation split, where a configuration declares it; then the
    last tenth of the sequences is held out.

    Raises:
        DataError: the file is missing or unreadable, is too small, or holds something else than
            tokens of its width.
    """
    assert spec.sequence_length is not None
    shared = bool(spec.source) and not _has_split(root, "val")
    path = root / own_files(root, "train" if shared else split)[0]
    whole = TokenSplit(_map(path, _token_bytes(path, spec), spec), spec.sequence_length)
    if shared and len(whole) < HELD_OUT:
        raise DataError(
            f"{path} has {counted(len(whole), 'sequence')} of {spec.sequence_length} tokens and no "
            f"validation split; write tokens of {HELD_OUT} sequences or more"
        )
    return whole.part(split) if shared else whole


def _has_split(root: Path, split: str) -> bool:
    return root.is_dir() and any((root / name).is_file() for name in _names(split))


def _names(split: str) -> list[str]:
    """Names that the file of a split may have, the usual one first."""
    words = SPLIT_NAMES[split]
    return [file_name(word, token_bytes) for word in words for token_bytes in _SUFFIXES]


def _token_bytes(path: Path, spec: DatasetSpec) -> int:
    """Bytes of a token: 4 in files called so, and in a single file of a large vocabulary."""
    if path.name.endswith(_SUFFIXES[4]):
        return 4
    is_of_a_split = path.name in (*_names("train"), *_names("val"))
    return 2 if is_of_a_split else spec.token_bytes


def _map(path: Path, token_bytes: int, spec: DatasetSpec) -> np.ndarray:
    assert spec.sequence_length is not None
    try:
        size = path.stat().st_size
        if size % token_bytes:
            raise DataError(
                f"{path} has {size} bytes, which are no whole tokens of {token_bytes} bytes; write "
                f"uint16 numbers into {file_name('train', 2)}, or uint32 into "
                f"{file_name('train', 4)}"
            )
        if size // token_bytes <= spec.sequence_length:
            raise DataError(
                f"{path} has {counted(size // token_bytes, 'token')}, but one sequence of "
                f"{spec.label} takes {spec.sequence_length + 1}, its last label included; write "
                "more tokens"
            )
        tokens = np.asarray(np.memmap(path, f"<u{token_bytes}", "r"))
        problem = _not_tokens(path, tokens, spec.num_classes)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); give a folder that holds "
            f"{file_name('train', 2)} and {file_name('val', 2)}, or both of uint32"
        ) from error
    if problem is not None:
        raise DataError(f"{path} {problem}")
    return tokens


def check(root: Path, spec: DatasetSpec, split: str) -> None:
    """Reads all tokens of a split of the user's own.

    Raises:
        DataError: as :func:`read`, or a token is outside the vocabulary.
    """
    tokens = read(root, spec, split).tokens
    shared = bool(spec.source) and not _has_split(root, "val")
    path = root / own_files(root, "train" if shared else split)[0]
    kind = f"little-endian uint{8 * tokens.dtype.itemsize}"
    check_vocabulary(tokens, spec, path, read_as=kind)


def check_vocabulary(
    tokens: np.ndarray, spec: DatasetSpec, path: Path, before: int = 0, read_as: str = ""
) -> None:
    """Refuses a token outside the vocabulary; ``before`` these tokens lie so many others.

    ``read_as`` is the kind of a file's numbers, where the file does not tell it.

    Raises:
        DataError: there is one.
    """
    for first in range(0, len(tokens), _CHECKED_AT_ONCE):
        some = np.asarray(tokens[first : first + _CHECKED_AT_ONCE])
        wrong = np.flatnonzero((some < 0) | (some >= spec.num_classes))
        if len(wrong):
            larger = "correct the" if spec.source else "take a dataset with a larger"
            kind = f", or write the numbers as {read_as}, if they are not" if read_as else ""
            raise DataError(
                f"{path} has token {some[wrong[0]]} at place {before + first + wrong[0]}, but the "
                f"vocabulary of {spec.label} has {spec.num_classes} tokens; write tokens from 0 to "
                f"{spec.num_classes - 1}, or {larger} vocabulary{kind}"
            )


_BEGINNINGS = {
    b"\x93NUMPY": "is a file of numpy; write its numbers with tofile",
    b"PK\x03\x04": "is a zip archive, as torch and numpy save them; write plain token numbers",
    b"\x1f\x8b": "is packed by gzip; gunzip it",
    b"\x80\x04\x95": "is a pickle; write plain token numbers, as numpy's tofile does",
    b"\x80\x05\x95": "is a pickle; write plain token numbers, as numpy's tofile does",
    b"\x88\xd8\x34\x01": "has llm.c's header; cut its 1024 bytes: tail -c +1025",
    b"\x89HDF": "is an HDF5 file; write plain token numbers",
    b"ARROW1": "is an Arrow file; give it as a saved Hugging Face dataset, or as Parquet",
    b"\x28\xb5\x2f\xfd": "is packed by zstd; unpack it: zstd -d",
    b"PAR1": "is a Parquet file; give it as a folder of Parquet files",
}
_SAMPLE = 1 << 20  # tokens that are looked at for their width
_FEWEST = 64
_MANY, _NEARLY_ALL = 0.1, 0.999  # shares of tokens


def _not_tokens(path: Path, tokens: np.ndarray, vocabulary: int) -> str | None:
    """What a file holds that is no token numbers of the width of ``tokens``; None if it does."""
    if (problem := _of_another_kind(path)) is not None:
        return problem
    sample = tokens[:_SAMPLE]
    if len(sample) < _FEWEST:
        return None
    if not sample.any() and not tokens.any():
        return "holds nothing but zeros, as a file that was not copied whole"
    return _wider(path, sample) or _narrower(sample, vocabulary)


def _of_another_kind(path: Path) -> str | None:
    """Which other kind of file it is; None if nothing tells."""
    with path.open("rb") as file:
        head = file.read(16)
    for beginning, problem in _BEGINNINGS.items():
        if head.startswith(beginning):
            return problem
    if head[8:10] == b'{"':
        return "is a safetensors file; write plain token numbers"
    if path.with_suffix(".idx").is_file():
        return (
            f"has {path.with_suffix('.idx').name} beside it, so it is Megatron's; write its tokens "
            f"without documents, as uint16 or uint32"
        )
    return None


def _wider(path: Path, sample: np.ndarray) -> str | None:
    """Which wider numbers these are halves or quarters of, or of which order; None if of none.

    Text has no rhythm of 2 or 4 tokens. The upper halves of wider numbers do: they are mostly 0.
    """
    width = sample.dtype.itemsize
    zeros = [float(np.mean(sample[place::4] == 0)) for place in range(4)]
    if max(zeros) - min(zeros) <= 0.3 or max(zeros) <= 0.5:
        if (sample & 255).any():
            return None
        return "holds numbers in big-endian order; write them in little-endian order"
    nulls = sum(share > 0.5 for share in zeros)
    bytes_each = width * (4 if nulls == 3 else 2)
    order = " in big-endian order" if zeros[0] > 0.5 else ""
    name = path.name.removesuffix(".bin").removesuffix(".uint32") + ".uint32.bin"
    if (bytes_each, order) == (4, ""):
        cure = f"name it {name}"
    else:
        cure = f"write them in little-endian order as uint16, or as uint32 into {name}"
    return f"holds numbers of {bytes_each} bytes{order}, not of {width}; {cure}"


def _narrower(sample: np.ndarray, vocabulary: int) -> str | None:
    """Which narrower numbers these are pairs of, or of which order; None if nothing tells it.

    A few tokens outside the vocabulary tell nothing: the vocabulary may be wrong, or they.
    """
    octets = np.ascontiguousarray(sample).view(np.uint8)
    printable = ((octets >= 32) & (octets < 127)) | np.isin(octets, (9, 10, 13))
    if printable.mean() > 0.97:
        return "holds text, not token numbers; tokenise it first"
    width = sample.dtype.itemsize
    many_outside = np.mean(sample >= vocabulary) > _MANY
    if many_outside and np.mean(sample.byteswap() < vocabulary) > _NEARLY_ALL:
        return "seems to hold numbers in big-endian order; write them in little-endian order"
    parts = np.ascontiguousarray(sample).view(f"<u{width // 2}")
    # Tokens over 255 have low bytes of any value, and all bytes fit a larger vocabulary.
    tells = many_outside if width == 4 or vocabulary <= 256 else octets.max() < 128
    if tells and np.mean(parts < vocabulary) > _NEARLY_ALL and _are_alike(parts[::2], parts[1::2]):
        kind = "1 byte" if width == 2 else f"{width // 2} bytes"
        return f"seems to hold numbers of {kind}, not of {width}; write them as uint{8 * width}"
    return None


def _are_alike(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether numbers may be of one kind: halves of one number are not, as the upper is smaller."""
    apart = abs(float(first.mean()) - float(second.mean()))
    return apart < 0.25 * min(float(first.std()), float(second.std()))
