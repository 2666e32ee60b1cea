"""Training state in a file that holds numbers and texts only: safetensors, never pickle.

::

    {"module": {"0.weight": tensor}, "lr": 0.1}
         |
    header   {"map": [["module", {"map": [["0.weight", {"tensor": "/module/0.weight"}]]}],
                      ["lr", 0.1]]}
    data     /module/0.weight

Tensors are the file's own; what is around them is JSON in the file's header. Reading it parses and
copies, and executes nothing. Numbers come back bit for bit, keys of a mapping as whole numbers or
texts, and tuples as tuples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ddlbench.experiment.document import whole_file

_HEADER = "state"


class DamagedState(ValueError):  # noqa: N818 - what a file is
    """The file is none that :func:`write_state` writes."""


def write_state(path: Path, state: Mapping[str, Any]) -> int:
    """Write ``state`` whole or not at all; returns the file's bytes.

    Args:
        path: of the file; its folder is made.
        state: mappings (of whole numbers or texts), lists and tuples of tensors on any device,
            numbers, texts, truth values and None.

    Raises:
        TypeError: something in it is none of these; the sentence says what, and where.
    """
    packer = _Packer()
    tree = packer.pack(state, "")
    header = {_HEADER: json.dumps(tree, separators=(",", ":"))}
    with whole_file(path) as beside:
        save_file(packer.tensors, str(beside), metadata=header)
        size = beside.stat().st_size
    return size


def read_state(path: Path, only: str | None = None) -> Any:
    """What was written, tensors on the CPU; with ``only``, what stands under that key.

    Raises:
        DamagedState: the file is none of ours, or its header and its tensors do not agree.
        OSError: it cannot be read.
    """
    path.stat()  # a missing file is a missing file, whatever the library makes of it
    try:
        with safe_open(str(path), framework="pt") as file:
            tree = json.loads((file.metadata() or {})[_HEADER])
            if only is not None:
                tree = next(part for key, part in tree["map"] if key == only)
            # The library's tensors are views of the file, which is deleted one day.
            return _unpack(tree, lambda name: file.get_tensor(name).clone())
    except (SafetensorError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise DamagedState(f"{path} is no checkpoint that can be read: {error}") from error


class _Packer:
    """Takes a state apart."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            while place in self.tensors:  # a slash in a key can make two places one
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
        """On the CPU, contiguous, in memory that no other tensor of the file has."""
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
