"""A profile as the table that pipeline partitioners read: a row a block, milliseconds and bytes.

``node,layer,forward_ms,backward_ms,activation_bytes,parameter_bytes``, nodes numbered from 1. Node
1 is the input, as in PipeDream's profiles, without time of its own.
"""

from __future__ import annotations

import csv
import io

from ddlbench.experiment.profile import BatchTime, InvalidProfile, Profile
from ddlbench.experiment.units import MS

__all__ = ["as_csv"]

_COLUMNS = ("node", "layer", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")


def as_csv(profile: Profile, batch_size: int) -> str:
    """The table at one of the profile's batch sizes.

    Raises:
        InvalidProfile: some block was not timed at that batch size.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    image_bytes = profile.blocks[0].input_bytes_per_sample * batch_size
    writer.writerow((1, "Input", "0.000", "0.000", round(image_bytes), 0))
    for node, block in enumerate(profile.blocks, start=2):
        writer.writerow(
            (
                node,
                block.name,
                f"{MS.of(_seconds(profile, block.name, block.forward, batch_size)):.6f}",
                f"{MS.of(_seconds(profile, block.name, block.backward, batch_size)):.6f}",
                round(block.output_bytes_per_sample * batch_size),
                block.parameter_bytes,
            )
        )
    return out.getvalue()


def _seconds(profile: Profile, block: str, times: tuple[BatchTime, ...], batch_size: int) -> float:
    for time in times:
        if time.batch_size == batch_size:
            return time.time_s
    raise InvalidProfile(
        f"profile {profile.profile_id}: block {block!r} was not timed at batch size "
        f"{batch_size}; take one of {', '.join(map(str, profile.batch_sizes))}"
    )
