"""The registries of strategies, predictors and networks.

They hold ``module:attribute`` strings, so that a login node can check and plan what only a compute
node can import. Third-party packages add entry points of the same groups, and a configuration may
give ``package.module:attribute`` directly. The registry of datasets is in
:mod:`ddlbench.experiment.dataset_spec`, that of figures in :mod:`ddlbench.report.registry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ddlbench.common.entry_points import Registry, kind_of, load_target, third_party
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec, Kind
from ddlbench.experiment.status import Reason


@dataclass(frozen=True)
class NetworkSpec:
    """One network.

    Args:
        name: key in configurations and paths.
        label: its name in figures.
        build: ``module:callable``; it takes a DatasetSpec and returns an ``nn.Sequential``.
        reads: the kind of input; None if unknown.
    """

    name: str
    label: str
    build: str
    reads: Kind | None = "images"

    def __call__(self, spec: DatasetSpec) -> Any:
        """Build the network for a dataset; needs torch.

        Raises:
            ConfigError: its builder cannot be imported.
        """
        return load_target(self.name, self.build)(spec)


def _of_package(name: str, target: str) -> NetworkSpec:
    try:
        spec = load_target(name, target)
    except ConfigError:  # a login node has no torch; the name is enough to plan
        spec = None
    if isinstance(spec, NetworkSpec):
        if spec.name != name:
            raise ConfigError(
                f"network {name!r} ({target}): its NetworkSpec is called {spec.name!r}; "
                "give it the name of the entry point"
            )
        return spec
    return NetworkSpec(name, name, target, reads=None)


_NETWORK_MODULES = "ddlbench.networks"


def _built_in(module: str, name: str, label: str, reads: Kind = "images") -> NetworkSpec:
    """A network whose builder has its name."""
    return NetworkSpec(name, label, f"{_NETWORK_MODULES}.{module}:{name.replace('-', '_')}", reads)


NETWORKS: Registry[NetworkSpec] = Registry(
    "ddlbench.networks",
    {
        spec.name: spec
        for spec in (
            _built_in("convolutional", "resnet18", "ResNet-18"),
            _built_in("convolutional", "resnet50", "ResNet-50"),
            _built_in("convolutional", "resnet152", "ResNet-152"),
            _built_in("convolutional", "vgg11", "VGG-11"),
            _built_in("convolutional", "vgg16", "VGG-16"),
            _built_in("convolutional", "mobilenetv2", "MobileNetV2"),
            _built_in("convolutional", "resnet101", "ResNet-101"),
            _built_in("convolutional", "alexnet", "AlexNet"),
            _built_in("convolutional", "cosmoflow", "CosmoFlow", "volumes"),
            _built_in("flat", "mlp", "MLP"),
            _built_in("flat", "stack", "stack"),
            _built_in("transformers", "vit-tiny", "ViT-Ti"),
            _built_in("transformers", "vit-small", "ViT-S"),
            _built_in("transformers", "vit-base", "ViT-B"),
            _built_in("transformers", "gpt-tiny", "GPT-tiny", "tokens"),
            _built_in("transformers", "gpt-small", "GPT-2 small", "tokens"),
            _built_in("transformers", "gpt-medium", "GPT-2 medium", "tokens"),
        )
    },
    _of_package,
)


def mismatch(network: str, dataset: str) -> str | None:
    """Why a network cannot read a dataset; None if it can, or if its kind of input is unknown."""
    reads = NETWORKS[network].reads if network in NETWORKS else None
    has = DATASETS[dataset].kind
    if reads in (None, has):
        return None
    return Reason(
        "network_dataset_mismatch",
        f"network {network} reads {reads}, but dataset {dataset} has {has}",
    )


def pairs() -> list[tuple[str, DatasetSpec]]:
    """Every built-in network with every built-in dataset that it reads."""
    return [
        (network, spec)
        for network in NETWORKS.built_in
        for spec in DATASETS.built_in.values()
        if mismatch(network, spec.name) is None
    ]


STRATEGIES: dict[str, str] = {
    "sequential": "ddlbench.strategies.sequential.descriptor:Sequential",
    "horovod": "ddlbench.strategies.horovod.descriptor:Horovod",
    "ddp": "ddlbench.strategies.ddp.descriptor:DistributedDataParallel",
    "fsdp": "ddlbench.strategies.fsdp.descriptor:FullyShardedDataParallel",
    "hsdp": "ddlbench.strategies.fsdp.descriptor:HybridSharded",
    "local-sgd": "ddlbench.strategies.local_sgd.descriptor:LocalSgd",
    "parameter-server": "ddlbench.strategies.parameter_server.descriptor:ParameterServer",
    "gpipe": "ddlbench.strategies.torchgpipe.descriptor:GPipe",
    "model-parallel": "ddlbench.strategies.torchgpipe.descriptor:ModelParallel",
    "model-parallel-p2p": "ddlbench.strategies.pipedream.descriptor:ModelParallelP2p",
    "pipedream": "ddlbench.strategies.pipedream.descriptor:PipeDream",
    "pipe-gpipe": "ddlbench.strategies.pipelining.descriptor:TorchGPipeSchedule",
    "pipe-1f1b": "ddlbench.strategies.pipelining.descriptor:OneFOneB",
    "pipe-interleaved": "ddlbench.strategies.pipelining.descriptor:Interleaved1F1B",
    "pipe-zb": "ddlbench.strategies.pipelining.descriptor:ZeroBubble",
    "pipe-zbv": "ddlbench.strategies.pipelining.descriptor:ZeroBubbleV",
    "spatial": "ddlbench.strategies.splits.descriptor:Spatial",
    "filter": "ddlbench.strategies.splits.descriptor:Filter",
    "channel": "ddlbench.strategies.splits.descriptor:Channel",
    "data-filter": "ddlbench.strategies.splits.descriptor:DataFilter",
    "data-spatial": "ddlbench.strategies.splits.descriptor:DataSpatial",
    "data-tensor-pipe": "ddlbench.strategies.pipelining.descriptor:DataTensorPipe",
    "tensor-parallel": "ddlbench.strategies.tensor_parallel.descriptor:TensorParallel",
    "data-tensor": "ddlbench.strategies.tensor_parallel.descriptor:DataTensor",
}

PLUGINS: dict[str, dict[str, str]] = {
    "ddlbench.strategies": {"deepspeed": "plugins/deepspeed"},
    "ddlbench.commands": {"claims": "plugins/claims"},
}
"""Parts of this repository that are packages of their own: the folder of each, by group and name.
They come in by entry points as those of others do; here they are named for whoever lacks them."""

SHIPPED_STRATEGIES = (*STRATEGIES, *PLUGINS["ddlbench.strategies"])

BASE = "sequential"
"""The base of every speed-up: the one strategy of a single device."""

_PREDICTOR_MODULES = "ddlbench.predict.predictors"
PREDICTORS: dict[str, str] = {
    "ddlbench": f"{_PREDICTOR_MODULES}.steps:Ddlbench",
    "sequential": f"{_PREDICTOR_MODULES}.published:Sequential",
    "ddlbench-eq1": f"{_PREDICTOR_MODULES}.published:DdlbenchEq1",
    "ddlbench-eq2": f"{_PREDICTOR_MODULES}.published:DdlbenchEq2",
    "ddlbench-eq3": f"{_PREDICTOR_MODULES}.published:DdlbenchEq3",
    "thesis-5.1-p2p": f"{_PREDICTOR_MODULES}.published:Thesis51P2p",
    "thesis-5.1-transport": f"{_PREDICTOR_MODULES}.published:Thesis51Transport",
    "thesis-6": f"{_PREDICTOR_MODULES}.published:Thesis6",
    "model-parallel": f"{_PREDICTOR_MODULES}.published:ModelParallel",
    "ddp-buckets": f"{_PREDICTOR_MODULES}.steps:DdpBuckets",
    "ddp-all-reduce": f"{_PREDICTOR_MODULES}.steps:DdpAllReduce",
    "parameter-server": f"{_PREDICTOR_MODULES}.steps:ParameterServer",
    "parameter-server-messages": f"{_PREDICTOR_MODULES}.steps:ParameterServerMessages",
    "pipeline-replay": f"{_PREDICTOR_MODULES}.pipeline_replay:PipelineReplay",
    "pipeline-recorded": f"{_PREDICTOR_MODULES}.pipeline_replay:PipelineRecorded",
    "pipeline-period": f"{_PREDICTOR_MODULES}.pipeline_period:PipelinePeriod",
    "pipeline-period-paper": f"{_PREDICTOR_MODULES}.pipeline_period:PipelinePeriodPaper",
    "ddp-serial": f"{_PREDICTOR_MODULES}.steps:DdpSerial",
    "horovod-serial": f"{_PREDICTOR_MODULES}.steps:HorovodSerial",
    "torchgpipe-turns": f"{_PREDICTOR_MODULES}.pipeline_replay:TorchgpipeTurns",
    "torchgpipe-replay": f"{_PREDICTOR_MODULES}.pipeline_replay:TorchgpipeReplay",
    "data-extrapolation": f"{_PREDICTOR_MODULES}.baselines:DataExtrapolation",
    "hardware-extrapolation": f"{_PREDICTOR_MODULES}.baselines:HardwareExtrapolation",
    "paradl-authors": f"{_PREDICTOR_MODULES}.paradl:ParadlAuthors",
    "paradl-corrected": f"{_PREDICTOR_MODULES}.paradl:ParadlCorrected",
    "averaged-weights": f"{_PREDICTOR_MODULES}.steps:AveragedWeights",
    "sharded": f"{_PREDICTOR_MODULES}.steps:Sharded",
    "linear-pairs": f"{_PREDICTOR_MODULES}.steps:LinearPairs",
    "split-layers": f"{_PREDICTOR_MODULES}.steps:SplitLayers",
    "linear": f"{_PREDICTOR_MODULES}.baselines:Linear",
    "carry-forward": f"{_PREDICTOR_MODULES}.baselines:CarryForward",
}

_BUILT_IN = {
    "ddlbench.networks": {name: spec.build for name, spec in NETWORKS.built_in.items()},
    "ddlbench.strategies": STRATEGIES,
    "ddlbench.predictors": PREDICTORS,
}


@cache
def known(group: str) -> dict[str, str]:
    """Names of ``group`` ("ddlbench.networks", ...) and the ``module:attribute`` of each."""
    built_in = _BUILT_IN.get(group, {})
    return {**built_in, **third_party(group, frozenset(built_in))}


def unknown(group: str, name: str, names: Iterable[str]) -> str:
    """The sentence for a part that is not among ``names``: its plug-in, or the likely spelling."""
    plugins = PLUGINS.get(group, {})
    if folder := plugins.get(name):
        return (
            f"{kind_of(group)} {name} needs the plug-in {folder}: "
            f"python -m pip install --no-build-isolation ./{folder}"
        )
    hint = " (one of your own is module:callable)" if group == NETWORKS.group else ""
    return f"unknown {kind_of(group)} {shown(name)}; {nearest(name, {*names, *plugins})}{hint}"


def check_class(group: str, name: str, part: type, wanted: Iterable[str]) -> None:
    """Check that the class that ``name`` stands for has its attributes.

    Its own name is ``name``, too, unless that is its path.

    Raises:
        ConfigError: an attribute is missing, or the class has another name.
    """
    if missing := [attribute for attribute in wanted if not hasattr(part, attribute)]:
        fault = f"lacks {' and '.join(missing)}; write what it lacks"
    elif ":" not in name and (own_name := getattr(part, "name", name)) != name:
        fault = f"has the name {shown(str(own_name))}; write name = {name!r}"
    else:
        return
    raise ConfigError(f"{kind_of(group)} {shown(name)}: its class {part.__name__} {fault}")


LIBRARIES: dict[str, str] = {
    word: f"{_NETWORK_MODULES}.foreign:{word}" for word in ("torchvision", "timm", "hf")
}
"""Libraries whose networks are known by ``word:name``, and what finds the builder of a name."""


def load(group: str, name: str) -> Any:
    """Import the part ``name`` of ``group``.

    Raises:
        ConfigError: the name is not known, or what it points to cannot be imported.
    """
    word, colon, rest = name.partition(":")
    if group == NETWORKS.group and colon and word in LIBRARIES:
        return load_target(word, LIBRARIES[word])(rest)
    target = known(group).get(name, name)
    if ":" not in target:
        raise ConfigError(unknown(group, name, known(group)))
    return load_target(name, target)
