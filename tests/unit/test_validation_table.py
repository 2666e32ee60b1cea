"""The GPU study's checks and tables, without a GPU."""

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "validation"))

from gpu_parts.carry import install
from gpu_parts.horovod_build import _first_error
from gpu_parts.study import NotHere, Study, Verdict, in_process
from gpu_parts.table import markdown, terminal


def study_in(folder, **changes):
    values = {"device": "cpu", "small": True, "limit_s": 60.0, **changes}
    return Study(1, folder, **values)


def raise_(error):
    raise error


def only_row(study):
    (row,) = study.rows
    return row


def test_a_check_that_raises_becomes_a_failed_row(tmp_path):
    study = study_in(tmp_path)
    study.check("clock", lambda: raise_(ValueError("two\nlines")))
    assert (only_row(study).status, only_row(study).reason) == ("failed", "ValueError: two lines")


def test_a_verdict_says_whether_a_check_passed(tmp_path):
    study = study_in(tmp_path)
    study.check("good", lambda: Verdict(True, {"step_s": 0.5}))
    study.check("bad", lambda: Verdict(False, {"step_s": 2.0}, "too slow", ({"step": 1},)))
    good, bad = study.rows
    assert (good.status, bad.status, bad.reason) == ("passed", "failed", "too slow")
    kept = json.loads((tmp_path / "part1.json").read_text())["checks"]
    assert [row["figures"] for row in kept] == [{"step_s": 0.5}, {"step_s": 2.0}]
    assert kept[1]["rows"] == [{"step": 1}]


def test_what_the_machine_lacks_is_no_failure(tmp_path):
    study = study_in(tmp_path)
    study.check("nccl", lambda: raise_(NotHere("there is no GPU")))
    assert (only_row(study).status, only_row(study).reason) == ("not here", "there is no GPU")


def test_a_check_without_time_is_not_begun(tmp_path):
    study = study_in(tmp_path, limit_s=5.0)
    study.check("long", lambda: raise_(AssertionError), needs_s=50)
    assert only_row(study).status == "no time"


def test_a_failed_row_stays_when_there_is_no_time_to_repeat_it(tmp_path):
    study_in(tmp_path).check("clock", lambda: Verdict(False, {}, "apart"))
    again = study_in(tmp_path, limit_s=0.0)
    again.check("clock", lambda: raise_(AssertionError))
    assert only_row(again).reason == "apart"


def test_only_what_has_not_passed_is_repeated(tmp_path):
    first = study_in(tmp_path)
    first.check("good", lambda: Verdict(True, {"run": 1}))
    first.check("bad", lambda: Verdict(False, {"run": 1}))
    second = study_in(tmp_path)
    for name in ("good", "bad"):
        second.check(name, lambda: Verdict(True, {"run": 2}))
    assert [(row.check, row.figures["run"]) for row in second.rows] == [("good", 1), ("bad", 2)]
    assert not study_in(tmp_path, small=False).rows  # of another kind of run


def test_a_function_in_a_process_of_its_own_answers():
    assert in_process(os.getpid, limit_s=60) != os.getpid()


def test_a_process_that_does_not_end_is_killed():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(TimeoutError, match="not done within"):
        in_process(time.sleep, 600, limit_s=1)
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not [child for child in left if child.is_running() and "spawn_main" in cmdline(child)]


def cmdline(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_process_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="without an answer"):
        in_process(os._exit, 3, limit_s=60)


def filled(folder):
    study = study_in(folder)
    study.check("good", lambda: Verdict(True, {"step_s": 0.012345678, "is_fast": True}, "unseen"))
    study.check(
        "long name " * 12, lambda: Verdict(False, {"peak_bytes": 12_345_678_901}, "why " * 60)
    )
    study.check("a|b", lambda: raise_(NotHere("no GPU\nhere")))
    study.check("late", lambda: Verdict(True), needs_s=1000)
    return study


def test_a_terminal_of_80_columns_shows_the_table(tmp_path):
    lines = terminal(filled(tmp_path)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "1 passed, 1 failed, 1 not here, 1 no time"
    text = " ".join(" ".join(lines).split())
    assert "step_s 0.01235, is_fast yes" in text
    assert "peak_bytes 1.235e+10" in text
    assert "why why" in text
    assert "unseen" not in text


def test_markdown_has_the_machine_and_every_part(tmp_path):
    filled(tmp_path)
    text = markdown(tmp_path)
    python = ".".join(map(str, sys.version_info[:3]))
    assert text.startswith("* Python: " + python)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert "| good | passed | 0 | step_s 0.01235, is_fast yes |  |" in rows
    assert r"| a\|b | not here | 0 |  | no GPU here |" in rows


def test_markdown_names_every_machine_once(tmp_path):
    check = {"check": "c", "status": "passed", "reason": "", "figures": {}, "seconds": 1.0}
    for part, commit in ((1, "abc"), (2, "abc"), (3, "def")):
        machine = {"gpu": "H", "git_commit": commit, "driver": None}
        values = {"part": part, "device": "cuda", "small": False, "machine": machine,
                  "checks": [check]}  # fmt: skip
        (tmp_path / f"part{part}.json").write_text(json.dumps(values))
    lines = markdown(tmp_path).splitlines()
    assert lines[:2] == ["* GPU: H", "* commit: abc, def"]
    assert sum(line.startswith("## Part") for line in lines) == 3


def test_markdown_of_a_folder_without_results_is_a_sentence(tmp_path):
    (only,) = markdown(tmp_path).splitlines()
    assert only.startswith("No part has left results")


COMPILES = (
    "[ 46%] Building CXX object third_party/gloo/CMakeFiles/gloo.dir/transport/tcp/error.cc.o"
)


@pytest.mark.parametrize(
    "error",
    [
        "/src/common.h:12:10: fatal error: nccl.h: No such file or directory",
        "/src/error.cc:7:3: error: 'uint64_t' does not name a type",
        "/usr/bin/ld: cannot find -lnccl",
        "make[2]: *** No rule to make target 'x'",
        "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
    ],
)
def test_the_first_error_of_a_build_is_what_the_compiler_said(tmp_path, error):
    log = tmp_path / "build.log"
    log.write_text(
        f"{COMPILES}\n  {error}\nmake: *** [all] Error 2\nERROR: Failed building wheel\n"
    )
    assert _first_error(log) == error


def test_a_build_that_names_no_error_tells_its_last_line(tmp_path):
    log = tmp_path / "build.log"
    log.write_text(f"{COMPILES}\nKilled\n\n")
    assert _first_error(log) == "Killed"


def test_a_wheel_for_another_python_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    wheel = tmp_path / "carried" / "wheels" / "nowhere-1.0-cp27-cp27m-win32.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    install(tmp_path / "carried", tmp_path / "out")
    assert f"left out: {wheel.name}" in capsys.readouterr().out
