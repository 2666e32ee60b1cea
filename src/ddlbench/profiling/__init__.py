"""Times and bytes of a network's layers and steps, measured on one device: profile.json.

::

    make.py      in the job: starts a process a device, gathers, writes the profile
      worker.py    in each process: steps -> replicas -> blocks -> leaf operations
        steps.py     whole steps as a cell runs them; peak memory; when gradients are ready
        replicas.py  how much slower when neighbours compute too
        bytes.py     what each leaf operation puts out and what autograd keeps
        blocks.py    a step cut at every boundary between blocks
        leaves.py    each leaf operation alone, on its recorded input
    clock.py, samples.py, budget.py    marks of time; their medians; how often, how long
"""
