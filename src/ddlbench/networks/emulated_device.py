"""Emulated devices in time: when each works, and when their process waits.

A process with one device waits for every work, as gloo and Horovod read its tensors at once::

    process   q.........q.........          q: the process starts a work; dots: it sleeps
    device    |-- F0 --||-- F1 --|

A process with several devices queues, as CUDA does, and sleeps only where it must know the result::

    process   qqqqqqqq....................  until all are idle: :meth:`QueuedDevices.wait`
    device 0  |-- F0 --||-- F1 --|          a work begins when it is queued, its device is idle,
    device 1            |-- F0 --||- F1 -|  and what it reads is there

A tensor that a queued work makes carries the number of the work in its first value, as a NaN of
IEEE 754 whose low bits are free. Clones, views and copies keep it, and no real number looks like
it; a tensor without it was made by the host, so it is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

# A device has no gap between two kernels that were queued in time. A host that takes longer than
# this to start the next work was busy with something else.
_QUEUED_S = 0.002

_QUIET_NAN = 0x7FC00000  # float32: sign 0, exponent all ones, quiet bit; 22 bits are left
_MOST_WORKS = 0x3FFFFF


class _Waited(threading.local):
    """When the device of this thread finished its last work, and how late the host noticed."""

    noticed_s = 0.0
    late_s = 0.0


_waited = _Waited()


def occupy(seconds: float) -> None:
    """Return when the device has worked for ``seconds``; the cores are free meanwhile."""
    if seconds <= 0.0:
        return
    now = time.perf_counter()
    end = now + seconds
    if now - _waited.noticed_s < _QUEUED_S:
        end -= _waited.late_s  # the device began while the host still slept
    if end > now:
        time.sleep(end - now)
    _waited.noticed_s = time.perf_counter()
    _waited.late_s = _waited.noticed_s - end


class WaitedDevice:
    """A device whose process waits for each work."""

    queues = False

    def work(
        self, seconds: float, reads: Tensor | None = None, makes: Tensor | None = None
    ) -> None:
        """Return when the work is done."""
        occupy(seconds)


class QueuedDevice:
    """One of several devices of a process; works take place one after the other.

    Args:
        devices: all of the process.
    """

    queues = True

    def __init__(self, devices: QueuedDevices) -> None:
        self._devices = devices
        self.idle_s = 0.0

    def work(
        self, seconds: float, reads: Tensor | None = None, makes: Tensor | None = None
    ) -> None:
        """Queue a work.

        Args:
            seconds: that it takes.
            reads: a tensor that must be there when it begins.
            makes: a tensor that is there when it ends. Its first value becomes the work's number.
        """
        self.idle_s = self.begin_s(*(() if reads is None else (reads,))) + seconds
        if makes is not None:
            self._devices.made(makes, self.idle_s)

    def begin_s(self, *reads: Tensor) -> float:
        """When a work that is queued now would begin, by the clock of the process."""
        return max(self._devices.now(), self.idle_s, *map(self._devices.ready_s, reads))


Device = WaitedDevice | QueuedDevice


class QueuedDevices:
    """The emulated devices of a process that drives several of them.

    Args:
        count: of devices.
        now: clock of the process, seconds.
        sleep: returns so many seconds later by that clock.
    """

    def __init__(
        self,
        count: int,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.now, self._sleep = now, sleep
        self.each = tuple(QueuedDevice(self) for _ in range(count))
        self._ends_s: dict[int, float] = {}  # by the number of the work
        self._last = 0

    def wait(self) -> None:
        """Return when all devices are idle."""
        left_s = max(device.idle_s for device in self.each) - self.now()
        if left_s > 0.0:
            self._sleep(left_s)
        self._ends_s.clear()  # all that was made is there

    def made(self, tensor: Tensor, end_s: float) -> None:
        """Write into a tensor by which work it is made."""
        if not tensor.numel():
            return
        self._last = self._last % _MOST_WORKS + 1
        self._ends_s[self._last] = end_s
        _first_bits(tensor).fill_(_QUIET_NAN + self._last)

    def ready_s(self, tensor: Tensor) -> float:
        """When a tensor is there; 0 if the host made it."""
        if not tensor.numel():  # it holds no number, but whatever makes it is queued by now
            return max(device.idle_s for device in self.each)
        if tensor.dtype != torch.float32:
            return 0.0
        return self._ends_s.get(int(_first_bits(tensor).item()) - _QUIET_NAN, 0.0)


def _first_bits(tensor: Tensor) -> Tensor:
    return tensor.detach()[(0,) * tensor.dim()].view(torch.int32)
