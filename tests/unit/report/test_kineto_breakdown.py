"""Planted times come out: computing, communicating, copying, idle and its causes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from cases.kineto_traces import (
    ALL_REDUCE,
    COPY,
    GEMM,
    TWO_STEPS,
    host,
    kernel,
    launched,
    step,
    write,
)
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.commands.timeline import timeline
from ddlbench.common.errors import ConfigError
from ddlbench.report.traces.breakdown import break_down, lines_of, merged, shared
from ddlbench.report.traces.kineto_file import read_trace


def breakdown(tmp_path, events, **settings):
    exact = settings.pop("exact", False)
    path = write(tmp_path / "trace.json", events)
    return break_down([read_trace(path, exact=exact)], **settings)[0]


def us(seconds):
    return round(seconds * 1e6, 3)


def test_parts_of_the_time_are_those_that_were_planted(tmp_path):
    actual = breakdown(tmp_path, TWO_STEPS)
    assert us(actual.kernel_s) == 540
    assert us(actual.compute_s) == 300
    assert (us(actual.hidden_s), us(actual.exposed_s)) == (50, 150)
    assert actual.overlap == pytest.approx(0.25)
    assert (us(actual.memory_s), us(actual.copies_s)) == (60, 40)
    assert us(actual.idle_s) == 50
    assert us(actual.other_s) == 0
    assert actual.steps == 1


def test_the_last_step_counts_where_it_should(tmp_path):
    actual = breakdown(tmp_path, TWO_STEPS, last_step=True)
    assert (us(actual.kernel_s), us(actual.compute_s), actual.steps) == (1100, 400, 2)


def test_a_single_step_and_none_count_whole(tmp_path):
    for steps in ([], [step(4, 0, 1000)]):
        actual = breakdown(tmp_path, [*steps, *TWO_STEPS[2:]])
        assert us(actual.kernel_s) == 1100


def test_steps_are_those_of_all_ranks(tmp_path):
    """As in HTA: one step in each of two ranks, with two names, cuts both."""
    first = write(tmp_path / "0.json", [step(1, 0, 90), *launched(GEMM, 5, 10, 7, 1)], 0)
    second = write(tmp_path / "1.json", [step(2, 7, 90), *launched(GEMM, 5, 10, 7, 1)], 1)
    actual = break_down([read_trace(first), read_trace(second)])
    assert us(actual[1].kernel_s) == 5
    assert any("all of it counts" in note for note in actual[0].notes)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (GEMM, "compute_s"),
        ("void at::native::add(int)", "compute_s"),
        (ALL_REDUCE, "exposed_s"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "exposed_s"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "exposed_s"),  # RCCL's
        ("mscclKernel_Sum_half_LL_false(ncclDevComm*)", "exposed_s"),
        ("void rccl_sum(int)", "exposed_s"),
        (COPY, "copies_s"),
        ("Memset (Device)", "copies_s"),
        ("dma_copy", "copies_s"),
        ("Stream Sync", "other_s"),
        ("void BatchNormSync(int)", "other_s"),
        ("void myMemcpyKernel(int)", "other_s"),
        ("ncclGroupEnd", "compute_s"),
    ],
)
def test_the_kind_of_work_follows_from_its_name_as_in_hta(tmp_path, name, part):
    actual = breakdown(tmp_path, [kernel(name, 10, 30), kernel(GEMM, 40, 41)])
    assert us(getattr(actual, part)) == 20 + (part == "compute_s")


def test_kernels_that_hta_does_not_know_are_mentioned(tmp_path):
    def remark(name):
        notes = breakdown(tmp_path, [kernel(name, 0, 9), kernel(GEMM, 9, 20)]).notes
        return any("HTA takes them for computation" in note for note in notes)

    assert remark("mscclKernel_Sum(int)") and not remark(ALL_REDUCE)


def test_fractions_of_microseconds_are_rounded_inwards(tmp_path):
    events = [kernel(GEMM, 10.25, 12.75), kernel(GEMM, 20.5, 30.5)]
    assert us(breakdown(tmp_path, events).compute_s) == (12 - 11) + (30 - 21)
    assert us(breakdown(tmp_path, events, exact=True).compute_s) == 12.5


@pytest.mark.parametrize("event", [kernel(GEMM, 10, 10), host("aten::mm", 10, 10)])
def test_a_trace_in_which_no_time_passes_is_refused(tmp_path, event):
    with pytest.raises(ConfigError, match="no time passes"):
        breakdown(tmp_path, [event])


def test_idle_time_has_the_causes_of_hta(tmp_path):
    events = [
        *launched(GEMM, 0, 100, 7, 1),
        host("cudaLaunchKernel", 190, 191, "cuda_runtime", correlation=2),
        kernel(GEMM, 200, 300, link=2),  # launched after the one before had ended: host
        host("cudaLaunchKernel", 192, 193, "cuda_runtime", correlation=3),
        kernel(GEMM, 320, 400, link=3),  # 20 us: delay of a launch
        host("cudaLaunchKernel", 194, 195, "cuda_runtime", correlation=4),
        kernel(GEMM, 450, 500, link=4),  # launched long ago: waits
        kernel(GEMM, 600, 700),  # its launch is not in the trace
    ]
    actual = breakdown(tmp_path, events)
    assert us(actual.idle_host_s) == 100
    assert us(actual.idle_launch_s) == 20
    assert us(actual.idle_other_s) == 150
    assert us(actual.idle_s) == 270
    assert [us(value) for value in actual.streams[0][1:]] == [100, 20, 150]


def test_idle_time_of_a_stream_is_not_that_of_the_device(tmp_path):
    events = [kernel(GEMM, 0, 10, 7), kernel(GEMM, 50, 60, 7), kernel(ALL_REDUCE, 5, 55, 20)]
    actual = breakdown(tmp_path, events)
    assert us(actual.idle_s) == 0
    assert us(actual.streams[0].other_s) == 40


def test_a_trace_of_cpus_counts_operators_of_all_threads(tmp_path):
    events = [
        host("aten::mm", 0, 100),
        host("aten::copy_", 20, 40),  # within the other
        {**host("gloo:all_reduce", 80, 160, "user_annotation"), "tid": 7},
        host("aten::add_", 200, 220),
        host("optimizer", 0, 220, "user_annotation"),
    ]
    actual = breakdown(tmp_path, events)
    assert actual.devices == "CPU"
    assert us(actual.compute_s) == 120
    assert (us(actual.hidden_s), us(actual.exposed_s), us(actual.idle_s)) == (20, 60, 40)
    assert "no kernels of a GPU" in actual.notes[0]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def covered(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


def columns(intervals):
    return (np.array([pair[at] for pair in intervals], dtype=float) for at in (0, 1))


@given(INTERVALS, INTERVALS)
def test_merged_intervals_cover_what_their_parts_cover(left, right):
    first, second = merged(*columns(left)), merged(*columns(right))
    assert first.total == len(covered(left))
    assert shared(first, second) == len(covered(left) & covered(right))


WORK = st.lists(
    st.tuples(
        st.sampled_from([GEMM, ALL_REDUCE, COPY, "Stream Sync"]),
        st.integers(0, 200),
        st.integers(1, 50),
        st.sampled_from([7, 20]),
    ),
    min_size=1,
    max_size=12,
)


@given(WORK)
def test_the_parts_add_up_to_the_time(tmp_path_factory, work):
    events = [kernel(name, begin, begin + length, at) for name, begin, length, at in work]
    actual = breakdown(tmp_path_factory.mktemp("work"), events)
    parts = actual.compute_s, actual.exposed_s, actual.copies_s, actual.other_s, actual.idle_s
    assert us(sum(parts)) == us(actual.kernel_s)
    causes = actual.idle_host_s + actual.idle_launch_s + actual.idle_other_s
    assert us(causes) == us(actual.idle_s)
    busy = covered((begin, begin + length) for _, begin, length, _ in work)
    assert us(actual.idle_s) == us(actual.kernel_s) - len(busy)


def test_the_table_fits_a_terminal(tmp_path):
    actual = breakdown(tmp_path, TWO_STEPS)
    assert all(len(line) <= 80 for line in lines_of([actual] * 3))


def test_the_command_prints_the_numbers_of_each_rank(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank-{rank}.json", TWO_STEPS, rank)
    ended = CliRunner().invoke(timeline, [str(tmp_path), "--json"])
    values = json.loads(ended.output)
    assert [value["rank"] for value in values] == [0, 1]
    assert values[0]["overlap"] == pytest.approx(0.25)
    assert values[0]["exposed_s"] == pytest.approx(150e-6)
    ended = CliRunner().invoke(timeline, [str(tmp_path / "rank-0.json")])
    assert "55.6 %" in ended.output


@pytest.mark.parametrize(
    "options", [["--out", "x"], ["--steps", "2"], ["--write", "kineto", "x"], ["--stages", "2"]]
)
def test_options_of_others_are_refused_for_traces(tmp_path, options):
    path = write(tmp_path / "a.json", TWO_STEPS)
    ended = CliRunner().invoke(timeline, [str(path), *options])
    assert options[0] in str(ended.exception)


def test_ranks_that_no_trace_tells_are_told_apart_by_their_files(tmp_path):
    actual = breakdown(tmp_path, TWO_STEPS)
    several = [replace(actual, rank=None, file=f"rank-{at}.json") for at in range(3)]
    lines = lines_of(several)
    assert all(any(rank_breakdown.file in line for line in lines) for rank_breakdown in several)
    assert all(len(line) <= 80 for line in lines)
