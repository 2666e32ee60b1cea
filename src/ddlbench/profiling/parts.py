"""What a step is made of, from steps without marks and a few with them.

::

    CPU     |  load  | forward | backward | optimiser |      one after the other: loading is the
                                                             host's, the rest is shared as marked

    CUDA    host    | load | issue | load | issue | ...      loading overlaps work of the device:
            device    ..| forward | backward | optimiser |.. the parts are the device's own, and
                                                             only what is left waited for data
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["on_device", "on_host"]


def on_host(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """Entries of ``steps`` where the step follows its loading.

    Args:
        step_s: of a step without marks.
        load_s: of that, the host's wait for data.
        marked_s: seconds of each part over all marked steps.
        marked: how many these were.

    Returns:
        ``load_s``, and ``<part>_s`` of each part; together ``step_s``.
    """
    total_s = sum(marked_s.values()) or 1.0
    computing_s = max(step_s - load_s, 0.0)
    parts = {f"{name}_s": value / total_s * computing_s for name, value in marked_s.items()}
    return {"load_s": load_s, **parts}


def on_device(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """The same where a device works while its host loads.

    ``load_s`` is what the step exceeds its parts by, not the host's wait: that lies beside the
    device's work, not before it. Where marked steps were slower than the others it is 0.
    """
    parts = {f"{name}_s": value / marked for name, value in marked_s.items()}
    return {"load_s": max(step_s - sum(parts.values()), 0.0), **parts}
