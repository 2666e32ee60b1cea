"""Holistic Trace Analysis opens our traces, and finds what we find in anybody's."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from cases.kineto_traces import ALL_REDUCE, COPY, GEMM, host, kernel, step, write
from cases.traced_cells import DDP, PIPELINE, folder_of

from ddlbench.report.traces.breakdown import breakdowns_of, trace_files
from ddlbench.report.traces.formats import write_cell
from ddlbench.report.traces.kineto_file import read_trace

FOLDER = "DDLBENCH_KINETO_TRACES"
"""Names a folder of public Kineto traces, to compare on them, too."""
ANALYSE = """
import json, logging, sys, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
files, last = json.loads(sys.argv[1]), sys.argv[2] == "last"
analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=last)
found = {}
times = analysis.get_temporal_breakdown(visualize=False)
overlaps = analysis.get_comm_comp_overlap(visualize=False)
for rank in times["rank"]:
    found[int(rank)] = json.loads(times[times["rank"] == rank].iloc[0].to_json())
    overlap = overlaps[overlaps["rank"] == rank]["comp_comm_overlap_pctg"].iloc[0]
    found[int(rank)]["overlap"] = None if overlap != overlap else float(overlap)
    streams, _ = analysis.get_idle_time_breakdown(ranks=[int(rank)], visualize=False)
    found[int(rank)]["streams"] = [
        [int(row["stream"]), row["idle_category"], float(row["idle_time"])]
        for _, row in streams.iterrows()
    ]
print(json.dumps(found))
"""


@pytest.fixture(scope="session")
def hta(tool):
    """What HTA finds in traces, by rank."""
    python = tool("hta") / "python"

    def analyse(files, last_step=False, **environment):
        ranks = {read_trace(file).rank or 0: str(file) for file in files}
        command = [python, "-c", ANALYSE, json.dumps(list(ranks.values()))]
        ended = subprocess.run(
            [*command, "last" if last_step else "cut"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        return {int(rank): values for rank, values in json.loads(ended.stdout).items()}

    return analyse


def compare(files, by_rank, *, streams=True, **settings):
    """Print both side by side; they must be equal to the microsecond.

    ``streams``: idle time of each stream, too, which HTA does not determine where several events of
    a stream begin in one microsecond.
    """
    for breakdown in breakdowns_of(files, **settings):
        theirs = by_rank[breakdown.rank or 0]
        ours = {
            "kernel_time(us)": breakdown.kernel_s,
            "compute_time(us)": breakdown.compute_s,
            "idle_time(us)": breakdown.idle_s,
            "non_compute_time(us)": breakdown.exposed_s + breakdown.copies_s + breakdown.other_s,
        }
        for name, seconds in ours.items():
            print(f"{breakdown.file} {name}: HTA {theirs[name]:.0f}, ddlbench {seconds * 1e6:.0f}")
            assert seconds * 1e6 == pytest.approx(theirs[name], rel=1e-4, abs=2)
        overlap = breakdown.overlap
        print(f"{breakdown.file} overlap: HTA {theirs['overlap']}, ddlbench {overlap}")
        if theirs["overlap"] is None:
            assert overlap is None
        else:
            assert overlap is not None
            assert 100 * overlap == pytest.approx(theirs["overlap"], abs=0.006)
        causes = {"host_wait": "host_wait_s", "kernel_wait": "kernel_wait_s", "other": "other_s"}
        known = {stream.stream: stream for stream in breakdown.streams}
        for stream, cause, us in theirs["streams"] if streams else ():
            seconds = getattr(known[stream], causes[cause])
            assert seconds * 1e6 == pytest.approx(us, rel=1e-4, abs=2)


@pytest.mark.parametrize("cell", [DDP, PIPELINE], ids=["ddp", "pipe-1f1b"])
def test_a_cell_opens_in_hta(cell, hta, tmp_path):
    write_cell(folder_of(cell), "kineto", tmp_path / "out")
    files = trace_files([tmp_path / "out"])
    actual = hta(files)
    assert sorted(actual) == list(range(cell.devices))
    compare(files, actual)


def random_trace(path: Path, rank: int, fractions: bool, shortest: float = 1.4) -> Path:
    """Three steps of kernels on three streams, launched in time or late, some without a launch."""
    drawn = random.Random(f"{rank} {fractions}")
    events = [step(number, number * 1000, (number + 1) * 1000) for number in range(3)]
    names = [GEMM, ALL_REDUCE, COPY, "void BatchNormSync(int)", "Memset (Device)"]
    free_from = dict.fromkeys((7, 20, 21), 0.0)  # a stream does one thing at a time
    for link in range(70_000, 70_200):
        stream = drawn.choice(list(free_from))
        begin = free_from[stream] + drawn.choice([0.5, 4.0, drawn.uniform(5, 80)])
        length = drawn.choice([shortest, drawn.uniform(1.4, 40)])
        late = drawn.choice([1.0, 30.0, 300.0])
        if not fractions:
            begin, length, late = round(begin), max(1, round(length)), round(late)
        free_from[stream] = begin + length
        work = kernel(drawn.choice(names), begin, begin + length, stream)
        if drawn.random() < 0.9:
            work["args"]["correlation"] = link
            launched = max(0, begin - late)
            events.append(
                host("cudaLaunchKernel", launched, launched + 1, "cuda_runtime", correlation=link)
            )
        events.append(work)
    return write(path, events, rank)


@pytest.mark.parametrize("last_step", [False, True])
@pytest.mark.parametrize(("fractions", "shortest"), [(False, 1), (True, 1.4), (True, 0.3)])
def test_random_traces_of_two_ranks_have_the_numbers_of_hta(
    hta, tmp_path, fractions, shortest, last_step
):
    files = [random_trace(tmp_path / f"{rank}.json", rank, fractions, shortest) for rank in (0, 1)]
    compare(files, hta(files, last_step), last_step=last_step, streams=shortest >= 1)


def test_times_that_are_not_rounded_are_those_of_hta_without_rounding(hta, tmp_path):
    files = [random_trace(tmp_path / "0.json", 0, True)]
    compare(files, hta(files, HTA_DISABLE_NS_ROUNDING="1"), exact=True)


def test_public_traces_have_the_numbers_of_hta(hta):
    folder = os.environ.get(FOLDER)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{FOLDER} names no folder of Kineto traces")
    files = [file for file in trace_files([Path(folder)]) if not file.name.endswith(".tar.gz")]
    for file in files:
        for last_step in (False, True):
            compare([file], hta([file], last_step), last_step=last_step)
