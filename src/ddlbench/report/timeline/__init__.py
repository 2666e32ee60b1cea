"""Timelines: what the plan says of each device, above what each device did."""
