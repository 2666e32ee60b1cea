"""Staged once, reused, made again when damaged, and clear about a full disk."""

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ddlbench.common import owner
from ddlbench.datasets import (
    DataError,
    DataRequest,
    StagingError,
    estimate_bytes,
    remove,
    stage,
    staging,
)
from ddlbench.datasets.files import spread
from ddlbench.datasets.formats import write_dataset
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import data_folder, hold

MNIST = DataRequest("mnist", scale=0.002)
FOLDERS = DataRequest("mnist", "imagefolder", 0.002)


def _largest_file(folder):
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    return max(files, key=lambda p: p.stat().st_size)


def test_first_makes_then_reuses(tmp_path):
    first = stage(MNIST, tmp_path / "new")
    again = stage(MNIST, tmp_path / "new")
    assert first.path == staging.own_folder(tmp_path / "new") / "mnist-idx-x0.002-s0-v1"
    assert (first.reused, again.reused) == (False, True)
    assert first.manifest_digest == again.manifest_digest
    assert first.size_bytes == again.size_bytes == 140 * 785 + 2 * 24
    assert first.stage_s > 0


def test_digest_names_contents(tmp_path):
    digests = [
        stage(DataRequest("mnist", scale=0.001, seed=seed), tmp_path / place).manifest_digest
        for seed, place in ((0, "a"), (0, "b"), (1, "a"))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("request_", [MNIST, FOLDERS], ids=["idx", "imagefolder"])
@pytest.mark.parametrize("harm", ["truncate", "delete", "no_manifest", "torn_manifest", "version"])
def test_incomplete_data_is_made_again(request_, harm, tmp_path):
    staged = stage(request_, tmp_path, workers=1)
    manifest = staged.path / "manifest.json"
    victim = _largest_file(staged.path / ("MNIST" if request_ is MNIST else "train"))
    whole = victim.read_bytes()
    if harm == "truncate":
        os.truncate(victim, len(whole) - 1)
    elif harm == "delete":
        victim.unlink()
    elif harm == "no_manifest":
        manifest.unlink()
    elif harm == "torn_manifest":
        manifest.write_text(manifest.read_text()[:100])
    else:
        facts = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**facts, "content_version": 0}))
    again = stage(request_, tmp_path, workers=1)
    assert not again.reused
    assert again.manifest_digest == staged.manifest_digest
    assert victim.read_bytes() == whole


@pytest.mark.parametrize("request_", [MNIST, FOLDERS], ids=["idx", "imagefolder"])
def test_corruption_that_keeps_the_size_is_found(request_, tmp_path):
    staged = stage(request_, tmp_path, workers=1)
    victim = _largest_file(staged.path)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    assert not stage(request_, tmp_path, workers=1).reused
    assert victim.read_bytes() == whole


def _stage_and_tell(scratch, barrier, results):
    barrier.wait()
    staged = stage(DataRequest("cifar10", scale=0.05), Path(scratch), workers=1)
    results.put((staged.reused, staged.manifest_digest))


def test_of_jobs_that_arrive_at_once_one_writes(tmp_path):
    context = multiprocessing.get_context("forkserver")
    barrier, results = context.Barrier(2), context.Queue()
    jobs = [
        context.Process(target=_stage_and_tell, args=(str(tmp_path), barrier, results))
        for _ in range(2)
    ]
    for job in jobs:
        job.start()
    outcomes = [results.get(timeout=60) for _ in jobs]
    for job in jobs:
        job.join()
    assert sorted(reused for reused, _ in outcomes) == [False, True]
    assert outcomes[0][1] == outcomes[1][1]


def test_what_a_crashed_job_left_is_cleared(tmp_path):
    folder = data_folder(MNIST, tmp_path)
    leftover = folder.with_name(f".{folder.name}.tmp-123")
    (leftover / "MNIST").mkdir(parents=True)
    other = folder.with_name(".cifar10-cifar-x1-s0-v1.tmp-9")
    other.mkdir()
    stage(MNIST, tmp_path)
    assert not leftover.exists()
    assert other.exists()  # under another lock, perhaps at work


def test_a_killed_stager_leaves_nothing_that_counts(tmp_path):
    """Killed while helper processes write: they end, and the next job starts over."""
    code = (
        "import sys; from pathlib import Path; from ddlbench.datasets import *;"
        "stage(DataRequest('cifar10', 'imagefolder', 0.5), Path(sys.argv[1]), workers=2)"
    )
    job = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    request = DataRequest("cifar10", "imagefolder", 0.5)
    folder = data_folder(request, tmp_path)
    while not list(folder.parent.glob(f".{folder.name}.tmp-*/train/*/*.jpg")):
        assert job.poll() is None
    job.kill()
    job.wait()
    assert not folder.exists()
    with staging._locked(folder):  # waits for the helpers, too
        staging._clear_leftovers(folder)
        assert not list(folder.parent.glob(".*tmp*"))


def test_too_little_room_is_said_before_writing(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5_000_000))
    with pytest.raises(StagingError) as caught:
        stage(DataRequest("mnist"), tmp_path)
    sentence = str(caught.value)
    assert "needs about 55.08 MB" in sentence
    assert "has 5.00 MB" in sentence
    assert str(tmp_path) in sentence
    assert not list(staging.own_folder(tmp_path).glob("*mnist*[!k]"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_midway_is_left_clean(number, tmp_path, monkeypatch):
    real, calls = os.write, []

    def failing(fd, data):
        calls.append(fd)
        if len(calls) > 2:
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(StagingError) as caught:
        stage(MNIST, tmp_path, workers=1)
    assert "scratch folder" in str(caught.value)
    assert [p.suffix for p in staging.own_folder(tmp_path).iterdir()] == [".lock"]
    monkeypatch.undo()
    assert not stage(MNIST, tmp_path).reused


def test_a_helper_process_that_cannot_write_is_a_sentence(tmp_path, monkeypatch):
    def spoiled(*arguments, **options):
        monkeypatch.undo()
        folder = arguments[1]
        folder.mkdir()
        (folder / "val").write_text("a file where a folder should be")
        return write_dataset(*arguments, **options)

    monkeypatch.setattr(staging, "write_dataset", spoiled)
    with pytest.raises(StagingError, match=r"val/\d+: Not a directory|val.*File exists"):
        stage(FOLDERS, tmp_path, workers=2)


def test_scratch_that_cannot_be_used_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match="File exists"):
        stage(MNIST, tmp_path / "file")


def test_remove(tmp_path):
    assert not remove(MNIST, tmp_path)
    staged = stage(MNIST, tmp_path)
    assert remove(MNIST, tmp_path)
    assert not staged.path.exists()
    assert not remove(MNIST, tmp_path)


def _hold(scratch, held, over):
    hold(MNIST, Path(scratch))
    held.set()
    over.wait()


def test_data_is_left_to_those_that_hold_it(tmp_path):
    staged = stage(MNIST, tmp_path)
    context = multiprocessing.get_context("forkserver")
    held, over = [context.Event(), context.Event()], [context.Event(), context.Event()]
    readers = [
        context.Process(target=_hold, args=(str(tmp_path), mine, end))
        for mine, end in zip(held, over, strict=True)
    ]
    for reader, mine in zip(readers, held, strict=True):
        reader.start()
        mine.wait()
    for reader, end in zip(readers, over, strict=True):
        assert not remove(MNIST, tmp_path)
        assert stage(MNIST, tmp_path).reused
        end.set()
        reader.join()
    assert remove(MNIST, tmp_path)
    assert not staged.path.exists()


def test_data_that_was_removed_before_it_was_held_is_made_again(tmp_path):
    digest = stage(MNIST, tmp_path).manifest_digest
    assert remove(MNIST, tmp_path)
    assert hold(MNIST, tmp_path).is_dir()
    assert stage(MNIST, tmp_path).manifest_digest == digest
    assert not remove(MNIST, tmp_path)


def test_data_that_was_never_staged_is_not_made_by_who_reads_it(tmp_path):
    assert not hold(MNIST, tmp_path).exists()
    stage(FOLDERS, tmp_path)
    assert not hold(MNIST, tmp_path).exists()


OWN_REQUESTS = [
    DataRequest("mnist", "idx", 0.002),
    DataRequest("cifar10", "cifar", 0.002),
    DataRequest("mnist", "imagefolder", 0.002),
]


@pytest.fixture(params=OWN_REQUESTS, ids=lambda request: request.format)
def own_request(request, tmp_path):
    """A folder in torchvision's layout, without our manifest, and the request for it."""
    folder = tmp_path / "own"
    write_dataset(request.param, folder, workers=1)
    (folder / "manifest.json").unlink()
    return DataRequest(request.param.dataset, request.param.format, source=str(folder))


def test_own_data_is_used_in_place(own_request, tmp_path):
    scratch = tmp_path / "scratch"
    staged = stage(own_request, scratch)
    assert staged.path == Path(own_request.source)
    assert staged.reused
    assert not scratch.exists()
    assert not remove(own_request, scratch)
    assert hold(own_request, scratch) == staged.path
    assert len(open_split(staged.path, own_request, "train")) in (100, 120)


def test_own_data_is_never_removed_wherever_it_lies(tmp_path):
    folder = staging.own_folder(tmp_path) / "mine"
    write_dataset(OWN_REQUESTS[0], folder, workers=1)
    request = DataRequest("mnist", "idx", source=str(folder))
    assert hold(request, tmp_path) == folder
    assert not remove(request, tmp_path)
    assert [path.name for path in staging.own_folder(tmp_path).iterdir()] == ["mine"]


def test_own_data_can_be_thinned(own_request):
    half = DataRequest(
        own_request.dataset, own_request.format, scale=0.5, source=own_request.source
    )
    whole, part = (open_split(Path(own_request.source), r, "train") for r in (own_request, half))
    assert len(part) == len(whole) // 2
    image, label = part[3]
    chosen = int(spread(len(whole), len(part))[3])
    assert label == whole[chosen][1]
    assert np.array_equal(image, whole[chosen][0])


def test_own_data_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        stage(DataRequest("mnist", source=str(tmp_path / "none")), tmp_path)
    with pytest.raises(DataError, match="ubyte is missing"):
        stage(DataRequest("mnist", source=str(tmp_path)), tmp_path)


@pytest.mark.parametrize(
    "request_",
    [
        DataRequest("mnist"),
        DataRequest("cifar10", scale=0.1),
        DataRequest("mnist", "raw", 0.5),
        DataRequest("mnist", "imagefolder", 0.02),
        DataRequest("cifar10", "imagefolder", 0.02),
    ],
    ids=lambda r: f"{r.dataset}-{r.format}",
)
def test_the_estimate_covers_what_is_written_and_little_more(request_, tmp_path):
    staged = stage(request_, tmp_path)
    assert staged.size_bytes is not None
    files = [p for p in staged.path.rglob("*") if p.is_file()]
    on_disk = sum(p.stat().st_blocks * 512 for p in files)
    estimate = estimate_bytes(request_)
    assert staged.size_bytes <= estimate
    assert estimate <= 1.3 * on_disk + 800_000


# --- changed bytes, other users ------------------------------------------------------------------


def test_bytes_that_change_are_found_though_sizes_are_right(tmp_path):
    """hardening A2: all pixels were zeroed, and trained on."""
    first = stage(MNIST, tmp_path)
    victim = _largest_file(first.path)
    data = victim.read_bytes()
    victim.write_bytes(data[:16] + bytes(len(data) - 16))
    again = stage(MNIST, tmp_path)
    assert not again.reused
    assert again.manifest_digest == first.manifest_digest
    assert victim.read_bytes() == data


def test_checksums_are_read_once_a_boot_and_when_files_change(tmp_path, monkeypatch):
    seen = []
    real = staging._usable

    def watched(*arguments):
        seen.append(arguments[2])
        return real(*arguments)

    monkeypatch.setattr(staging, "_usable", watched)
    for _ in range(3):
        stage(MNIST, tmp_path)
    assert seen == [True, False, False]  # the first makes it
    monkeypatch.setattr(owner, "_BOOT_ID", tmp_path / "none")
    stage(MNIST, tmp_path)
    stage(MNIST, tmp_path)
    assert seen[3:] == [True, True]


def test_the_folder_is_the_users_own(tmp_path):
    folder = stage(MNIST, tmp_path).path.parent
    assert folder.name == f"ddlbench-data-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    stage(MNIST, tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_its_place_is_refused(tmp_path):
    """hardening E1: another user planted the folder."""
    (tmp_path / "victim").mkdir()
    staging.own_folder(tmp_path / "scratch").parent.mkdir()
    staging.own_folder(tmp_path / "scratch").symlink_to(tmp_path / "victim")
    with pytest.raises(StagingError, match="is no folder but a link"):
        stage(MNIST, tmp_path / "scratch")
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    folder = data_folder(MNIST, tmp_path)
    staging._make_private(folder.parent)
    staging._lock(folder).symlink_to(tmp_path / "victim")
    with pytest.raises(StagingError, match="symbolic links"):
        stage(MNIST, tmp_path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_the_folder_of_another_user_is_refused(tmp_path):
    folder = stage(MNIST, tmp_path).path.parent
    os.chown(folder, 12345, -1)
    with pytest.raises(StagingError, match="belongs to user 12345"):
        stage(MNIST, tmp_path)
