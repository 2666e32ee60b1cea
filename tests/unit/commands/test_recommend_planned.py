"""``recommend --hardware``: the command, its screens and its refusals."""

import json

import pytest
from click.testing import CliRunner

from ddlbench.commands.recommend import recommend
from ddlbench.common.errors import ConfigError

NDR = ["--hardware", "h100-sxm", "--fabric", "infiniband-400"]
RESNET = ["--network", "resnet50", "--dataset", "imagenet", "--batch-size", "4096"]


def ask(*words):
    return CliRunner().invoke(recommend, list(words), catch_exceptions=True)


def test_strategies_on_hardware():
    found = ask(*NDR, *RESNET, "--geometry", "8x8")
    assert found.exit_code == 0, found.output
    assert "Train with" in found.output
    assert "Block times: a roofline" in found.output
    assert "fabric infiniband-400" in found.output
    assert max(map(len, found.output.splitlines())) <= 80


def test_several_geometries_leave_no_file(tmp_path):
    found = ask(*NDR, *RESNET, "--geometry", "1x8,8x8", "--json")
    values = json.loads(found.output)
    assert [one["geometry"] for one in values["geometries"]] == ["1x8", "8x8"]
    assert values["geometries"][1]["speedup"] > values["geometries"][0]["speedup"]


def test_layouts_of_a_shape():
    found = ask(*NDR, "--network", "llama-8b", "--batch-size", "512", "--geometry", "8x8")
    assert found.exit_code == 0, found.output
    assert "t x d x p" in found.output
    assert "equally good" in found.output
    assert max(map(len, found.output.splitlines())) <= 80


def test_layouts_as_json():
    found = ask(*NDR, "--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x8", "--json")
    first = json.loads(found.output)["layouts"][0]
    assert first["tensor"] * first["data"] * first["pipeline"] == 8
    assert first["fits"] == "fits"
    assert first["low_s"] < first["step_s"] < first["high_s"]


def test_nothing_fits():
    words = ["--network", "gpt-7b", "--batch-size", "64", "--geometry", "1x2"]
    found = ask("--hardware", "gtx-1080ti", *words)
    assert "none of" in found.output
    assert "the smallest needs" in found.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--geometry", "1x8", "--site", "local"], "--site is of measured sites"),
        (["--geometry", "1x8", "--measure", "2"], "--measure needs a site"),
        (["--geometry", "8x8"], "--fabric does not say"),
    ],
)
def test_refusals(words, sentence):
    found = ask("--hardware", "h100-sxm", *RESNET, *words)
    assert isinstance(found.exception, ConfigError)
    assert sentence in str(found.exception)


def test_an_unknown_shape_names_the_nearest():
    found = ask("--hardware", "h100-sxm", "--network", "gpt-8b", "--batch-size", "8",
                "--geometry", "1x8")  # fmt: skip
    assert "gpt-7b" in str(found.exception)


@pytest.mark.parametrize("option", ["--profile", "--software"])
def test_options_of_hardware_need_it(option):
    found = ask(option, "pipedream", *RESNET, "--geometry", "1x8")
    assert "goes with --hardware" in str(found.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("--precision", "fp32"),
        ("--profile", "one-core"),
        ("--option", "gpipe.chunks=8"),
        ("--allow-stale",),
        ("--device-memory-bytes", "1000"),
    ],
)
def test_what_decides_nothing_of_a_shape_is_refused(words):
    shape = ("--hardware", "h100-sxm", "--network", "gpt-7b", "--geometry", "1x8")
    error = ask(*shape, "--batch-size", "64", *words).exception
    assert isinstance(error, ConfigError)
    assert words[0] in str(error)
