"""Checkpoints: what a rank writes, how sets lie on disk, and how a cell goes on from one."""
