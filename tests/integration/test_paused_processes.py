"""Pauses of real processes that are stopped, or compute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial

from ddlbench.runtime.pauses import SHORTEST_S, PauseMeter, clock_s, state_of

SPIN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: sum(range(1000))"
HOLD = "sum(range(10**8)); import time; time.sleep(60)"  # seconds in C, with Python's lock


@contextmanager
def watched(*codes):
    """Processes that run these programs, and a meter of each."""
    children = [started(code) for code in codes]
    try:
        with ExitStack() as meters:
            yield [
                (child, meters.enter_context(PauseMeter(partial(state_of, child.pid))))
                for child in children
            ]
    finally:
        for child in children:
            child.kill()
            child.wait()


def started(code):
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_stopped_process_is_seen():
    """A rank that computes, and one that waits."""
    with watched(SPIN, "import time; time.sleep(60)") as pairs:
        time.sleep(1.0)
        begin_s = clock_s()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for child, _ in pairs:
                os.kill(child.pid, number)
            time.sleep(2.5 if number == signal.SIGSTOP else 0.6)
    for _, meter in pairs:
        (pause,) = meter.pauses
        assert pause.seconds >= SHORTEST_S
        assert begin_s <= pause.begin_s


def test_a_process_that_holds_its_lock_to_compute_does_not_pause():
    with watched(SPIN, HOLD) as pairs:
        time.sleep(3.0)
    assert [meter.pauses for _, meter in pairs] == [[], []]


METER = """
import subprocess, sys
from functools import partial
from ddlbench.runtime.pauses import PauseMeter, state_of
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
with PauseMeter(partial(state_of, child.pid)) as meter:
    print("runs", flush=True)
    sys.stdin.readline()
child.kill()
print(*[pause.seconds for pause in meter.pauses])
"""


def test_a_group_that_is_stopped_with_its_guard_is_seen():
    """As SLURM suspends a job: every process of it, the one that watches too."""
    guard = subprocess.Popen(
        [sys.executable, "-c", METER, SPIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert guard.stdout.readline() == "runs\n"
        time.sleep(1.0)
        os.killpg(guard.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.killpg(guard.pid, signal.SIGCONT)
        time.sleep(0.6)
        output, _ = guard.communicate("\n", timeout=60)
    finally:
        os.killpg(guard.pid, signal.SIGKILL) if guard.poll() is None else None
    (seconds,) = map(float, output.split())
    assert seconds >= SHORTEST_S


def test_a_process_that_is_gone_has_no_state():
    child = started("pass")
    child.wait()
    assert state_of(child.pid) is None
    state = state_of(os.getpid())
    assert state is not None
    assert not state.stopped
    assert state.cpu_s > 0
