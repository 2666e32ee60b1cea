"""Kineto traces that are whole, damaged, or no traces at all."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from cases.kineto_traces import (
    ALL_REDUCE,
    COPY,
    GEMM,
    TWO_STEPS,
    kernel,
    metadata,
    trace_text,
    write,
)

from ddlbench.common.errors import ConfigError
from ddlbench.report.traces import kineto_file
from ddlbench.report.traces.breakdown import break_down, breakdowns_of, lines_of, trace_files
from ddlbench.report.traces.kineto_file import TraceFile, read_trace

KERNELS = [kernel(GEMM, 0, 10), kernel(ALL_REDUCE, 20, 30, 20), kernel(COPY, 40, 50)]
TEXT = trace_text(KERNELS)


def events_of(path):
    file = TraceFile(path)
    return list(file.events()), file


def of_text(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return events_of(path)


@pytest.mark.parametrize("chunk", [1, 7, 64, 2**22])
def test_events_are_the_same_however_the_file_is_cut(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(kineto_file, "_CHUNK", chunk)
    events, file = of_text(tmp_path, TEXT)
    assert events == KERNELS
    assert file.metadata["distributedInfo"]["rank"] == 0
    assert not file.truncated
    assert not file.unreadable


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(KERNELS),
        json.dumps(KERNELS)[:-1],
        json.dumps({"traceEvents": KERNELS, "traceName": "behind"}, indent=2),
        TEXT.replace("}, {", "},\n\n {"),
        TEXT.replace("}, {", "},, {"),
        TEXT.replace("}, {", "} {"),
        TEXT.replace("}]}", "},]}"),
        "\ufeff" + TEXT,
        TEXT.replace('"schemaVersion": 1', '"schemaVersion": NaN'),
        # A name of Windows beside the events.
        TEXT.replace('"schemaVersion": 1', r'"traceName": "C:\Users\me\trace.json"'),
        TEXT.replace('"schemaVersion": 1', '"deviceProperties": [{"name": inf}]'),
    ],
)
def test_harmless_flaws_are_read(tmp_path, text):
    events, file = of_text(tmp_path, text)
    assert events == KERNELS
    assert not file.unreadable


@pytest.mark.parametrize("name", [r"C:\Users\x", "a\tb", r"\\server\q", r"\u12"])
def test_names_that_are_no_json_are_read(tmp_path, name):
    events, file = of_text(tmp_path, TEXT.replace(GEMM, name))
    assert [event["ts"] for event in events] == [0, 20, 40]
    assert events[1:] == KERNELS[1:]
    assert not file.unreadable


def test_nan_in_a_field_harms_nobody(tmp_path):
    broken = TEXT.replace('"context": 1', '"est. achieved occupancy %": NaN, "x": Infinity')
    trace = read_trace(_written(tmp_path, broken))
    assert len(trace.work) == 3


def test_an_event_with_quotes_in_its_name_is_left_out(tmp_path):
    trace = read_trace(_written(tmp_path, TEXT.replace(ALL_REDUCE, 'say "hello"')))
    assert len(trace.work) == 2
    assert trace.notes == ["left out: 1 event without JSON"]


def test_an_event_without_a_number_for_its_time_is_left_out(tmp_path):
    odd = [{**KERNELS[0], "ts": "soon"}, {**KERNELS[0], "dur": {}}, {**KERNELS[0], "ts": 1e300}]
    trace = read_trace(_written(tmp_path, trace_text([*KERNELS, *odd])))
    assert len(trace.work) == 3
    assert "3 events without a number" in trace.notes[0]


@pytest.mark.parametrize(
    "arguments", [None, [], "x", {"stream": "x"}, {"stream": None}, {"stream": [7]}]
)
def test_arguments_of_any_kind_are_borne(tmp_path, arguments):
    trace = read_trace(
        _written(tmp_path, trace_text([*KERNELS, {**KERNELS[0], "args": arguments}]))
    )
    assert len(trace.work) == 3


@pytest.mark.parametrize("kept", range(0, len(TEXT), 17))
def test_a_file_that_is_cut_off_says_so_or_is_refused(tmp_path, kept):
    path = _written(tmp_path, TEXT[:kept])
    try:
        trace = read_trace(path)
    except ConfigError as error:
        assert str(path) in str(error)
    else:
        assert 1 <= len(trace.work) <= 3
        assert any("cut off" in note for note in trace.notes)


def _written(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    return path


def test_gzip_is_known_by_its_content_and_may_be_cut_off(tmp_path):
    packed = gzip.compress(trace_text(KERNELS * 5000).encode())
    whole, cut = tmp_path / "whole.trace", tmp_path / "cut.json.gz"
    whole.write_bytes(packed)
    cut.write_bytes(packed[: len(packed) // 2])
    assert len(read_trace(whole).work) == 15_000
    trace = read_trace(cut)
    assert 0 < len(trace.work) < 15_000
    assert any("cut off" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "begins with nothing"),
        (b"  ", "begins with nothing"),
        (b"\x89PNG\r\n", "begins with"),
        (b"\x1f\x8bnothing", "gzip"),
        (b"{}", "no list of traceEvents"),
        (b'{"a": 1}', "no list of traceEvents"),
        (b'{"traceEvents": 3}', "no list of traceEvents"),
        (b'{"traceEvents": []}', "no event"),
        (b'{"traceEvents": [1, null, "x", []]}', "no event"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "no event"),
        (b'{"a": ' + b"[" * 100_000, "no list of traceEvents"),
        (b'{"traceEvents": [' + b'{"a":' * 100_000, "no event"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_trace_with_annotations_only_has_nothing_to_analyse(tmp_path):
    path = write(tmp_path / "a.json", TWO_STEPS[:2])
    with pytest.raises(ConfigError, match="ProfilerActivity"):
        break_down([read_trace(path)])


def test_a_folder_gives_its_files_in_the_order_of_ranks(tmp_path):
    for name, rank in (("b.json", 0), ("a.json", 1), ("c.json", None), ("d.json", 0)):
        write(tmp_path / name, TWO_STEPS, rank)
    (tmp_path / "notes.txt").write_text("no trace")
    actual = breakdowns_of([tmp_path])
    # Two traces of one rank are both shown; one that names no rank is last.
    assert [(breakdown.file, breakdown.rank) for breakdown in actual] == [
        ("b.json", 0),
        ("d.json", 0),
        ("a.json", 1),
        ("c.json", None),
    ]


def test_ranks_without_a_trace_are_named(tmp_path):
    for rank in (0, 2, 3):
        (tmp_path / f"{rank}.json").write_text(
            json.dumps({**metadata(rank, size=6), "traceEvents": TWO_STEPS})
        )
    actual = breakdowns_of([tmp_path])
    assert "of 6 ranks, no trace of 1, 4, 5." in "\n".join(lines_of(actual))
    write(tmp_path / "unnamed.json", TWO_STEPS, rank=None)  # may be of any rank
    assert not any(each.notes for each in breakdowns_of([tmp_path]))


def test_a_folder_without_traces_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no .json"):
        trace_files([tmp_path])


def test_what_torch_writes_is_read(tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            torch.nn.functional.linear(torch.ones(8, 8), torch.ones(8, 8))
            profiler.step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    actual = breakdowns_of([path])[0]
    assert actual.devices == "CPU"
    assert 0 < actual.compute_s <= actual.kernel_s


def test_a_file_of_a_cell_and_one_that_is_missing_are_refused(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": [{"ph": "X", "cat": "forward", "dur": 1, '
                                         '"ts": 0, "name": "forward 9", "tid": 0}]}')  # fmt: skip
    with pytest.raises(ConfigError, match="of a cell name the folder"):
        breakdowns_of([tmp_path / "trace.json"])
    with pytest.raises(ConfigError, match="no such file"):
        breakdowns_of([tmp_path / "missing.json"])
