"""What keeps planning quick changes nothing of what is planned."""

from __future__ import annotations

import gc
import inspect
from dataclasses import replace

import pytest
from snakemake.common import get_function_params

from ddlbench.experiment.site import load_site
from ddlbench.planning.budget import request, same_for_all
from ddlbench.workflow.run import inspected, plan_quickly, planned


@pytest.mark.parametrize("name", ["local", "slurm-example"])
@pytest.mark.parametrize("memory_mb", [None, 4000])
@pytest.mark.parametrize("gres", ["gpu", ""])
def test_constants_of_a_site_are_what_each_geometry_asks_for(name, memory_mb, gres):
    site = load_site(name, as_example=True)
    site = replace(
        site, memory_per_device_mb=memory_mb, slurm=replace(site.slurm, gres=gres, exclude=("n3",))
    )
    constants = same_for_all(site)
    for geometry in ((1, 1), (1, 2), (2, 1), (2, 4)):
        resources = vars(request(*geometry, site))
        assert {field: resources[field] for field in constants} == constants
    assert "--exclude=n3" in constants["extra"]


def test_snakemake_sees_the_parameters_of_an_inspected_function():
    function = inspected(lambda wildcards, attempt: attempt)
    assert list(get_function_params(function)) == ["wildcards", "attempt"]
    assert get_function_params(function) == inspect.signature(function).parameters


def test_garbage_is_collected_again_once_jobs_run():
    plan_quickly()
    assert not gc.isenabled()
    planned()
    assert gc.isenabled()
    gc.unfreeze()
