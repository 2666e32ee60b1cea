"""Which sets of files are a checkpoint, and which are not."""

from __future__ import annotations

import json

import pytest

from ddlbench.runtime.checkpoint.store import (
    Order,
    ProgressJournal,
    complete,
    discard,
    journal_file,
    newest,
    prune,
    rank_file,
    read_journal,
    read_set,
    set_folder,
)

IDENTITY = {"cell_id": "a/cell", "plan_digest": "1234", "dataset_digest": None, "ranks": 2}


def order(folder, run="1", identity=IDENTITY) -> Order:
    return Order(str(folder), identity, run, None, "ddlbench 1")


def write_set(folder, steps, run="1", identity=IDENTITY, manifest=True):
    in_set = set_folder(folder, steps, run)
    in_set.mkdir(parents=True)
    sizes = [10 + rank for rank in range(identity["ranks"])]
    for rank, size in enumerate(sizes):
        rank_file(in_set, rank).write_bytes(b"x" * size)
    if manifest:
        complete(in_set, steps, order(folder, run, identity), sizes=sizes, save_s=0.5)
    return in_set


def test_the_newest_complete_set_is_used(tmp_path):
    assert newest(tmp_path / "nowhere", IDENTITY) is None
    assert newest(tmp_path, IDENTITY) is None
    write_set(tmp_path, 20)
    wanted = write_set(tmp_path, 100)
    write_set(tmp_path, 40, run="2")
    write_set(tmp_path, 120, manifest=False)
    actual = newest(tmp_path, IDENTITY)
    assert (actual.folder, actual.steps, actual.save_s, actual.version) == (
        wanted,
        100,
        0.5,
        "ddlbench 1",
    )


@pytest.mark.parametrize("key", ["cell_id", "plan_digest", "dataset_digest", "ranks"])
def test_a_set_of_another_cell_is_not_used(tmp_path, key):
    write_set(tmp_path, 20, identity={**IDENTITY, key: 3})
    assert newest(tmp_path, IDENTITY) is None
    mine = write_set(tmp_path, 10)
    assert newest(tmp_path, IDENTITY).folder == mine


def tear_manifest(in_set):
    text = (in_set / "manifest.json").read_text()
    (in_set / "manifest.json").write_text(text[: len(text) // 2])


def other_version(in_set):
    values = json.loads((in_set / "manifest.json").read_text())
    (in_set / "manifest.json").write_text(json.dumps({**values, "schema_version": 99}))


def elsewhere(in_set):
    """A manifest that points out of its folder vouches for nothing there."""
    (in_set.parent / "secret").write_bytes(b"x" * 10)
    values = json.loads((in_set / "manifest.json").read_text())
    values["files"][0] = {"name": "../secret", "bytes": 10}
    (in_set / "manifest.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    "tear",
    [
        lambda in_set: (in_set / "manifest.json").unlink(),
        lambda in_set: (in_set / "manifest.json").write_text("[]"),
        tear_manifest,
        other_version,
        elsewhere,
        lambda in_set: rank_file(in_set, 1).unlink(),
        lambda in_set: rank_file(in_set, 1).write_bytes(b"x" * 10),
        lambda in_set: rank_file(in_set, 0).write_bytes(b""),
    ],
    ids=["none", "list", "half", "version", "outside", "missing", "shorter", "empty"],
)
def test_a_torn_set_is_never_used(tmp_path, tear):
    before = write_set(tmp_path, 20)
    torn = write_set(tmp_path, 40)
    assert newest(tmp_path, IDENTITY).folder == torn
    tear(torn)
    assert read_set(torn) is None
    assert newest(tmp_path, IDENTITY).folder == before


def test_the_last_two_are_kept(tmp_path):
    sets = [write_set(tmp_path, steps) for steps in (10, 20, 30, 40)]
    torn = write_set(tmp_path, 5, run="2", manifest=False)
    prune(tmp_path)
    assert [path.exists() for path in [*sets, torn]] == [False, False, True, True, False]


def test_only_what_is_ours_is_deleted(tmp_path):
    folder = tmp_path / "checkpoints"
    write_set(folder, 20)
    ProgressJournal(journal_file(folder), 20)
    (folder / "attempts.json").write_text("{}")
    (folder / "thesis.txt").write_text("of somebody")
    discard(folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").unlink()
    discard(folder)
    assert not folder.exists()
    discard(folder)


def test_a_trail_says_how_far_and_since_when(tmp_path, monkeypatch):
    now = iter([100.0, 100.0, 101.5, 103.0, 104.0, 104.0, 104.25])
    monkeypatch.setattr("ddlbench.runtime.checkpoint.store.time.time", lambda: next(now))
    path = journal_file(tmp_path / "new")
    trail = ProgressJournal(path, 20)
    assert (read_journal(path).steps, read_journal(path).unsaved_s) == (20, 0.0)
    trail.reach(21)
    trail.reach(22)
    assert (read_journal(path).steps, read_journal(path).unsaved_s) == (22, 3.0)
    trail.kept(22)
    trail.reach(23)
    assert (read_journal(path).steps, read_journal(path).unsaved_s) == (23, 0.25)


@pytest.mark.parametrize("text", ["", "12", "a b c", "1 2 3 4"])
def test_a_trail_that_nobody_can_read_is_none(tmp_path, text):
    assert read_journal(tmp_path / "nowhere") is None
    (tmp_path / "trail").write_text(text)
    assert read_journal(tmp_path / "trail") is None
