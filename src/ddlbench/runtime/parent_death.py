"""A process that ends with its parent, also when it is stopped or stuck.

::

    supervisor  --killed-->  guard of each rank  --killed-->  rank

Linux sends the signal (``PR_SET_PDEATHSIG``, prctl(2)); elsewhere nothing happens. A parent that
ended before this call has closed its end of the pipe that it reads our output from. Its
process id would say less: in a container the parent may be number 1, and outside another process
than number 1 may adopt us.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_STDOUT = 1


def end_with_parent() -> None:
    """From now on the kernel kills this process when its parent, or the parent's thread, ends."""
    if not sys.platform.startswith("linux"):
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))
    if _nobody_reads():
        os.kill(os.getpid(), signal.SIGKILL)


def _nobody_reads() -> bool:
    """Whether the other end of our output, a pipe or a socket, is closed."""
    output = select.poll()
    output.register(_STDOUT, 0)  # of errors the kernel always tells
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in output.poll(0))
