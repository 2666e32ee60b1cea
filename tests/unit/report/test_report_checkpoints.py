"""Cells with checkpoints in the tables: cost and lost work stand apart from the times."""

from __future__ import annotations

from report_factory import collect, matrix, result, write

PART = {
    "every_steps": 5,
    "save_s": [0.5, 0.75],
    "total_s": 1.25,
    "bytes": 1000,
    "samples_per_s": 3.0,
    "resumed": 1,
    "restore_s": 0.25,
    "rehearsal_s": 2.0,
    "lost_steps": 4,
    "lost_s": 3.0,
    "attempts": [],
}


def test_what_checkpoints_cost_is_in_the_table(tmp_path):
    rows = matrix(datasets=["mnist"], networks=["vgg11"], strategies=["sequential", "ddp"])
    base, ddp = (row.cell for row in rows)
    write(tmp_path, base)  # older than checkpoints: it does not speak of them
    write(tmp_path, ddp, result(ddp, checkpointing=PART))
    table = collect("demo", "local", rows, tmp_path).set_index("strategy")
    actual = table.loc["ddp"]
    assert (actual["checkpoint_s"], actual["resumed"], actual["lost_steps"]) == (1.25, 1, 4)
    for name in ("checkpoint_s", "resumed", "lost_steps"):
        assert table[name].isna()["sequential"]
