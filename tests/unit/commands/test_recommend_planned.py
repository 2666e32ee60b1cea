"""``recommend --hardware``: the command, its screens and its refusals."""

import json

import pytest
from click.testing import CliRunner

from ddlbench.commands import recommend_planned
from ddlbench.commands.recommend import recommend
from ddlbench.common.errors import ConfigError

NDR = ["--hardware", "h100-sxm", "--fabric", "infiniband-400"]
RESNET = ["--network", "resnet50", "--dataset", "imagenet", "--batch-size", "4096"]


def ask(*words):
    return CliRunner().invoke(recommend, list(words), catch_exceptions=True)


def test_strategies_on_hardware():
    actual = ask(*NDR, *RESNET, "--geometry", "8x8")
    assert actual.exit_code == 0, actual.output
    assert "Train with" in actual.output
    assert "Block times: a roofline" in actual.output
    assert "fabric infiniband-400" in actual.output
    assert max(map(len, actual.output.splitlines())) <= 80


def test_the_optimizer_decides_memory():
    words = [*NDR, "--network", "gpt-medium", "--dataset", "tokens-gpt2", "--batch-size", "64"]
    sgd, adamw = (
        json.loads(ask(*words, "--geometry", "1x8", "--json", *option).output)["candidates"]
        for option in ([], ["--optimizer", "adamw"])
    )
    before, after = (
        {row["strategy"]: row["memory_bytes"] for row in rows} for rows in (sgd, adamw)
    )
    assert after["ddp"] - before["ddp"] > 1.6e9  # 406 million weights
    assert after["ddp"] - before["ddp"] == pytest.approx(8 * (after["fsdp"] - before["fsdp"]))


def test_strategies_that_do_not_fit_recompute_unless_the_user_says_no():
    words = ["--hardware", "v100-sxm-16gb", "--network", "gpt-medium", "--dataset", "tokens"]
    words += ["--batch-size", "1024", "--geometry", "1x4", "--optimizer", "adamw", "--json"]
    whole = ["--option", "fsdp.accumulate=1"]
    cut, fitted, refused = (
        {row["strategy"]: row for row in json.loads(ask(*words, *option).output)["candidates"]}
        for option in ([], whole, [*whole, "--option", "fsdp.recompute=false"])
    )
    assert "+recompute=true/" in fitted["fsdp"]["cell_id"]
    assert "fsdp" not in refused
    # They fit with micro-batches, too, which are faster.
    assert "+accumulate=8/" in cut["ddp"]["cell_id"]
    assert "+accumulate=4/" in cut["fsdp"]["cell_id"]


def test_several_geometries_leave_no_file(tmp_path):
    actual = ask(*NDR, *RESNET, "--geometry", "1x8,8x8", "--json")
    values = json.loads(actual.output)
    assert [entry["geometry"] for entry in values["geometries"]] == ["1x8", "8x8"]
    assert values["geometries"][1]["speedup"] > values["geometries"][0]["speedup"]


def test_layouts_of_a_shape():
    actual = ask(*NDR, "--network", "llama-8b", "--batch-size", "512", "--geometry", "8x8")
    assert actual.exit_code == 0, actual.output
    assert "t x d x p" in actual.output
    assert "equally good" in actual.output
    assert max(map(len, actual.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("batch", "network", "hint"),
    [
        ("513", "gpt-7b", "A batch of 513 does not divide among 64 replicas. Take 512: then"),
        ("1", "gpt-7b", "A batch of 1 does not divide among 64 replicas. Take 64: then"),
        ("512", "gpt-7b", ""),
        ("96", "gpt3-175b", ""),  # no layout of 64 replicas fits
    ],
)
def test_a_batch_that_costs_much_by_its_divisors_is_named(batch, network, hint):
    actual = ask(*NDR, "--network", network, "--batch-size", batch, "--geometry", "8x8")
    assert actual.exit_code == 0, actual.output
    words = " ".join(actual.output.split())
    assert hint in words if hint else "does not divide" not in words


def test_memory_is_in_the_unit_of_the_device():
    words = ["--network", "llama-8b", "--batch-size", "64", "--context", "131072"]
    output = ask(*NDR, *words, "--geometry", "1x8").output
    rows = [line for line in output.splitlines() if " GB " in line]
    assert "does not fit" in rows[-1] and " TB" not in output


def test_layouts_as_json():
    actual = ask(*NDR, "--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x8", "--json")
    first = json.loads(actual.output)["layouts"][0]
    assert first["tensor"] * first["data"] * first["pipeline"] == 8
    assert first["fits"] == "fits"
    assert first["low_s"] < first["step_s"] < first["high_s"]


def test_devices_share_long_sequences():
    words = ["--network", "llama-8b", "--batch-size", "8", "--context", "131072"]
    devices = [*words, "--geometry", "2x8", "--json", "--context-parallel"]
    alone, shared = (json.loads(ask(*NDR, *devices, c).output)["layouts"] for c in ("1", "8"))
    assert shared[0]["tensor"] * shared[0]["data"] * shared[0]["pipeline"] == 2
    assert shared[0]["fits"] == "fits"
    assert shared[0]["step_s"] < alone[0]["step_s"]
    error = ask(*NDR, *devices, "3").exception
    assert "--context-parallel 3 does not divide 16 devices" in str(error)
    error = ask(*NDR, *devices, "16", "--context", "8").exception
    assert "--context-parallel 16 does not divide 8 tokens of a sequence" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        [*RESNET, "--precision", "bf16"],
        ["--network", "gpt-small:tokens-gpt2", "--batch-size", "64"],
    ],
)
def test_the_precision_that_stands_in_is_named(words):
    output = ask("--hardware", "v100-sxm-32gb", *words, "--geometry", "1x8").output
    assert "no peak for bf16: that of fp16 is taken" in " ".join(output.split())


def test_software_that_trains_no_transformer_is_named():
    words = ["--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x8"]
    error = ask(*NDR, *words, "--software", "horovod").exception
    assert isinstance(error, ConfigError)
    assert "needs the constant 'logit_bytes', which it lacks; take another file" in str(error)


def test_nothing_fits():
    words = ["--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x2"]
    actual = ask("--hardware", "gtx-1080ti", *words)
    assert "none of" in actual.output
    assert "the smallest needs" in actual.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--geometry", "1x8", "--site", "local"], "--site goes with a measured site"),
        (["--geometry", "1x8", "--measure", "2"], "--measure goes with a measured site"),
        (["--geometry", "8x8"], "--fabric does not say"),
        (["--geometry", "1x8", "--optimizer", "adam"], "'adam' is not allowed; write sgd or adamw"),
    ],
)
def test_refusals(words, sentence):
    actual = ask("--hardware", "h100-sxm", *RESNET, *words)
    assert isinstance(actual.exception, ConfigError)
    assert sentence in str(actual.exception)


def test_all_missing_options_are_named_at_once():
    actual = ask("--hardware", "h100-sxm", "--network", "resnet50", "--geometry", "1x8")
    assert isinstance(actual.exception, ConfigError)
    assert "--dataset, --batch-size are missing" in str(actual.exception)


def test_an_unknown_shape_names_the_nearest():
    actual = ask("--hardware", "h100-sxm", "--network", "gpt-8b", "--batch-size", "8",
                "--geometry", "1x8")  # fmt: skip
    assert "gpt-7b" in str(actual.exception)


@pytest.mark.parametrize("option", ["--profile", "--software"])
def test_options_of_hardware_need_it(option):
    actual = ask(option, "pipedream", *RESNET, "--geometry", "1x8")
    assert "on --hardware" in str(actual.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("--profile", "one-core"),
        ("--option", "gpipe.chunks=8"),
        ("--allow-stale",),
        ("--device-memory-bytes", "1000"),
        ("--recommender", "thesis"),
        ("--why",),
    ],
)
def test_what_decides_nothing_of_a_shape_is_refused(words):
    shape = ("--hardware", "h100-sxm", "--network", "gpt-7b", "--geometry", "1x8")
    error = ask(*shape, "--batch-size", "64", *words).exception
    assert isinstance(error, ConfigError)
    assert words[0] in str(error)


def test_a_configuration_file_of_a_decoder(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(
        '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, '
        '"num_hidden_layers": 4, "num_attention_heads": 16}'
    )
    words = ["--geometry", "1x8", "--batch-size", "64", "--json"]
    whole = json.loads(ask(*NDR, "--network", f"hf:{file}", *words).output)
    short = json.loads(ask(*NDR, "--network", f"hf:{file}", "--context", "512", *words).output)
    assert short["layouts"][0]["step_s"] < whole["layouts"][0]["step_s"]


def test_precision_of_a_shape_decides_its_time():
    words = ["--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x8", "--json"]
    times = [
        json.loads(ask(*NDR, *words, "--precision", precision).output)["layouts"][0]["step_s"]
        for precision in ("bf16", "fp16", "fp32")
    ]
    assert times[0] == times[1] < times[2]


def test_an_experiment_says_what_is_trained(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "experiment: mine\nsite: local\n"
        "matrix: {dataset: [imagenet], network: [resnet50], strategy: [ddp], geometry: [1x2]}\n"
        "settings: {batch_size: 512}\n"
        "strategies: {ddp: {bucket_cap_bytes: 5000000}}\n"
    )
    actual = ask("--configfile", str(file), *NDR, "--geometry", "2x8")
    assert actual.exit_code == 0, actual.output
    assert "ResNet-50, ImageNet-1000, 2x8 (16 GPUs), 512 samples" in actual.output
    written = ask("--configfile", str(file), *NDR, "--geometry", "2x8", "--batch-size", "1024")
    assert "1,024 samples" in written.output


@pytest.mark.slow
def test_a_geometry_has_the_same_numbers_beside_others(tmp_path):
    """Each has a batch of its own here, and the roofline is computed at the parts of each."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "experiment: mine\nsettings: {batch_per_device: 8}\nmatrix: {dataset: [cifar10], "
        "network: [resnet18], strategy: [ddp], geometry: [1x1, 1x8]}\n"
    )

    def steps_s(geometries):
        output = ask("--configfile", str(file), *NDR, "--geometry", geometries, "--json").output
        answers = json.loads(output).get("geometries") or [json.loads(output)]
        return {c["strategy"]: c["predicted_step_s"] for c in answers[-1]["candidates"]}

    assert steps_s("1x1,8x8") == steps_s("8x8,1x1") == steps_s("8x8")


def test_a_network_of_a_user_is_tried_first(monkeypatch):
    """So that no strategy is ranked that cannot train it."""

    def tried(network, dataset, _site):
        raise ConfigError(f"{network} was tried on {dataset}")

    monkeypatch.setattr(recommend_planned, "check_can_be_built", tried)
    words = ["--network", "mine:net", "--dataset", "mnist", "--batch-size", "64"]
    actual = ask("--hardware", "h100-sxm", "--geometry", "1x8", *words)
    assert str(actual.exception) == "mine:net was tried on mnist"


def test_a_network_that_cannot_be_built_is_refused_at_once():
    words = ["--network", "torchvision:resnet5", "--dataset", "imagenet", "--batch-size", "8"]
    error = ask(*NDR, *words, "--geometry", "1x8").exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith("torchvision has no network")


@pytest.mark.parametrize(
    "option", [("--context", "512"), ("--software", "fsdp"), ("--context-parallel", "2")]
)
def test_options_of_shapes(option):
    """Of two names of an option the message has both, as one of them was written."""
    error = ask(*NDR, *RESNET, "--geometry", "1x8", *option).exception
    assert f"{option[0]} goes with a transformer's shape" in str(error)


def test_a_dataset_of_images_is_not_ignored():
    words = ["--network", "gpt-7b", "--dataset", "cifar10", "--batch-size", "64"]
    error = ask(*NDR, *words, "--geometry", "1x8").exception
    assert "dataset cifar10 has images, gpt-7b reads tokens" in str(error)


@pytest.mark.parametrize("network", ["gpt-7b", "hf:mixtral"])
def test_every_row_of_a_table_names_another_layout(network):
    words = ["--network", network, "--batch-size", "256", "--context", "2048"]
    lines = ask(*NDR, *words, "--geometry", "2x8").output.splitlines()
    heading = next(line for line in lines if "t x d x p" in line)
    end = heading.index("predicted")
    shown = [line[3:end] for line in lines if line[:1].isdigit() and " x " in line[:end]]
    assert len(shown) == len(set(shown)) == 8
