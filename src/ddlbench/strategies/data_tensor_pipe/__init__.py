"""Replicas of pipelines whose stages are groups of devices that split linear layers."""
