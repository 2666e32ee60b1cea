"""Training state in a safetensors file, which holds only numbers and text, and never pickle.

::

    {"module": {"0.weight": tensor}, "lr": 0.1}
         |
    header   {"map": [["module", {"map": [["0.weight", {"tensor": "/module/0.weight"}]]}],
                      ["lr", 0.1]]}
    data     /module/0.weight

The structure around the tensors is JSON in the file's header. Reading parses and copies, but
executes nothing. Numbers keep every bit, keys of a mapping their type (int or str), and tuples stay
tuples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ddlbench.common.document import whole_file

_HEADER = "state"


class DamagedState(ValueError):  # noqa: N818 - what a file is
    """The file was not written by :func:`write_state`, or is damaged."""


def write_state(path: Path, state: Mapping[str, Any]) -> int:
    """Write ``state`` atomically; returns the file's size in bytes.

    Args:
        path: of the file; its folder is made.
        state: mappings (with keys of int or str), lists and tuples of tensors on any device,
            numbers, text, bool and None.

    Raises:
        TypeError: the state holds something else; the message says what, and where.
    """
    packer = _Packer()
    tree = packer.pack(state, "")
    header = {_HEADER: json.dumps(tree, separators=(",", ":"))}
    with whole_file(path) as beside:
        save_file(packer.tensors, str(beside), metadata=header)
        size = beside.stat().st_size
    return size


def read_state(path: Path, only: str | None = None) -> Any:
    """The state that was written, with tensors on the CPU; or only its entry ``only``.

    Raises:
        DamagedState: the file has another format, or its header and its tensors disagree.
        OSError: the file cannot be read.
    """
    path.stat()  # raises FileNotFoundError, whatever the library would raise
    try:
        with safe_open(str(path), framework="pt") as file:
            tree = json.loads((file.metadata() or {})[_HEADER])
            if only is not None:
                tree = next(part for key, part in tree["map"] if key == only)
            # The library's tensors are views of the file, which will be deleted.
            return _unpack(tree, lambda name: file.get_tensor(name).clone())
    except (SafetensorError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise DamagedState(f"{path} is no checkpoint that can be read: {error}") from error


class _Packer:
    """Splits a state into its structure and its tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            while place in self.tensors:  # keys with a slash can give two tensors the same place
                place += "~"
            self.tensors[place] = self._own(value)
            return {"tensor": place}
        if isinstance(value, Mapping):
            for key in value:
                if isinstance(key, bool) or not isinstance(key, int | str):
                    raise TypeError(f"the state has a key {key!r} in {place or 'its top'}")
            return {"map": [[key, self.pack(v, f"{place}/{key}")] for key, v in value.items()]}
        if isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.pack(v, f"{place}/{i}") for i, v in enumerate(value)]}
        raise TypeError(
            f"the state holds a {type(value).__name__} in {place or 'its top'}, which cannot be "
            "written without pickle; make it of tensors, numbers and texts"
        )

    def _own(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU, contiguous, in memory that it shares with no other tensor."""
        own = tensor.detach().to("cpu").contiguous()
        address = own.untyped_storage().data_ptr()
        if address in self._storages:
            own = own.clone()
        self._storages.add(address)
        return own


def _unpack(tree: Any, tensor: Callable[[str], Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensor(value)
    if kind == "map":
        return {key: _unpack(part, tensor) for key, part in value}
    if kind not in ("list", "tuple"):
        raise KeyError(kind)
    parts = [_unpack(part, tensor) for part in value]
    return tuple(parts) if kind == "tuple" else parts
