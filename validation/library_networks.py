"""Networks of torchvision, timm and transformers by name: their blocks, and ``ddlbench check``.

Weights are random, images small and language models tiny, so that each takes a minute on two
cores. Two workers train each with each strategy and are compared with one device. Writes
docs/validation/library_networks.csv row by row, and goes on after the last row. It needs ``timm``
and ``transformers``.
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.equivalence.examination import Examination
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DatasetSpec
from ddlbench.networks.factory import try_network

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "validation" / "library_networks.csv"
STRATEGIES = ("sequential", "ddp", "horovod", "fsdp", "pipe-1f1b", "gpipe")

_TINY = "hidden_size=64,num_hidden_layers=3,num_attention_heads=4"
_LLAMA = f"{_TINY},num_key_value_heads=2,intermediate_size=128"
SIDES = {  # pixels; 64 of all others
    "torchvision:googlenet?aux_logits=true": 96,
    "torchvision:inception_v3": 96,
    "torchvision:maxvit_t": 224,
    "timm:crossvit_9_240": 240,
    "timm:levit_128s": 224,
    "timm:eva02_tiny_patch14_224": 224,
}
NETWORKS = [
    *(
        f"torchvision:{name}"
        for name in (
            "resnet18", "resnet50", "vgg16", "mobilenet_v2", "mobilenet_v3_large",
            "efficientnet_b0", "convnext_tiny", "densenet121", "squeezenet1_1",
            "shufflenet_v2_x1_0", "regnet_y_400mf", "swin_t", "maxvit_t", "vit_b_16", "googlenet",
            "googlenet?aux_logits=true", "inception_v3", "fcn_resnet50", "deeplabv3_resnet50",
        )
    ),
    *(
        f"timm:{name}"
        for name in (
            "convnext_tiny", "vit_small_patch16_224", "deit_tiny_patch16_224", "mixer_s16_224",
            "tf_efficientnetv2_s", "dm_nfnet_f0", "coat_tiny", "eva02_tiny_patch14_224",
            "crossvit_9_240", "hrnet_w18_small", "levit_128s", "mobilevit_s", "dla34",
            "swin_tiny_patch4_window7_224",
        )
    ),
    "hf:gpt2?n_layer=3,n_embd=64,n_head=4,tie_word_embeddings=true",
    "hf:gpt2?n_layer=3,n_embd=64,n_head=4",
    f"hf:llama?{_LLAMA}",
    f"hf:bert?{_TINY},intermediate_size=128",
    "hf:t5?d_model=64,num_layers=3,num_heads=4",
    f"hf:mixtral?{_LLAMA}",
    f"hf:opt?{_TINY},ffn_dim=128,word_embed_proj_dim=64",
    f"hf:vit?{_TINY},intermediate_size=128",
]  # fmt: skip
COLUMNS = ("network", "sample", "blocks", "largest", "share", *STRATEGIES, "why")


def declare_images() -> None:
    """Have this process, and those that it starts, know images of each size."""
    specs = [
        DatasetSpec(f"images{side}", f"{side} pixels", 10, 3, side, side, 1000, 100, "imagefolder")
        for side in sorted({64, *SIDES.values()})
    ]
    os.environ[OWN_DATA] = json.dumps([asdict(spec) for spec in specs])
    for spec in specs:
        DATASETS.declare(spec.name, partial(replace, spec))


def row_of(network: str, dataset: str) -> dict[str, object]:
    """What a network is, and what each strategy makes of it."""
    spec = DATASETS[dataset]
    row: dict[str, object] = {"network": network, "sample": "x".join(map(str, spec.shape))}
    try:
        tried = try_network(network, spec)
    except ConfigError as error:
        return {**row, "why": str(error)}
    traits = tried.traits
    row |= {"blocks": len(traits.blocks), "why": traits.uncut}
    if tried.operations and not traits.uncut:
        block = max(tried.work, key=tried.work.__getitem__)
        row |= {"largest": block, "share": round(tried.work[block] / tried.operations, 2)}
    examination = Examination()
    for strategy in STRATEGIES:
        cell = Cell(dataset, network, strategy, batch_size=1, learning_rate=0.05)
        verdict = examination.verdict_of(cell)
        row[strategy] = str(verdict.kind)
        row["why"] = row["why"] or (verdict.reason or "" if verdict.kind != "equal" else "")
    return row


def main() -> None:
    """Make what is missing."""
    declare_images()
    done = list(csv.DictReader(OUT.open())) if OUT.is_file() else []
    missing = [name for name in NETWORKS if name not in {row["network"] for row in done}]
    for network in missing:
        tokens = network.startswith("hf:") and not network.startswith("hf:vit")
        row = row_of(network, "tokens" if tokens else f"images{SIDES.get(network, 64)}")
        with OUT.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
            if not done:
                writer.writeheader()
            writer.writerow(row)
        done.append({name: str(row.get(name, "")) for name in COLUMNS})
        print(row, flush=True)


if __name__ == "__main__":
    main()
