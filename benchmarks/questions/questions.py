"""Draw questions to ``ddlbench recommend``: from a seed, the same ones each time.

::

    mostly   network x dataset x nodes x devices x batch x site, now and then with further options
    some     of cells that were measured, of the user's own networks, of more devices than there are
    1 of 20  wrong on purpose
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

NODES = (1, 2, 3, 4, 8, 16)
DEVICES = (1, 2, 3, 4, 8)
MOST_SAMPLES = 4096
WRONG_SHARE = 0.05
_NETWORKS = (
    ("vgg11", "cifar10"), ("resnet18", "cifar10"), ("mobilenetv2", "cifar10"),
    ("stack", "cifar10"), ("vit-tiny", "cifar10"), ("gpt-tiny", "tokens"), ("vgg16", "imagenet"),
)  # fmt: skip
_USER_NETWORKS = (("ownnets.models:tower", "cifar10"), ("ownnets.models:patches", "cifar10"))
_KINDS = (  # of a right question, with its weight
    ("local", 28), ("accelerators", 26), ("slurm", 26), ("own network", 9), ("measured", 6),
    ("too few devices", 5),
)  # fmt: skip
_SITE = {"local": "local", "accelerators": "accelerators", "slurm": "my-cluster"}
_OPTIONS = (
    "gpipe.chunks=8", "gpipe.chunks=7", "gpipe.checkpoint=never", "gpipe.balance=profile",
    "ddp.bucket_cap_bytes=1048576", "ddp.shard=optimizer", "ddp.accumulate=2", "ddp.hook=powersgd",
    "horovod.fusion_threshold_bytes=0", "fsdp.reshard_after_forward=false", "deepspeed.stage=3",
    "local-sgd.average_every_steps=8", "parameter-server.servers=2", "pipe-1f1b.chunks=16",
    "pipe-1f1b.replicas=2", "pipe-1f1b.balance=profile", "pipe-zb.stages_per_rank=4",
    "pipe-gpipe.balance=blocks", "pipedream.balance=profile", "data-tensor.group=2",
    "spatial.split=both",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One call of the command.

    Args:
        number: from 0.
        kind: of site, or what is special about it.
        arguments: of ``ddlbench recommend``.
        wrong: what is wrong on purpose; empty if it can be answered.
    """

    number: int
    kind: str
    arguments: tuple[str, ...]
    wrong: str = ""

    @property
    def text(self) -> str:
        """What one types."""
        return " ".join(("recommend", *self.arguments))

    @property
    def allows_stale(self) -> bool:
        return "--allow-stale" in self.arguments

    @property
    def may_be_refused(self) -> bool:
        """Whether both an answer and a sentence are right: the site is too small."""
        return self.kind == "too few devices"


def draw(count: int, seed: int) -> list[Question]:
    """So many questions."""
    chance = random.Random(seed)
    return [_draw_one(number, chance) for number in range(count)]


def _draw_one(number: int, chance: random.Random) -> Question:
    wrong = chance.random() < WRONG_SHARE
    kind = chance.choices([name for name, _ in _KINDS], [weight for _, weight in _KINDS])[0]
    options = _case(kind, chance)
    further = [] if kind == "measured" else _further(options, chance)
    if wrong:
        what, changes = chance.choice(_WRONG)
        options |= {name: value for name, value in changes.items() if name != "--option"}
        further = [part for name, value in changes.items() if name == "--option"
                   for part in (name, value)]  # fmt: skip
        return Question(number, "wrong", (*_words(options), *further), what)
    return Question(number, kind, (*_words(options), *further))


def _words(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def _case(kind: str, chance: random.Random) -> dict[str, str]:
    """Site, network, dataset, geometry and batch."""
    networks = _USER_NETWORKS if kind == "own network" else _NETWORKS
    network, dataset = chance.choice(networks)
    nodes, devices = chance.choice(NODES), chance.choice(DEVICES)
    site = _SITE.get(kind) or chance.choice(tuple(_SITE.values()))
    batch_size = samples(nodes * devices, chance)
    if kind == "too few devices":
        site, nodes = "as-shipped", chance.choice((3, 4, 8))
    if kind == "measured":
        site, (network, dataset) = "local", ("vgg11", "cifar10")
        nodes, devices, batch_size = 1, chance.choice((2, 4)), 32
    return {
        "--site": site,
        "--network": network,
        "--dataset": dataset,
        "--geometry": f"{nodes}x{devices}",
        "--batch-size": str(batch_size),
    }


def samples(devices: int, chance: random.Random) -> int:
    """A batch of 1 to 4096, each order of magnitude as likely: any, odd, prime, round, dealt."""
    size = round(math.exp(chance.uniform(0, math.log(MOST_SAMPLES))))
    how = chance.choice(("any", "odd", "prime", "power", "share", "share"))
    if how == "odd":
        return size | 1 if size < MOST_SAMPLES else MOST_SAMPLES - 1
    if how == "prime":
        return next((n for n in range(size, 1, -1) if _is_prime(n)), 1)
    if how == "power":
        return 2 ** round(math.log2(size))
    if how == "share":  # as many samples for each device
        return min(MOST_SAMPLES // devices, -(-size // devices)) * devices
    return size


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % part for part in range(2, math.isqrt(number) + 1))


def _further(options: dict[str, str], chance: random.Random) -> list[str]:
    """Now and then an option, another fabric, a device's memory, old weights."""
    words: list[str] = []
    if chance.random() < 0.15:
        for option in chance.sample(_OPTIONS, chance.choice((1, 1, 2))):
            words += ["--option", option]
    if options["--site"] in ("accelerators", "as-shipped") and chance.random() < 0.4:
        words += ["--fabric", chance.choice(("gigabit", "office"))]
    if chance.random() < 0.2:
        size = round(10 ** chance.uniform(7.5, 11))
        words += ["--device-memory-bytes", str(size)]
    if chance.random() < 0.15:
        words.append("--allow-stale")
    if chance.random() < 0.1:
        words.append("--why")
    return words


_WRONG: tuple[tuple[str, dict[str, str]], ...] = (
    ("unknown network", {"--network": "vgg12"}),
    ("own network without a module", {"--network": "nosuch.module:net"}),
    ("unknown dataset", {"--dataset": "cifar11"}),
    ("dataset of another kind", {"--network": "gpt-tiny", "--dataset": "cifar10"}),
    ("unknown site", {"--site": "acelerators"}),
    ("no nodes", {"--geometry": "0x2"}),
    ("no geometry", {"--geometry": "two"}),
    ("no samples", {"--batch-size": "0"}),
    ("unknown strategy", {"--option": "gpippe.chunks=8"}),
    ("unknown option", {"--option": "gpipe.chunk=8"}),
    ("value of an option", {"--option": "gpipe.chunks=none"}),
    ("option without a strategy", {"--option": "chunks=8"}),
    ("unknown fabric", {"--site": "accelerators", "--fabric": "gigabyte"}),
    ("no memory", {"--device-memory-bytes": "-1"}),
)
