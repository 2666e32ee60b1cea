"""Predict the time and memory of a step from files: links, profiles and plans.

Nothing here needs torch, a device or a network.
"""
