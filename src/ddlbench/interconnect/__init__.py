"""Measures latency and bandwidth between the devices of a site: one links.json a fabric.

::

    time_plan.py     what limits each part, and foretells it     -+
    node_pairs.py    copies between the devices of a node         |
    sweep.py         collectives and ping-pong of the ranks       +-> measure.py -> links.json
    rank_pairs.py    pairs of all ranks                          -+

The tools run on the nodes and need torch; the code that reads their output does not. Neither does
``link_tests.py``, which lists the readers of other programs' output.
"""
