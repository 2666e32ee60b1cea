"""A plan that is made from measurements has them made first; made again, they repeat no cell."""

from __future__ import annotations

import json
import os
import time

from workflow_project import SETTINGS, Workflow

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import InputDigests, Provenance, Result
from ddlbench.experiment.status import Status

PIPELINES = ["gpipe", "model-parallel-p2p", "pipedream", "pipe-gpipe"]
PROFILE = "results/box/profiles/mnist/mlp/fp32-1t/profile.json"


def experiment(workflow: Workflow, balance: str, strategies: list[str] | None = None) -> str:
    chosen = strategies or PIPELINES
    return workflow.experiment(
        f"measured_{balance}.yaml",
        matrix={"strategy": chosen},
        strategies={name: {"balance": balance} for name in chosen},
    )


def done(cell: Cell) -> Result:
    """A result of a cell that ended without times."""
    return Result(
        status=Status.UNSUPPORTED,
        reason="for this test",
        site="box",
        cell_id=cell.id,
        cell=cell.to_dict(),
        inputs=InputDigests(None, None, None, None),
        processes=1,
        devices=2,
        workers=1,
        device_kind="cpu",
        update_semantics="synchronous",
        notes=(),
        plan_details={},
        ranks=(),
        timing=None,
        staging=None,
        loss=None,
        communication=None,
        log_tail=(),
        elapsed_s=1.0,
        provenance=Provenance(),
    )


def planned(workflow: Workflow, *arguments: str, config: str) -> dict[str, int]:
    ended = workflow.snakemake(*arguments, "-n", "--quiet", "rules", config=config)
    assert ended.code == 0, ended.text
    if ended.did_nothing:
        return {}
    table = ended.text.partition("Job stats:\n")[2].partition("\n\n")[0]
    rows = (line.split() for line in table.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def test_a_measured_balance_asks_for_the_profile_and_the_links(workflow):
    jobs = planned(workflow, "cells", config=experiment(workflow, "profile"))
    assert jobs == {
        "profile": 1, "links_of_fabric": 1, "cell": 4, "cells": 1, "total": 7
    }  # fmt: skip


def test_a_profile_of_several_runs_pools_a_job_each(workflow):
    config = workflow.experiment("profiled.yaml", profile={"budget_s": 1, "runs": 3})
    jobs = planned(workflow, "profiles", config=config)
    assert jobs == {"profile": 3, "pooled_profile": 1, "profiles": 1, "total": 5}
    run_profile = PROFILE.replace("profile.json", "run-2/profile.json")
    assert planned(workflow, run_profile, config=config) == {"profile": 1, "total": 1}


def test_links_only_where_the_partitioner_needs_them(workflow):
    few = [name for name in PIPELINES if name != "pipedream"]
    jobs = planned(workflow, "cells", config=experiment(workflow, "profile", few))
    assert jobs == {"profile": 1, "cell": 3, "cells": 1, "total": 5}


def test_other_balances_ask_for_nothing(workflow):
    config = experiment(workflow, "1+5")
    jobs = planned(workflow, "cells", config=config)
    assert jobs == {"cell": 4, "cells": 1, "total": 5}


def test_a_profile_measured_again_repeats_no_cell(workflow):
    """A cell that is done stays done, whether its profile is gone or newer; others wait for it."""
    config = experiment(workflow, "profile", ["gpipe"])
    cell = Cell(
        "mnist",
        "mlp",
        "gpipe",
        devices_per_node=2,
        options=(("balance", "profile"),),
        **SETTINGS,
    )
    result = workflow.folder / "results" / "box" / "cells" / cell.id / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text(json.dumps({**done(cell).to_dict(), "provenance": {}}))
    assert planned(workflow, "cells", config=config).keys() <= {"cells", "total"}
    profile = workflow.folder / PROFILE
    profile.parent.mkdir(parents=True)
    profile.write_text("{}")
    later = time.time() + 60
    os.utime(profile, (later, later))
    assert planned(workflow, "cells", config=config).keys() <= {"cells", "total"}
    result.unlink()
    jobs = planned(workflow, "cells", config=config)
    assert jobs == {"cell": 1, "cells": 1, "total": 2}
    profile.unlink()
    assert planned(workflow, "cells", config=config)["profile"] == 1
