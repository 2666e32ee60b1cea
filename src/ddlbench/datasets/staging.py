"""Data on a node's own disk: made once, kept, checked, and made again when it is damaged.

::

    <scratch>/ddlbench-data-<uid>/  of one user, who alone may enter it
        mnist-idx-x1-s0-v1/         the data, complete, with manifest.json
        mnist-idx-x1-s0-v1.verified that its checksums were right; see files.py
        mnist-idx-x1-s0-v1.lock     held while a job checks, makes or removes the folder
        mnist-idx-x1-s0-v1.readers  held shared by readers of the folder, exclusively to remove it
        .mnist-idx-x1-s0-v1.tmp-*   being made; becomes the folder by one rename

Locks are the kernel's (flock): they end with the last process that holds them. So a half-made
folder that is seen under the lock was left by a job that died, and can be deleted.

Data that is used again is read and compared with its checksums once after every boot, and whenever
a file has changed.

Other users of the node may write to the scratch folder. So the folder below it is made with mode
0700, must be a real folder of this user, and no link in it is followed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ddlbench.common.quantities import BYTES, unit_for
from ddlbench.datasets.files import (
    DataError,
    Manifest,
    StagingError,
    available_cpus,
    forget_verified,
    is_verified,
    note_verified,
    source_folder,
)
from ddlbench.datasets.formats import write_dataset
from ddlbench.datasets.synthetic import CONTENT_VERSION
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes

_log = logging.getLogger(__name__)
_OPEN = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def own_folder(scratch: Path) -> Path:
    """The folder of this user's data."""
    return scratch / f"ddlbench-data-{os.getuid()}"


@dataclass(frozen=True)
class Staged:
    """Data that is ready to be read.

    Args:
        path: its folder.
        manifest_digest: 64 hex digits that identify its contents.
        reused: it was there already.
        stage_s: duration of this call in seconds, with the wait for another job.
        verify_s: the part of ``stage_s`` in which checksums of data that was there are compared.
        size_bytes: sum of its files; None for the user's own data.
    """

    path: Path
    manifest_digest: str
    reused: bool
    stage_s: float
    verify_s: float
    size_bytes: int | None


def data_folder(request: DataRequest, scratch: Path) -> Path:
    """Where the data of ``request`` lies or will lie; the user's own is read in its place."""
    if not request.is_synthetic:
        return source_folder(request)
    name = f"{request.dataset}-{request.format}"
    name += f"-x{request.scale:.12g}-s{request.seed}-v{CONTENT_VERSION}"
    return own_folder(scratch) / name


def stage(request: DataRequest, scratch: Path, *, workers: int | None = None) -> Staged:
    """Makes sure that the data of ``request`` is on this node, complete; the user's own is read.

    Args:
        request: which data.
        scratch: a folder on the node's own disk; made if it is missing.
        workers: threads or processes that write; None for as many as there are CPUs.

    Raises:
        StagingError: no space, no permission, or another failure of the disk; nothing half-made
            is left behind.
        DataError: the user's own data is missing or cannot be read.
    """
    begin = time.perf_counter()
    workers = workers or available_cpus()
    if not request.is_synthetic:
        user_data = inspect_user_data(request)
        elapsed_s = time.perf_counter() - begin
        return Staged(user_data.folder, user_data.digest, True, elapsed_s, 0.0, None)
    folder = data_folder(request, scratch)
    with _disk_errors(request, scratch), _locked(folder) as lock_fd:
        to_verify = not is_verified(folder)
        verifying = time.perf_counter()
        manifest = _usable(request, folder, to_verify, workers)
        reused = manifest is not None
        verify_s = time.perf_counter() - verifying if reused and to_verify else 0.0
        if manifest is None:
            manifest = _make(request, folder, workers, lock_fd)
        if to_verify or not reused:
            note_verified(folder)
    elapsed_s = time.perf_counter() - begin
    return Staged(folder, manifest.digest, reused, elapsed_s, verify_s, manifest.total_bytes)


def hold(request: DataRequest, scratch: Path) -> Path:
    """Folder of the staged data, which no other process removes while this one lives.

    If a removal is under way, it is waited for, and the data is made again. Data that was never
    staged here is not made.

    Raises:
        StagingError, DataError: as :func:`stage`, where the data is made again.
    """
    folder = data_folder(request, scratch)
    if not (request.is_synthetic and folder.parent.is_dir()):
        return folder
    try:
        # Never closed: the lock goes with the process.
        fd = os.open(_readers(folder), os.O_RDONLY | _OPEN, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError as error:  # a user's jobs cannot remove a folder that they cannot write to
        _log.info("%s cannot be held: %s", folder, error)
    if not folder.exists() and _lock(folder).exists():
        stage(request, scratch)
    return folder


def remove(request: DataRequest, scratch: Path) -> bool:
    """Deletes what :func:`stage` made for ``request``; never the user's own data.

    Returns:
        Whether it was deleted; not if another process holds it, which will remove it.

    Raises:
        StagingError: it cannot be deleted.
    """
    folder = data_folder(request, scratch)
    if not (request.is_synthetic and folder.parent.is_dir()):
        return False
    with _disk_errors(request, scratch), _locked(folder):
        _clear_leftovers(folder)
        if not folder.exists():
            return False
        fd = os.open(_readers(folder), os.O_RDWR | _OPEN, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            forget_verified(folder)
            removed = _temporary(folder)
            folder.rename(removed)
            shutil.rmtree(removed)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return True


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _readers(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.readers")


def _make_private(top: Path) -> None:
    """Make the folder of this user's data, or refuse what another user has put in its place."""
    top.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        top.mkdir(mode=0o700)
    state = top.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise StagingError(f"{top} is no folder but a link or a file; remove it, or choose another "
                           "scratch folder")  # fmt: skip
    if state.st_uid != os.getuid():
        raise StagingError(
            f"{top} belongs to user {state.st_uid}, not to you; choose another scratch folder"
        )
    if stat.S_IMODE(state.st_mode) & 0o077:
        top.chmod(0o700)


def _temporary(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tmp-{os.getpid()}")


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Waits for the lock of ``folder`` and holds it; yields its descriptor."""
    _make_private(folder.parent)
    # Never deleted: a second job could lock the deleted file while a third makes a new one.
    fd = os.open(_lock(folder), os.O_RDWR | _OPEN, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another job that stages %s", folder)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _usable(request: DataRequest, folder: Path, to_verify: bool, workers: int) -> Manifest | None:
    """The manifest of ``folder`` if that holds the data of ``request``; else None.

    With ``to_verify`` its checksums must be right, too.
    """
    if not folder.exists():
        return None
    try:
        manifest = Manifest.read(folder)
    except DataError as error:
        problem: str | None = str(error)
    else:
        problem = manifest.mismatch(request)
        if problem is None and to_verify:
            problem = manifest.damage(folder, workers=workers)
        if problem is None:
            return manifest
    _log.warning("making %s again: %s", folder, problem)
    return None


def _make(request: DataRequest, folder: Path, workers: int, lock_fd: int) -> Manifest:
    _clear_leftovers(folder)
    if folder.exists():
        shutil.rmtree(folder)
    needed = estimate_bytes(request)
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise _no_room(request, folder.parent, needed, free)
    temporary = _temporary(folder)
    try:
        manifest = write_dataset(request, temporary, workers=workers, keep_fds=(lock_fd,))
        temporary.rename(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(folder.parent).free
            raise _no_room(request, folder.parent, needed, free) from error
        raise
    return manifest


def _clear_leftovers(folder: Path) -> None:
    """Deletes what a crashed job left; only under the lock."""
    for leftover in folder.parent.glob(f".{folder.name}.tmp-*"):
        shutil.rmtree(leftover)


def _no_room(request: DataRequest, where: Path, needed: int, free: int) -> StagingError:
    needed_text, free_text = (unit_for(n, BYTES).text(n, ".2f") for n in (needed, free))
    return StagingError(
        f"{request.dataset} data at scale {request.scale:g} needs about {needed_text}, but "
        f"{where} has {free_text} (or too few file entries) left; "
        "use a smaller data scale or another scratch folder"
    )


@contextmanager
def _disk_errors(request: DataRequest, scratch: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or scratch
        reason = error.strerror or str(error)
        raise StagingError(
            f"cannot put {request.dataset} data on {scratch}: {where}: {reason}; "
            "check the scratch folder, or choose another one"
        ) from error
