"""When a runtime posts its receives, and which sends it waits for.

A message travels once its receive is posted: gloo and NCCL send no large message before that. So a
receive that is posted only where it is waited for hides nothing of it::

    posted ahead       receiver  | pass ----------- | pass            the message came meanwhile
                       message        |------|
    posted on demand   receiver  | pass ---- |waits.......| pass      it leaves when it is asked for
                       message                |..|------|

=============================  =======================  ===========================================
schedule                       receives posted          sends waited for
=============================  =======================  ===========================================
``pipedream``                  one ahead on each        never (their number is bounded by the
                               channel                  warm-up)
``model-parallel``             on demand                never
``gpipe``                      on demand                at the end of the step
``1f1b``                       on demand                in the steady state together with the next
                                                        receive, else before the next send; at the
                                                        end of the step
all others                     long before              at the end of the step
=============================  =======================  ===========================================

Sources: this project's PipeDream runtime; ``torch.distributed.pipelining`` 2.13, ``schedules.py``:
``ScheduleGPipe``, ``Schedule1F1B``, and ``_PipelineScheduleRuntime`` for all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlbench.planning.schedules.action import Schedule

__all__ = ["EAGER", "Messaging", "messaging_of"]


@dataclass(frozen=True)
class Messaging:
    """How messages are waited for.

    Args:
        receives_ahead: receives of a channel that are posted beyond the one that is waited for; 0
            posts each on demand, None is all of them, long before.
        paired: a send and the receive of the other kind behind it are posted and waited for
            together, and a send is waited for before the next one.
        waits_for_sends: an update, or the all-reduce before it, waits for all sends of its rank.
        late_sums: an update waits for the all-reduce of the update before, the last one for its
            own, too.
    """

    receives_ahead: int | None = None
    paired: bool = False
    waits_for_sends: bool = False
    late_sums: bool = False


EAGER = Messaging()

_OF_SCHEDULE = {
    "pipedream": Messaging(receives_ahead=1),
    "model-parallel": Messaging(receives_ahead=0),
    "gpipe": Messaging(receives_ahead=0, waits_for_sends=True),
    "1f1b": Messaging(receives_ahead=0, paired=True, waits_for_sends=True),
}


def messaging_of(schedule: Schedule) -> Messaging:
    """How the runtime of a schedule waits for messages."""
    return _OF_SCHEDULE.get(schedule.name, Messaging(waits_for_sends=True))
