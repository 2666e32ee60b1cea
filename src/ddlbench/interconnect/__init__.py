"""How fast the devices of a site talk to each other: one links.json a fabric.

::

    given.py         links written into the site file            -+
    node_pairs.py    copies between the devices of a node         +-> measure.py -> links.json
    sweep.py         collectives and ping-pong of the ranks      -+

``node_pairs`` and ``sweep`` run on the nodes and need torch; the parsers and ``measure`` do not.
"""
