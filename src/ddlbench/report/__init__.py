"""From results to tidy tables and figures; needs no torch.

``make_tables`` once an experiment, then ``make_figure`` for each of ``figures_for(rows)``.
"""

from ddlbench.report.figures import FIGURES, figures_for, make_figure
from ddlbench.report.make import make_tables
from ddlbench.report.measurements import collect
from ddlbench.report.step_table import collect_steps
from ddlbench.report.summary import summarise

__all__ = [
    "FIGURES",
    "collect",
    "collect_steps",
    "figures_for",
    "make_figure",
    "make_tables",
    "summarise",
]
