"""Which data a cell reads."""

from __future__ import annotations

from typing import Literal, cast

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.data_size import SYNTHETIC, DataRequest
from ddlbench.experiment.dataset_spec import DataFormat
from ddlbench.experiment.site import Site

__all__ = ["request_of"]


def request_of(cell: Cell, site: Site) -> DataRequest:
    """The data of a cell on a site: generated, or the site's own copy."""
    source = SYNTHETIC if cell.data_source == "synthetic" else site.real_data[cell.dataset]
    return DataRequest(
        dataset=cell.dataset,
        data_format=cast("DataFormat | Literal['native']", cell.data_format),
        scale=cell.data_scale,
        seed=cell.seed,
        source=source,
    )
