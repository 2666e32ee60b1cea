"""What measuring links asks of the scheduler. No torch: a login node plans with it."""

from __future__ import annotations

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Site
from ddlbench.planning.resources import SchedulerRequest, request

__all__ = ["is_given", "links_request"]


def is_given(site: Site, fabric: str) -> bool:
    """Whether the site file holds the links of this fabric, so that nothing is measured."""
    return fabric in site.interconnect.get("links", {})


def links_request(site: Site, fabric: str) -> SchedulerRequest:
    """A job of all nodes and devices of the site; of one device where nothing is measured."""
    nodes, devices = (1, 1) if is_given(site, fabric) else (site.nodes, site.devices_per_node)
    # Only the geometry of the cell is asked for.
    return request(
        Cell("mnist", "vgg11", "ddp", batch_size=1, nodes=nodes, devices_per_node=devices), site
    )
