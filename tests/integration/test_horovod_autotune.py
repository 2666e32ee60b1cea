"""A cell whose Horovod tunes itself keeps the log of what was tried."""

from __future__ import annotations

import pytest
from cases.small_cells import needs_horovod
from local_cells import local_site, odd_cell, run_one


@needs_horovod
def test_the_log_stays_and_the_result_names_it(monkeypatch, tmp_path, shared_cells):
    """Short samples of Horovod's own, so that it tries several settings in a few steps."""
    monkeypatch.setenv("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "1")
    monkeypatch.setenv("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "1")
    cell = odd_cell("plain", "horovod", data_scale=0.004, warmup_steps=15)
    tuned = cell.with_(options=(("autotune", True),))
    result, folder = run_one(tuned, local_site(tmp_path), tmp_path)
    header, *rows = (folder / "autotune.csv").read_text().splitlines()
    details = result["plan_details"]
    assert header.endswith("cycle_time_ms,tensor_fusion_threshold,score")
    assert details["autotune_log"] == "autotune.csv"
    tried = details["autotune_samples"]
    assert tried["before"] > 0
    assert tried["measured"] > 0
    assert tried["before"] + tried["measured"] <= len(rows)  # recorded steps follow
    assert any("autotuner tried" in note for note in result["notes"])
    plain = shared_cells.run(cell).result["loss"]
    assert result["loss"] == pytest.approx(plain, rel=1e-5)
