"""Timelines: the planned work of each device above the measured work."""
