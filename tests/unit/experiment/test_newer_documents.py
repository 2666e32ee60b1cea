"""Files of a newer ddlbench: each reader says so, with the path and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.links import read_links
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.profile import InvalidProfile, read_profile
from ddlbench.experiment.result import InvalidResult, NewerResult, read_result
from ddlbench.predict.accuracy import read_predictions
from ddlbench.predict.calibration import calibration_file, read_calibration
from ddlbench.predict.recommend import read_choice

RESULT = project_root() / "benchmarks" / "scale" / "result.json"
PROFILE = Path(__file__).with_name("profile.json")


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (read_links, ConfigError),
        (read_profile, InvalidProfile),
        (read_result, NewerResult),
        (read_predictions, ConfigError),
        (read_choice, ConfigError),
    ],
)
def test_a_higher_version_is_of_a_newer_ddlbench(read, error, tmp_path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{"schema_version": 999, "what": "nobody here knows"}')
    with pytest.raises(error) as caught:
        read(path)
    assert str(caught.value).startswith(
        f"{path}: written by a newer ddlbench (schema 999; this checkout reads 1); update this "
        "checkout, or "
    )


def test_a_calibration_of_a_higher_version_is_said_too(tmp_path) -> None:
    path = calibration_file("local", tmp_path)
    path.parent.mkdir()
    path.write_text('{"schema_version": 2}')
    with pytest.raises(ConfigError, match="written by a newer ddlbench"):
        read_calibration("local", tmp_path)


@pytest.mark.parametrize(
    ("file", "read", "change", "place"),
    [
        (RESULT, read_result, lambda r: r.update(new=1), "new"),
        (RESULT, read_result, lambda r: r["ranks"][1].update(new=1), "ranks.1.new"),
        (RESULT, read_result, lambda r: r["loss"].update(new=None), "loss.new"),
        (PROFILE, read_profile, lambda r: r["blocks"][0].update(new=[]), "blocks.0.new"),
    ],
)
def test_a_key_that_is_unknown_is_of_a_newer_ddlbench(file, read, change, place, tmp_path) -> None:
    values = json.loads(file.read_text("utf-8"))
    change(values)
    path = tmp_path / "some.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=rf"newer ddlbench \({place} is not known here; this"):
        read(path)


@pytest.mark.parametrize("version", [None, "2", 0, -1, True, [999], {}])
def test_another_version_that_is_not_higher_is_invalid(version, tmp_path) -> None:
    values = {**json.loads(RESULT.read_text("utf-8")), "schema_version": version}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(values))
    if version is True:  # JSON schema has it for 1
        return
    with pytest.raises(InvalidResult) as caught:
        read_result(path)
    assert not isinstance(caught.value, NewerResult)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": 0}'])
@pytest.mark.parametrize(
    ("read", "error", "cure"),
    [
        (read_links, ConfigError, "replace it, or take another one$"),
        (read_profile, InvalidProfile, "replace it, or take another one$"),
        (read_choice, ConfigError, "move the file away to make it anew$"),
    ],
)
def test_a_damaged_file_that_is_not_made_anew_by_itself_says_what_to_do(
    read, error, cure, text, tmp_path
) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(error, match=f"; {cure}"):
        read(path)


@pytest.mark.parametrize("read", [read_links, read_profile])
def test_a_damaged_file_of_the_workflow_is_made_anew_by_its_command(
    read, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("results/local/some.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    command = f"snakemake --profile profiles/local --force {path}"
    with pytest.raises(ConfigError, match=f"make it anew: {command}"):
        read(path)
