"""What stands under the figures of links: site, fabric, date, commit."""

from __future__ import annotations

from ddlbench.experiment.links import Links

__all__ = ["origin"]

_SHORT_COMMIT = 7


def origin(links: Links) -> list[str]:
    """Lines for the footer."""
    provenance = links.provenance
    parts = [f"Site {links.site} ({links.device_kind})", f"fabric {links.fabric}"]
    if provenance.get("created"):
        parts.append(str(provenance["created"])[:10])
    if provenance.get("git_commit"):
        dirty = "-dirty" if provenance.get("git_dirty") else ""
        parts.append(f"commit {provenance['git_commit'][:_SHORT_COMMIT]}{dirty}")
    return [f"{'; '.join(parts)}."]
