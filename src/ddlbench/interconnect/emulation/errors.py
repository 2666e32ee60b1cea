"""What can go wrong with emulated links, in sentences for the user."""

__all__ = ["EmulationFailed", "LinkMissed"]


class EmulationFailed(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """Nodes or links could not be made, or ended before they should."""


class LinkMissed(RuntimeError):  # noqa: N818 - a state of the link, shown as such
    """A probed link is not what its setting says."""
