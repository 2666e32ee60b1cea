"""A file that cannot be written, read or reached is one sentence with the place and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ddlbench.common.document import whole_file, write_text
from ddlbench.common.errors import ConfigError, file_fault, obstacle, signal_name
from ddlbench.experiment.paths import check_results


def in_the_way(path: Path) -> OSError:
    """What Python raises when a file is written to ``path``."""
    with pytest.raises(OSError) as caught:
        write_text(path, "a text\n")
    return caught.value


def linked_to_nothing(folder: Path) -> str:
    (folder / "results").symlink_to("/gone/results")
    return "results points to /gone/results, which is missing"


def linked_to_itself(folder: Path) -> str:
    (folder / "results").symlink_to(folder / "results")
    return "results is a link that leads back to itself"


def a_file(folder: Path) -> str:
    (folder / "results").touch()
    return "results is a file where a folder should be"


def a_file_above(folder: Path) -> str:
    (folder / "results").mkdir()
    (folder / "results" / "local").touch()
    return "results/local is a file where a folder should be"


@pytest.mark.parametrize("make", [linked_to_nothing, linked_to_itself, a_file, a_file_above])
def test_what_stands_in_the_way_of_results_is_named(make, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = make(tmp_path)
    message = file_fault(in_the_way(Path("results/local/demo/tables/summary.csv")))
    assert message is not None
    assert message.startswith(sentence)
    assert "; " in message
    with pytest.raises(ConfigError, match=sentence):
        check_results("local")


def test_nothing_is_in_the_way_of_what_can_be_made(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_results("local", [Path("results/local/cells/a/result.json")])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").symlink_to("elsewhere")
    check_results("local", [Path("results/local/cells/a/result.json")])
    assert obstacle(Path("results/local")) is None


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "no room is left"),
        (errno.EDQUOT, "no room is left"),
        (errno.EROFS, "can be written"),
        (errno.EACCES, "chmod"),
        (errno.EPERM, "chmod"),
        (errno.ESTALE, "anew"),
        (errno.EIO, "does not answer"),
        (errno.ENAMETOOLONG, "shorter path"),
        (errno.EISDIR, "move the folder away"),
        (errno.ETXTBSY, "run again"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_any_fault_of_a_file_has_its_place_and_a_cure(number: int, word: str) -> None:
    message = file_fault(OSError(number, os.strerror(number), "results/local/a.json"))
    assert message is not None
    assert "results/local/a.json" in message
    assert word in message
    assert "\n" not in message


def test_a_full_disk_names_the_folder_where_a_write_names_no_file() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert file_fault(full, Path("results/local")) == (
        "no room is left to write results/local; free some and run again"
    )


def test_a_copy_to_a_full_disk_names_what_is_written() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "Snakefile", None, "crate/Snakefile")
    assert "crate/Snakefile" in str(file_fault(full))


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("AF_UNIX path too long"), ConnectionRefusedError(111, "no")]
)
def test_an_error_of_no_file_is_none_of_these(error: Exception) -> None:
    assert file_fault(error) is None


def test_the_first_error_is_told_and_not_that_of_tidying_up(tmp_path) -> None:
    folder = tmp_path / "tables"
    path = folder / "a.csv"
    with pytest.raises(OSError, match="No space left") as caught, whole_file(path) as beside:
        beside.write_text("half")
        beside.unlink()
        folder.rmdir()
        folder.touch()  # so that the temporary file cannot be removed either
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(path)


def test_a_name_that_is_no_text_is_written_escaped(tmp_path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    write_text(tmp_path / "page.html", f"{name} is no image\n")
    assert (tmp_path / "page.html").read_text("utf-8") == "caf\\udce9.jpg is no image\n"


def test_every_signal_has_a_name():
    """Also real-time signals, of which Python names the first and the last only."""
    names = [signal_name(number) for number in range(1, 65)]
    assert names[8] == "SIGKILL" and names[39] == "signal 40"
