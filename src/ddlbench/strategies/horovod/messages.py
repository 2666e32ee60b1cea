"""When Horovod's all-reduces begin and end, seen in one step that is recorded.

::

    gradients   | g3 asked for | g2 | g1 |      | g0 |           hooks of hvd.DistributedOptimizer
    messages    |------- 0: g3 g2 g1 -----|     |-- 1: g0 --|    fused by Horovod's own thread

Horovod does not say which gradients it fuses, but those of one message are done at the same time.
So a thread asks again and again which all-reduces are done, and those that are found done together
count as one message. It begins when its first gradient was asked for. Two messages that end within
one look, a tenth of a millisecond, are taken for one.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from ddlbench.strategies.timing import SpanRecorder

__all__ = ["MessageWatcher"]

_LOOK_S = 1e-4


class MessageWatcher:
    """Watches the all-reduces of one step between enter and exit.

    Args:
        hvd: the module ``horovod.torch``.
        optimizer: ``hvd.DistributedOptimizer``, whose hooks ask for all-reduces.
        spans: gets one span a message.
    """

    def __init__(self, hvd: Any, optimizer: Any, spans: SpanRecorder) -> None:
        self._hvd, self._optimizer, self._spans = hvd, optimizer, spans
        self._under_way: dict[int, float] = {}
        self._messages = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MessageWatcher:
        """Listen to what the hooks ask for."""
        ask = self._optimizer._allreduce_grad_async

        def ask_and_note(parameter: Any) -> tuple[int, Any]:
            begin_s = time.perf_counter()
            handle, context = ask(parameter)
            with self._lock:
                self._under_way[handle] = begin_s
                self._idle.clear()
            return handle, context

        self._optimizer._allreduce_grad_async = ask_and_note
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the hooks as they were."""
        self._stop.set()
        self._thread.join()
        del self._optimizer._allreduce_grad_async

    def wait(self) -> None:
        """Return once all that was asked for is done; only then may Horovod forget it."""
        self._idle.wait()

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_S):
            with self._lock:
                done = [handle for handle in self._under_way if self._hvd.poll(handle)]
                if not done:
                    continue
                begin_s = min(self._under_way.pop(handle) for handle in done)
                kind = f"all_reduce_bucket {self._messages}.0"
                self._spans.beside(kind, begin_s, time.perf_counter())
                self._messages += 1
                if not self._under_way:
                    self._idle.set()
