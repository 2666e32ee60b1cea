"""Names of networks, datasets and strategies as tables and figures show them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import LIBRARIES, NETWORKS
from ddlbench.planning.strategy import known_strategy

_WORDS = {
    word.lower().replace("-", ""): word
    for word in (
        "AlexNet", "BERT", "BEiT", "ConvNeXt", "DeiT", "DenseNet", "EfficientNet", "GoogLeNet",
        "GPT-2", "HRNet", "Inception", "LLaMA", "MaxViT", "Mistral", "Mixtral", "MNASNet",
        "MobileNet", "OPT", "RegNet", "ResNet", "ResNeXt", "ShuffleNet", "SqueezeNet", "Swin",
        "VGG", "ViT",
    )
}  # fmt: skip

_MOST_LETTERS = 24
"""Of a library network's arguments in its label."""


def network_label(name: str) -> str:
    """The network's label; of an unregistered network, its name without the module.

    Long arguments are cut after the first; a digest tells networks apart whose labels are cut.

    >>> network_label("torchvision:resnet50"), network_label("hf:gpt2?n_layer=4")
    ('ResNet-50 (torchvision)', 'GPT-2, n_layer=4 (hf)')
    """
    if name in NETWORKS:
        return NETWORKS[name].label
    word, _, rest = name.rpartition(":")
    if word not in LIBRARIES:
        return rest
    rest, _, arguments = rest.partition("?")
    family, *others = rest.split("_")
    letters = family.rstrip("0123456789")
    number = family[len(letters) :]
    if family not in _WORDS and letters in _WORDS:
        family = "-".join(filter(None, (_WORDS[letters], number)))
    shown = " ".join([_WORDS.get(family, family), *others])
    if len(arguments) > _MOST_LETTERS:
        digest = hashlib.sha256(arguments.encode()).hexdigest()[:4]
        arguments = f"{arguments.split(',')[0]} ... {digest}"
    return f"{', '.join(filter(None, (shown, *arguments.split(','))))} ({word})"


def dataset_label(name: str) -> str:
    """The dataset's label, or its name."""
    return DATASETS[name].label if name in DATASETS else name


def in_dataset_order(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of ``DATASETS`` (smallest image first); unknown ones last."""
    order = list(DATASETS)
    unique = dict.fromkeys(names)
    return sorted(unique, key=lambda n: order.index(n) if n in order else len(order))


def strategy_label(name: str, variant: str = "") -> str:
    """The strategy's label, then ``(variant)`` if there is one."""
    label = known_strategy(name).label
    return f"{label} ({variant})" if variant else label
