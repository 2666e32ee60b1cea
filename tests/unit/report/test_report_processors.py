"""No speed-up on different processors, and a mark where the machine's speed changed."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from report_factory import SITE_NAME, collect, experiment, matrix, result, site, write

from ddlbench.experiment.result import Provenance
from ddlbench.planning.matrix import expand
from ddlbench.report.comparability import Circumstances, unlike_base, unlike_ranks
from ddlbench.report.figures.pipelines import pipeline_table
from ddlbench.report.footer import Context, common_notes
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import FIGURES
from ddlbench.report.style import style
from ddlbench.report.terminal import summary_lines

OLD, NEW = "EPYC 7402 24-Core", "EPYC 9334 32-Core"
NO_CODE = SimpleNamespace(network_digest=None)  # the network is built in
NOTE = "unlike_base processors: {} (base), {} (cell)"


def on(values, cpus=(), gpus=(), *, provenance=None, probe_s=(), accelerator=None):
    """A result whose ranks ran there; without any, one from before they said so."""
    for number, rank in enumerate(values["ranks"]):
        if cpus:
            rank["cpu_model"] = cpus[number % len(cpus)]
            rank["gpu_models"] = [gpus[number % len(gpus)]] if gpus else []
    values["ranks"][0]["probe_s"] = list(probe_s)
    values["accelerator"] = accelerator
    values["device_kind"] = "cuda" if gpus or (provenance or {}).get("gpu_models") else "cpu"
    values["provenance"].update(provenance or {})
    return values


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The row of DDP on two devices, 12 s for its base's 18 s, where both ran as given."""
    rows = matrix(
        monkeypatch,
        datasets=["mnist"],
        networks=["vgg11"],
        strategies=["sequential", "ddp"],
        geometry=["1x2"],
    )

    def run(base, cell):
        for row in rows:
            alone = row.cell.strategy == "sequential"
            values = result(row.cell, epoch_s=18.0 if alone else 12.0)
            write(tmp_path, row.cell, on(values, **(base if alone else cell)))
        frame = collect("demo", SITE_NAME, rows, tmp_path)
        assert frame[frame["strategy"] == "sequential"].iloc[0]["speedup"] == 1.0
        return frame[frame["strategy"] == "ddp"].iloc[0]

    return run


@pytest.mark.parametrize(
    "old",
    [{"cpus": (OLD,)}, {"provenance": {"cpu_model": OLD}}],
    ids=["ranks", "provenance"],
)
def test_no_speedup_across_processors(old, measured):
    row = measured(old, {"cpus": (NEW,)})
    assert math.isnan(row["speedup"])
    assert math.isnan(row["base_samples_per_s"])
    assert row["comparability"] == NOTE.format(OLD, NEW)
    assert row["no_speedup"] == "unlike_base"
    assert (row["status"], row["processors"], row["epoch_s"]) == ("ok", NEW, 12.0)


@pytest.mark.parametrize("known", [{"cpus": (OLD,)}, {}])
def test_a_speedup_where_nothing_is_known_or_all_is_alike(known, measured):
    row = measured(known, known)
    assert row["speedup"] == pytest.approx(1.5)
    assert row["comparability"] == ""


def test_one_rank_on_another_processor_is_enough(measured):
    row = measured({"cpus": (OLD,)}, {"cpus": (OLD, NEW)})
    assert math.isnan(row["speedup"])
    assert row["processors"] == f"{OLD} | {NEW}"
    mixed, unequal = row["comparability"].split(" | ")
    assert mixed == f"ranks_differ processors: {OLD}, {NEW}"
    assert unequal == NOTE.format(OLD, f"{OLD}, {NEW}")


def test_ranks_are_believed_before_provenance(measured):
    rank_0 = {"cpu_model": NEW}  # of the host that wrote it down
    row = measured({"cpus": (OLD,), "provenance": rank_0}, {"cpus": (OLD,)})
    assert row["speedup"] == pytest.approx(1.5)


@pytest.mark.parametrize(
    "a100",
    [{"cpus": (OLD,), "gpus": ("A100",)}, {"provenance": {"gpu_models": ["A100", "A100"]}}],
    ids=["ranks", "provenance"],
)
def test_gpus_count_and_not_their_hosts(a100, measured):
    h100 = {"cpus": (OLD,), "gpus": ("H100",)}
    assert measured(a100, h100)["comparability"] == NOTE.format("A100", "H100")
    assert measured(a100, a100)["speedup"] == pytest.approx(1.5)


def test_gpus_of_other_hosts_have_a_speedup_and_a_note(measured):
    row = measured({"cpus": (OLD,), "gpus": ("A100",)}, {"cpus": (NEW,), "gpus": ("A100",)})
    assert row["speedup"] == pytest.approx(1.5)
    assert row["processors"] == "A100"
    assert row["comparability"] == f"base_differs host_processors: {OLD} (base), {NEW} (cell)"


def test_a_result_without_ranks_has_nothing_to_say():
    result = SimpleNamespace(
        ranks=(), ranks_differ={}, provenance=Provenance(), device_kind="cuda", link=None,
        own_data=None, inputs=NO_CODE,
    )  # fmt: skip
    nothing = Circumstances.of(result)
    assert nothing == Circumstances()
    assert unlike_ranks(result, nothing) == []
    assert unlike_base(nothing, Circumstances(("A100",), (OLD,))) == []


def test_emulated_nodes_are_their_host():
    """Else every cell over an emulated link would run on other hosts than its base."""
    ranks = [SimpleNamespace(host=f"node{n}", cpu_model=OLD, gpu_models=[]) for n in range(2)]
    result = SimpleNamespace(
        ranks=ranks,
        provenance=Provenance(),
        device_kind="cpu",
        link=None,
        own_data=None,
        inputs=NO_CODE,
    )
    assert Circumstances.of(result).host_kinds == ("node#",)
    result.link = SimpleNamespace(host="login7.cluster")
    assert Circumstances.of(result).host_kinds == ("login#",)


@pytest.fixture
def tables(tmp_path):
    """Pipelines of two and four devices; those of four ran on a newer node than the base."""
    chosen = experiment(
        datasets=["cifar10"],
        networks=["vgg16"],
        strategies=["sequential", "pipe-1f1b"],
        geometry=["1x2", "1x4"],
    )
    rows = expand(chosen, site())
    for row in rows:
        model = NEW if row.cell.devices == 4 else OLD
        values = result(row.cell, epoch_s=8.0 / row.cell.devices)
        write(tmp_path, row.cell, on(values, cpus=(model,)))
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


@pytest.mark.parametrize("name", ["speedup", "scaling", "pipelines"])
def test_figures_say_why_there_is_no_speedup(tables, name):
    with style():
        figure, plotted = FIGURES[name].function()(tables, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    marks = dict(zip(plotted["geometry"], plotted["mark"], strict=True))
    assert marks == {"1x2": "", "1x4": "unlike base"}
    row = plotted[plotted["geometry"] == "1x4"].iloc[0]
    assert math.isnan(row["speedup"])
    below = " ".join(text.get_text() for text in of(figure, "footer"))
    assert f"No speed-up, as base and cell ran on different processors: {OLD} (base)" in " ".join(
        below.split()
    )


def test_the_share_of_a_bound_is_not_taken_across_processors(tables):
    table = pipeline_table(tables).set_index("geometry")
    assert math.isfinite(table.loc["1x2", "share_of_bound"])
    assert math.isnan(table.loc["1x4", "share_of_bound"])
    assert math.isnan(table.loc["1x4", "speedup_low"])


def test_the_terminal_says_so_too(tables, tmp_path):
    rows = summary_lines(tmp_path / "tables")[2:]
    assert "base" in rows[0]
    assert any("unlike base" in row for row in rows)


def test_notes_of_processors_stand_once(tables):
    new = tables.summary[tables.summary["geometry"] == "1x4"]
    assert new["comparability"].tolist() == [NOTE.format(OLD, NEW)]
    assert common_notes(new) == []


@pytest.mark.parametrize(
    ("base", "cell", "unsteady"),
    [
        ((0.010, 0.010), (0.0105, 0.0105), False),
        ((0.010, 0.010), (0.012, 0.012), True),  # slower than when the base ran
        ((0.010, 0.010), (0.0095, 0.0112), True),  # slower after than before
    ],
)
def test_a_machine_whose_speed_changed_is_marked(base, cell, unsteady, measured):
    row = measured({"probe_s": base}, {"probe_s": cell})
    assert row["speedup"] == pytest.approx(1.5)
    assert row["probe_s"] == pytest.approx(sum(cell) / 2)
    assert row["probe_change"] == pytest.approx(cell[1] / cell[0] - 1)
    assert row["speedup_normalised"] == pytest.approx(1.5 * row["probe_s"] / 0.010)
    assert row["unsteady"] == unsteady


def test_emulated_computation_takes_the_same_time_at_any_speed(measured):
    emulated = {"accelerator": {"profiles": "one-core"}}
    row = measured({"probe_s": (0.01, 0.01), **emulated}, {"probe_s": (0.01, 0.02), **emulated})
    assert row["probe_change"] == pytest.approx(1.0)
    assert not row["unsteady"]


def test_without_probes_nothing_is_marked(measured):
    row = measured({}, {"probe_s": (0.01, 0.01)})
    assert not row["unsteady"]
    assert math.isnan(row["speedup_normalised"])
