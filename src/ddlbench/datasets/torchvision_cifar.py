"""Reads synthetic CIFAR batches through torchvision's own ``CIFAR10`` class.

torchvision accepts only files with the MD5 sums of the original download. This class replaces that
check by our manifest's checksums, and reads every batch with the unpickler that refuses everything
but data (torchvision uses plain ``pickle``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ddlbench.datasets.cifar import BATCHES, FOLDER, META, load_pickle
from ddlbench.datasets.files import Manifest, available_cpus
from ddlbench.networks.torchvision_compat import datasets


class StagedCIFAR10(datasets.CIFAR10):
    """``torchvision.datasets.CIFAR10`` of staged synthetic data; same arguments.

    Raises:
        RuntimeError: files are missing or changed (torchvision's own error).
        DataError: there is no manifest, or a batch holds forbidden objects.
    """

    train_list: ClassVar[list[list[Any]]] = [[name, None] for name in BATCHES["train"]]
    test_list: ClassVar[list[list[Any]]] = [[name, None] for name in BATCHES["val"]]
    meta: ClassVar[dict[str, Any]] = {"filename": META, "key": "label_names", "md5": None}

    def _check_integrity(self) -> bool:
        root = Path(self.root)
        manifest = Manifest.read(root)
        if manifest.damage(root, workers=available_cpus()):
            return False
        names = [name for name, _ in (*self.train_list, *self.test_list)]
        for name in (*names, META):
            load_pickle(root / FOLDER / name)
        return True
