"""Peak bytes of live tensors on CPU, where no allocator keeps count.

Every operation's result is seen by a dispatch mode; a storage counts from its birth until its
last reference goes. One step is run this way outside the timed region, as seeing costs time.
torchgpipe computes in threads of its own, so its partitions enter the mode themselves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveTensors"]


class LiveTensors:
    """Counts the bytes of distinct live storages.

    Attributes:
        current_bytes: now.
        peak_bytes: the largest value of it so far.
    """

    def __init__(self) -> None:
        self.current_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    def count(self, values: Iterable[Any]) -> None:
        """Count the tensors among ``values`` as live."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                self._count(value.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        with self._lock:
            if key in self._sizes:
                return
            self._sizes[key] = storage.nbytes()
            self.current_bytes += self._sizes[key]
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        with self._lock:
            self.current_bytes -= self._sizes.pop(key, 0)

    @contextmanager
    def watching(self, threaded: Iterable[nn.Module] = ()) -> Iterator[None]:
        """Count what is made in this thread, and inside ``threaded`` modules in any thread."""
        modes = threading.local()

        def enter(_module: nn.Module, _inputs: Any) -> None:
            modes.stack = [*getattr(modes, "stack", []), _Watch(self)]
            modes.stack[-1].__enter__()

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            modes.stack.pop().__exit__(None, None, None)

        hooks = []
        for module in threaded:
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
        try:
            with _Watch(self):
                yield
        finally:
            for hook in hooks:
                hook.remove()


class _Watch(TorchDispatchMode):
    """Shows every operation's results to a counter."""

    def __init__(self, tensors: LiveTensors) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        results = func(*args, **(kwargs or {}))
        self._tensors.count(tree_leaves(results))
        return results
