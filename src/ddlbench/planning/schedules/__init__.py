"""Pipeline schedules as data: who does what, in which order. No torch here."""

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Schedule
from ddlbench.planning.schedules.check import check, most_held
from ddlbench.planning.schedules.deadlock import blocked
from ddlbench.planning.schedules.events import Event, EventGraph, Placed, events_of
from ddlbench.planning.schedules.gpipe import gpipe
from ddlbench.planning.schedules.interleaved import interleaved_1f1b
from ddlbench.planning.schedules.messaging import EAGER, Messaging, messaging_of
from ddlbench.planning.schedules.model_parallel import model_parallel
from ddlbench.planning.schedules.one_f_one_b import one_f_one_b
from ddlbench.planning.schedules.pipedream import pipedream, weight_version
from ddlbench.planning.schedules.replay import (
    Durations,
    Links,
    StageDurations,
    TimedAction,
    Timeline,
    no_links,
    replay,
)
from ddlbench.planning.schedules.replicate import replicate
from ddlbench.planning.schedules.zero_bubble import interleaved_zero_bubble
from ddlbench.planning.schedules.zero_bubble_v import zero_bubble_v

__all__ = [
    "EAGER",
    "Action",
    "Durations",
    "Event",
    "EventGraph",
    "InvalidSchedule",
    "Links",
    "Messaging",
    "Placed",
    "Schedule",
    "StageDurations",
    "TimedAction",
    "Timeline",
    "blocked",
    "check",
    "events_of",
    "gpipe",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "messaging_of",
    "model_parallel",
    "most_held",
    "no_links",
    "one_f_one_b",
    "pipedream",
    "replay",
    "replicate",
    "weight_version",
    "zero_bubble_v",
]
