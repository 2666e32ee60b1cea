"""Features of nodes, and sbatch's ``--constraint``: what holds it, and what tells nodes apart."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# Signs with which sbatch(1) combines features are none of a name; nor is what a shell would read.
_FEATURE = r"[A-Za-z0-9_][A-Za-z0-9_.:=+@/-]*"
_ALL_OF = re.compile(rf"{_FEATURE}(&{_FEATURE})*")
# A feature that speaks of the GPU or its memory says more than the number of a rack.
_OF_A_GPU = re.compile(r"gpu|\d+ ?gb?\b", re.IGNORECASE)


def is_plain(constraint: str) -> bool:
    """Whether a constraint is one feature or several that all must be there, as ``v100&ib``."""
    return _ALL_OF.fullmatch(constraint) is not None


def holds(constraint: str, features: Collection[str]) -> bool:
    """Whether nodes with these features satisfy a plain constraint; any other is taken to hold."""
    return not is_plain(constraint) or set(constraint.split("&")) <= set(features)


def telling(
    features: Sequence[str], others: Sequence[Collection[str]], gpu_type: str = ""
) -> str | None:
    """The constraint that takes nodes with some features and leaves others out, as far as it can.

    Args:
        features: of the nodes to take.
        others: features of each kind of node to leave out.
        gpu_type: features that name it, or a GPU's memory, are taken first.

    Returns:
        None if no feature tells them apart.
    """

    def says_little(feature: str) -> bool:
        names_type = bool(gpu_type) and gpu_type.lower() in feature.lower()
        return not (names_type or _OF_A_GPU.search(feature))

    usable = sorted((f for f in features if re.fullmatch(_FEATURE, f)), key=says_little)
    left, chosen = [set(other) for other in others], []
    while left:
        best = max(usable, key=lambda f: sum(f not in other for other in left), default=None)
        if best is None or all(best in other for other in left):
            break
        chosen.append(best)
        left = [other for other in left if best in other]
    return "&".join(chosen) or None
