"""Class folders written by several processes.

The processes are started as programs of their own, not forked (a parent with threads or a GPU
must not fork) nor spawned by :mod:`multiprocessing` (which runs the caller's script again). Each
has a thread here that feeds it one job at a time; when this process dies, their input ends and so
do they.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from ddlbench.datasets.errors import DataError
from ddlbench.datasets.files import Record
from ddlbench.datasets.synthetic import Content

__all__ = ["write_class_folders"]

_MODULE = "ddlbench.datasets.jpeg_worker"
Job = tuple[str, int]  # split, label


def write_class_folders(
    content: Content,
    root: Path,
    images: dict[str, int],
    jobs: list[Job],
    *,
    workers: int,
    keep_fds: tuple[int, ...],
) -> list[Record]:
    """Write the class folders ``jobs`` under ``root`` by ``workers`` processes.

    Args:
        content: what to draw.
        root: of the dataset.
        images: images of each split.
        jobs: split and label of each folder.
        workers: processes, at least one.
        keep_fds: descriptors the processes hold open too (the staging lock: it is then not free
            before the last of them has ended).

    Returns:
        A record for each job, in order.

    Raises:
        OSError: a folder could not be written.
        DataError: a process ended on its own.

    """
    setup = {
        "spec": asdict(content.spec),
        "seed": content.seed,
        "root": str(root),
        "images": images,
    }
    todo = _Jobs(jobs)
    records: list[Record | None] = [None] * len(jobs)

    def feed() -> None:
        with _start(keep_fds) as child:
            try:
                _ask(child, setup)
                for number, job in todo:
                    records[number] = _ask(child, list(job))
            except BaseException:
                todo.stop()
                raise
            finally:
                assert child.stdin is not None
                with suppress(BrokenPipeError):
                    child.stdin.close()

    with ThreadPoolExecutor(workers) as pool:
        feeders = [pool.submit(feed) for _ in range(min(workers, len(jobs)))]
        try:
            for feeder in feeders:
                feeder.result()
        except BaseException:
            todo.stop()
            raise
    return [record for record in records if record is not None]


class _Jobs:
    """The jobs nobody has taken yet; several threads iterate over it."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = enumerate(jobs)
        self._lock = Lock()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[tuple[int, Job]]:
        while True:
            with self._lock:
                job = None if self._stopped else next(self._jobs, None)
            if job is None:
                return
            yield job


def _start(keep_fds: tuple[int, ...]) -> subprocess.Popen[str]:
    source_root = str(Path(__file__).parents[2])
    paths = [source_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        pass_fds=keep_fds,
    )


def _ask(child: subprocess.Popen[str], question: Any) -> Any:
    """Send a line, receive a line."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        raise DataError(
            f"a process that writes JPEG files ended early (exit status {child.wait()}); "
            "its last words are above"
        )
    answer = json.loads(line)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["error"], answer["path"])
    return answer
