"""Layers computed by several devices together: rows, filters or channels of each layer split."""
