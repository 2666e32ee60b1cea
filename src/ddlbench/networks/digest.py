"""A digest of a network's state: the same for the same weights and buffers, bit for bit.

Ranks and cells that begin with other weights train something else, so every cell keeps the digest
of what it began with. Hashing a gigabyte would take seconds. So large tensors are folded first, at
the speed of memory: rows of 32 KiB are added up as whole numbers, and the sum is hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_ROW_WORDS = 4096  # of 8 bytes
_ROWS_AT_ONCE = 64  # 2 MiB, which caches hold


def state_digest(network: nn.Module) -> str:
    """16 hexadecimal digits of all parameters and buffers, their names, shapes and types."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in _folded(tensor.detach()):
            digest.update(part.numpy().data)
    return digest.hexdigest()


def _folded(tensor: Tensor) -> Iterator[Tensor]:
    """At most one row, and the rest; each byte counts, with its place."""
    values = tensor.cpu().contiguous().view(-1)
    if not values.numel():
        return
    words = values.view(torch.uint8)
    row_bytes = 8 * _ROW_WORDS
    whole = words.numel() // row_bytes * row_bytes
    if whole:
        rows = words[:whole].view(torch.int64).view(-1, _ROW_WORDS)
        total = torch.zeros(_ROW_WORDS, dtype=torch.int64)
        for number, some in enumerate(rows.split(_ROWS_AT_ONCE)):
            # Odd factors tell rows that changed places.
            factors = 2 * torch.arange(len(some)) + 2 * _ROWS_AT_ONCE * number + 1
            total += (some * factors[:, None]).sum(0)
        yield total
    yield words[whole:]
