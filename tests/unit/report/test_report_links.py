"""Figures of links: what they show, and their tables."""

import pytest

from ddlbench.common.fits import fit_hockney, given_hockney
from ddlbench.experiment.links import Links, LinkSweep, PairMatrix, SweepPoint
from ddlbench.report.drawing import make_links_figures
from ddlbench.report.figures.links import draw_links, draw_sweeps
from ddlbench.report.style import style


def pair(size, slow=()):
    values = [[None if i == j else 1e9 * (1 + i + j) for j in range(size)] for i in range(size)]
    return {
        "scope": "world",
        "method": "gloo",
        "access": None,
        "direction": "unidirectional",
        "operation": None,
        "node_type": None,
        "endpoints": [f"rank {rank}" for rank in range(size)],
        "nodes": [rank // 2 for rank in range(size)],
        "bandwidth_bytes_per_s": values,
        "latency_s": [[v and v * 1e-15 for v in row] for row in values],
        "repeats": 3,
        "slow_pairs": [{"sender": i, "receiver": j, "bandwidth_ratio": 0.5} for i, j in slow],
    }


def sweep(points=True, nodes=1, operation="all_reduce", transport="gloo"):
    measured = [
        {
            "message_bytes": 2**power,
            "time_s": 1e-4 + 2**power * 1e-9,
            "interval_s": [0.9e-4 + 2**power * 1e-9, 1.2e-4 + 2**power * 1e-9],
            "repeats": 9,
        }
        for power in range(10, 27, 2)
    ]
    sweep_points = [SweepPoint.from_dict(point) for point in measured]
    fit = fit_hockney(sweep_points) if points else given_hockney(1e-5, 1e9)
    return {
        "operation": operation,
        "transport": transport,
        "level": "network" if nodes > 1 else "node",
        "nodes": nodes,
        "devices_per_node": 2,
        "ranks": 2 * nodes,
        "points": measured if points else [],
        "fit": fit.to_dict(),
    }


def links(pairs, sweeps):
    return Links(
        site="here",
        fabric="default",
        device_kind="cpu",
        pairs=tuple(map(PairMatrix.from_dict, pairs)),
        sweeps=tuple(map(LinkSweep.from_dict, sweeps)),
        notes=("a note",),
        provenance={"created": "2026-01-02T03:04:05+00:00", "git_commit": "0123456789"},
    )


def texts(figure, gid):
    return [t.get_text() for axes in figure.axes for t in axes.texts if t.get_gid() == gid]


def test_a_heat_map_writes_every_pair_and_frames_slow_ones():
    with style():
        figure, table = draw_links(links([pair(4, slow=[(1, 2)])], []))
    assert len(table) == 12
    assert len(texts(figure, "number")) == 2 * 12
    frames = [p for axes in figure.axes for p in axes.patches if p.get_gid() == "slow"]
    assert [(p.get_x(), p.get_y()) for p in frames] == [(2 - 0.46, 1 - 0.46)]
    slow = table[table["slow_ratio"].notna()]
    assert slow[["from", "to"]].to_numpy().tolist() == [[1, 2]]
    assert set(table["level"]) == {"node", "network"}


def test_large_matrices_have_no_numbers_in_their_cells():
    with style():
        figure, table = draw_links(links([pair(16)], []))
    assert texts(figure, "number") == []
    assert len(table) == 240


def test_sweeps_draw_points_and_the_fit():
    with style():
        figure, table = draw_sweeps(
            links([], [sweep(), sweep(nodes=2), sweep(transport="horovod")])
        )
    drawn = [line.get_gid() for axes in figure.axes for line in axes.lines]
    assert len(figure.axes) == 2
    assert drawn.count("points") == 3
    assert "fit" in drawn
    assert len(table) == 27
    assert table["relative_residual"].abs().max() == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    "content", [links([pair(2)], [sweep(points=False, transport="given")]), links([], [])]
)
def test_links_given_by_hand_or_empty_are_drawn(tmp_path, content):
    made = make_links_figures(content, tmp_path)
    assert [path.name for path in made] == ["links.png", "sweeps.png"]
    assert all(path.with_suffix(kind).is_file() for path in made for kind in (".pdf", ".csv"))
