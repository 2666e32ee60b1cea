"""The SLURM executor reads job states as single words."""

import asyncio
import sys
import types

from ddlbench.workflow import mend_slurm_executor


def test_who_cancelled_a_job_is_left_out(monkeypatch):
    async def query(command, logger):
        return {"7": "CANCELLED by 1000", "8": "RUNNING"}, 0.1

    executor = types.ModuleType("snakemake_executor_plugin_slurm")
    executor.query_job_status = query
    monkeypatch.setitem(sys.modules, executor.__name__, executor)
    mend_slurm_executor()
    mend_slurm_executor()  # twice does no harm
    states, _ = asyncio.run(executor.query_job_status("sacct", None))
    assert states == {"7": "CANCELLED", "8": "RUNNING"}


def test_a_query_that_failed_stays_one(monkeypatch):
    async def query(command, logger):
        return None, None

    executor = types.ModuleType("snakemake_executor_plugin_slurm")
    executor.query_job_status = query
    monkeypatch.setitem(sys.modules, executor.__name__, executor)
    mend_slurm_executor()
    assert asyncio.run(executor.query_job_status("sacct", None)) == (None, None)


def test_another_executor_needs_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "snakemake_executor_plugin_slurm", raising=False)
    mend_slurm_executor()
