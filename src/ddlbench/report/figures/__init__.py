"""Every figure but timelines: one file a figure or a family, named in the registry."""

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported
