"""Times and bytes of a network's layers and steps, measured on one device: profile.json.

::

    profile.py   in the job: starts a process a device, which measures its part, and gathers;
                 afterwards: one profile from several such jobs
      steps.py     whole steps as a cell runs them; peak memory; slower beside neighbours; alone
      layers.py    rows of the profile, of blocks and of leaf operations, each of which runs alone:
                     time, output, what autograd keeps
        blocks.py    a step cut at every boundary between blocks; when gradients are ready;
                     gradients of input and weights apart, as zero-bubble schedules run them
    timers.py    marks of time; their medians; how often, how long
"""
