"""Command groups of `ddlbench`, one file a subject."""
