"""What measuring links asks of the scheduler. No torch: a login node plans with it."""

from __future__ import annotations

from ddlbench.experiment.site import Site
from ddlbench.planning.resources import SchedulerRequest, request

__all__ = ["is_given", "links_geometry", "links_request"]


def is_given(site: Site, fabric: str) -> bool:
    """Whether the site file holds the links of this fabric, so that nothing is measured."""
    return fabric in site.interconnect.get("links", {})


def links_geometry(site: Site, fabric: str) -> tuple[int, int]:
    """Nodes, and devices of each, that links are measured between.

    All of the site; one device where nothing is measured. On a cluster a real node stands for as
    many nodes of an emulated fabric as it has devices.
    """
    if is_given(site, fabric):
        return 1, 1
    if site.launcher == "slurm" and site.emulates(fabric):
        return site.devices_per_node, 1
    return site.nodes, site.devices_per_node


def links_request(site: Site, fabric: str) -> SchedulerRequest:
    """A job of the devices that links are measured between."""
    return request(*site.real_geometry(*links_geometry(site, fabric), fabric), site)
