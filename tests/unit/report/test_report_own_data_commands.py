"""Own data as plan, forget and check-data show it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cases.own_folders import class_folders, picture
from click.testing import CliRunner
from report_factory import result, write
from shipped import make_project

from ddlbench.cli import commands
from ddlbench.datasets.user_data import inspect_user_data
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DataRequest
from ddlbench.experiment.paths import result_file
from ddlbench.planning.matrix import matrix_of

EXPERIMENT = """
experiment: mine
data: {{photos: {{folder: "{folder}", size: 16}}}}
matrix: {{dataset: [photos], network: [resnet18], strategy: [sequential], geometry: [1x1]}}
settings: {{batch_size: {batch_size}}}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    project = make_project(tmp_path / "project")
    monkeypatch.chdir(project)
    monkeypatch.delenv(OWN_DATA, raising=False)
    class_folders(tmp_path / "photos")
    yield project
    DATASETS.forget_declared()


def write_experiment(project: Path, batch_size: int = 4) -> Path:
    file = project / "mine.yaml"
    folder = project.parent / "photos"
    file.write_text(EXPERIMENT.format(folder=folder, batch_size=batch_size))
    return file


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, arguments, catch_exceptions=True)
    output = str(done.exception) if done.exception and not done.output else done.output
    return done.exit_code, " ".join(output.split())


def test_plan_counts_what_is_read_and_left_out(project, tmp_path):
    (tmp_path / "photos/train/ant/x.heic").write_bytes(b"x")
    write_experiment(project)
    _, output = run("plan", "--configfile", "mine.yaml")
    assert (
        "data photos: 12 images in 3 classes (12 for validation), 1 file left out: .heic" in output
    )
    _, output = run("plan", "--configfile", "mine.yaml", "--json")
    assert json.loads(output)["data"][0].startswith("photos: 12 images")


def test_too_few_images_cannot_run(project):
    write_experiment(project, batch_size=32)
    _, output = run("plan", "--configfile", "mine.yaml")
    assert "a mini-batch of 32 is more than 12 training images" in output


def measure(file: Path, digest: str) -> Path:
    """A made-up result of the experiment's cell, of such data."""
    from ddlbench.common.schema import read_yaml

    _, site, (row,) = matrix_of(read_yaml(file), where=str(file))
    values = result(row.cell, epoch_s=1.0)
    values["inputs"]["dataset_digest"] = digest
    write(Path("results"), row.cell, values)
    return result_file(site.name, row.cell.id)


def test_a_cell_of_other_data_is_named_and_can_be_forgotten(project, tmp_path):
    file = write_experiment(project)
    kept = measure(file, 64 * "a")
    _, output = run("plan", "--configfile", "mine.yaml")
    assert "1 cell of photos was measured with other data than lies there now" in output
    _, output = run("status", "--configfile", "mine.yaml")
    assert "Warning: 1 cell of photos was measured with other data" in output
    code, output = run("status", "forget", "--configfile", "mine.yaml", "--state", "other-data")
    assert (code, kept.exists()) == (1, True)
    assert output.startswith("other-data: photos resnet18 sequential 1x1 ")
    code, output = run(
        "status", "forget", "--configfile", "mine.yaml", "--state", "other-data", "--yes"
    )
    assert (code, output, kept.exists()) == (0, "1 result deleted", False)
    request = DataRequest("photos", source=str(tmp_path / "photos"))
    kept = measure(file, inspect_user_data(request).digest)
    _, output = run("plan", "--configfile", "mine.yaml")
    assert "other data" not in output
    assert "Warning" not in run("status", "--configfile", "mine.yaml")[1]
    run("status", "forget", "--configfile", "mine.yaml", "--state", "other-data", "--yes")
    assert kept.exists()


def test_data_that_is_gone_hinders_only_cells_that_need_it(project, tmp_path):
    file = write_experiment(project)
    kept = measure(file, 64 * "a")
    shutil.rmtree(tmp_path / "photos")
    code, output = run("plan", "--configfile", "mine.yaml")
    assert (code, "0 to run, 1 done" in output, "is not a folder" in output) == (0, True, True)
    kept.unlink()
    code, output = run("plan", "--configfile", "mine.yaml")
    assert (code, "photos is not" in output) == (1, True)


def test_check_data_names_all_bad_files(project, tmp_path):
    write_experiment(project)
    code, output = run("check", "--data", "--configfile", "mine.yaml")
    assert (code, output) == (
        0, "photos: 12 images in 3 classes (12 for validation) every file can be read",
    )  # fmt: skip
    photos = tmp_path / "photos"
    (photos / "train/ant/000.png").write_bytes(b"")
    (photos / "train/cat/003.png").write_text("<html>404</html>")
    whole = (photos / "val/bee/001.png").read_bytes()
    (photos / "val/bee/001.png").write_bytes(whole[:50])
    picture(0, 0).convert("F").save(photos / "val/bee/x.tif")
    code, output = run("check", "--data", "--configfile", "mine.yaml", "--json")
    (checked,) = json.loads(output)
    assert code == 1
    assert checked["read"] == 21
    places = [Path(fault.split()[0]) for fault in checked["faults"]]
    assert [place.relative_to(photos).as_posix() for place in places] == [
        "train/ant/000.png", "train/cat/003.png", "val/bee/001.png", "val/bee/x.tif",
    ]  # fmt: skip


def test_check_data_reads_a_folder_as_a_dataset(project, tmp_path):
    photos = str(tmp_path / "photos")
    code, output = run("check", "--data", "--dataset", "highres", "--folder", photos)
    assert (code, output.startswith("highres: 12 images in 3 classes")) == (0, True)
    code, output = run("check", "--data", "--dataset", "tokens", "--folder", photos)
    assert code == 1
    assert "train.bin is missing" in output
    code, output = run("check", "--data", "--folder", photos)
    assert (code, "needs one --dataset" in output) == (1, True)
    code, output = run("check", "--data")
    assert (code, "names no data of your own" in output) == (1, True)
