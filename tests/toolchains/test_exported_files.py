"""Each export is opened by the tool that it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from report_factory import failed, matrix, write, write_all

import ddlbench
from ddlbench.experiment.status import Failure, Reason
from ddlbench.report.measurements import make_tables

ROOT = Path(__file__).resolve().parents[2]
# An optional package is found behind those of this environment.
_EXPORT = """
import sys
sys.path.append(sys.argv.pop(1))
from ddlbench.cli import main
main()
"""
Tool = Callable[[str], Path]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells that are ok, timed out, ran out of memory, failed, and one whose file is damaged."""
    patch = pytest.MonkeyPatch()
    rows = matrix(
        patch,
        datasets=["mnist", "cifar10"],
        networks=["vgg11", "resnet18"],
        strategies=["sequential", "ddp", "gpipe"],
    )
    patch.undo()
    root = tmp_path_factory.mktemp("exports") / "results"
    write_all(root, rows)
    lost, damaged, full = rows[-1].cell, rows[-2].cell, rows[-3].cell
    Failure(lost.id, "program", Reason("rank_killed", "killed"), None).write(
        root / "local" / "cells" / lost.id
    )
    (root / "local" / "cells" / lost.id / "result.json").unlink()
    path = write(root, full, failed(full, "out_of_memory", 'device "1"\\ has\n80 GiB'))
    (path.parent / "steps.csv").unlink()
    make_tables("demo", "local", rows, root, root / "local" / "demo" / "tables")
    (root / "local" / "cells" / damaged.id / "result.json").write_text("{")
    return root


def export(results: Path, out: Path, name: str, programs: Path | None = None, *more: str) -> None:
    """Write the export twice; with a tool's packages where the format needs them."""
    actual = list((programs.parent / "lib").glob("python*/site-packages")) if programs else []
    arguments = ["report", "export", "--to", name, "--out", str(out), *more, str(results)]
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", _EXPORT, str(actual[0]) if actual else "", *arguments],
            check=True, cwd=ROOT,
        )  # fmt: skip


def output_of(programs: Path, code: str, *arguments: object, **environment: str) -> dict:
    """What a program in the tool's own environment prints as JSON."""
    ended = subprocess.run(
        [programs / "python", "-c", code, *map(str, arguments)],
        check=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    return json.loads(ended.stdout)


def medians(results: Path) -> dict[str, float]:
    frame = ddlbench.load(results)
    return frame[frame["status"] == "ok"].set_index("cell_id")["step_median_s"].to_dict()


def test_pyarrow_reads_cells_and_steps(results: Path, tmp_path: Path, tool: Tool) -> None:
    export(results, tmp_path / "out", "parquet")
    code = """
import json, sys, pyarrow.parquet as pq
cells, steps = (pq.read_table(f"{sys.argv[1]}/{name}.parquet") for name in ("cells", "steps"))
field = cells.schema.field("step_median_s")
rows = zip(cells["cell_id"].to_pylist(), cells["step_median_s"].to_pylist())
print(json.dumps({
    "unit": field.metadata[b"unit"].decode(), "medians": {k: v for k, v in rows if v is not None},
    "status": cells["status"].to_pylist(), "steps": steps.num_rows,
    "about": {k.decode(): v.decode() for k, v in cells.schema.metadata.items()},
}))
"""
    actual = output_of(tool("pyarrow"), code, tmp_path / "out")
    known = medians(results)
    assert actual["medians"] == known
    assert actual["unit"] == "s"
    assert actual["steps"] == 26 * len(known)
    assert set(actual["status"]) == {"ok", "timeout", "out_of_memory", "failed", "invalid"}
    assert actual["about"]["license"] == "Apache-2.0"


def test_duckdb_queries_the_tables(results: Path, tmp_path: Path, tool: Tool) -> None:
    programs, out = tool("duckdb"), tmp_path / "results.duckdb"
    export(results, out, "duckdb", programs)
    code = """
import duckdb, json, sys
base = duckdb.connect(sys.argv[1], read_only=True)
ask = lambda text: base.execute(text).fetchall()
print(json.dumps({
    "tables": [name for name, in ask("SHOW TABLES")],
    "medians": dict(ask("SELECT cell_id, step_median_s FROM cells WHERE step_median_s NOTNULL")),
    "joined": ask("SELECT count(*) FROM steps JOIN cells USING (results, site, cell_id)")[0][0],
    "ranks": ask("SELECT max(memory_peak_bytes) FROM ranks")[0][0],
    "comment": ask("SELECT comment FROM duckdb_columns() WHERE column_name = 'epoch_s'")[0][0],
}))
"""
    actual = output_of(programs, code, out)
    known = medians(results)
    assert actual["tables"] == ["cells", "ranks", "steps"]
    assert actual["medians"] == known
    assert actual["joined"] == 26 * len(known)
    assert actual["ranks"] == ddlbench.load(results)["peak_memory_bytes"].max()
    assert actual["comment"].endswith("[s]")
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_mlflow_searches_the_runs(results: Path, tmp_path: Path, tool: Tool) -> None:
    programs, out = tool("mlflow"), tmp_path / "mlruns"
    export(results, out, "mlflow", programs, "--author", "Ada")
    code = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(f"file://{sys.argv[1]}")
every = [one.experiment_id for one in client.search_experiments()]
runs = client.search_runs(every)
good = client.search_runs(every, "attributes.status = 'FINISHED' and metrics.step_median_s > 0")
steps = client.get_metric_history(good[0].info.run_id, "steps.step_s")
print(json.dumps({
    "experiments": sorted(one.name for one in client.search_experiments()),
    "status": {run.data.tags["cell_id"]: run.info.status for run in runs},
    "why": {run.data.tags["cell_id"]: run.data.tags.get("mlflow.note.content") for run in runs},
    "medians": {run.data.tags["cell_id"]: run.data.metrics["step_median_s"] for run in good},
    "batch": {run.data.params["batch_size"] for run in runs} == {"16"},
    "steps": [point.step for point in steps], "places": [run.info.artifact_uri for run in runs],
    "lasted": [run.info.end_time - run.info.start_time for run in good],
}))
"""
    actual = output_of(programs, code, out, MLFLOW_ALLOW_FILE_STORE="true", HOME=str(tmp_path))
    frame = ddlbench.load(results)
    assert actual["experiments"] == ["local/demo"]
    assert actual["medians"] == medians(results)
    expected = {
        row.cell_id: "FINISHED" if row.status == "ok" else "FAILED" for row in frame.itertuples()
    }
    assert actual["status"] == expected
    assert "killed" in actual["why"].values()
    assert actual["batch"]
    assert actual["steps"] == list(range(24))
    assert all(place.startswith(out.as_uri()) for place in actual["places"])
    assert all(lasted > 0 for lasted in actual["lasted"])


def test_prometheus_parses_the_exposition(results: Path, tmp_path: Path, tool: Tool) -> None:
    out = tmp_path / "ddlbench.prom"
    export(results, out, "openmetrics")
    code = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as textfile
text = open(sys.argv[1], encoding="utf-8", newline="").read()
found = {one.name: one for one in openmetrics(text)}
older = {one.name: len(one.samples) for one in textfile(text)}
print(json.dumps({
    "units": {name: one.unit for name, one in found.items()},
    "types": sorted({one.type for one in found.values()}),
    "medians": [sample.value for sample in found["ddlbench_step_median_seconds"].samples],
    "status": sorted({one.labels["status"] for one in found["ddlbench_cell_status"].samples}),
    "same": older == {name: len(one.samples) for name, one in found.items()},
}))
"""
    actual = output_of(tool("prometheus"), code, out)
    assert sorted(actual["medians"]) == sorted(medians(results).values())
    assert actual["types"] == ["gauge"]
    assert actual["units"]["ddlbench_peak_memory_bytes"] == "bytes"
    assert actual["status"] == ["failed", "invalid", "ok", "out_of_memory", "timeout"]
    assert actual["same"]  # node_exporter reads the older format


def test_the_validator_accepts_the_crate(results: Path, tmp_path: Path, tool: Tool) -> None:
    config = tmp_path / "study.yaml"
    config.write_text("experiment: demo\n")
    out = tmp_path / "crate"
    author = "Ada Lovelace <https://orcid.org/0000-0002-1825-0097>"
    more = ("--author", author, "--licence", "CC-BY-4.0", "--configfile", str(config))
    export(results, out, "ro-crate", None, *more)
    # The validator fetches the context of RO-Crate 1.1; the package rocrate holds it.
    code = """
import io, sys
from pathlib import Path
import requests, rocrate, urllib3
from rocrate_validator.cli import cli
context = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_bytes()
def send(adapter, request, **options):
    if request.url != "https://w3id.org/ro/crate/1.1/context":
        raise requests.ConnectionError(request.url)
    kind = {"Content-Type": "application/ld+json"}
    found = urllib3.HTTPResponse(io.BytesIO(context), kind, status=200, preload_content=False)
    return adapter.build_response(request, found)
requests.adapters.HTTPAdapter.send = send
cli()
"""
    report = tmp_path / "report.json"
    arguments = [
        "-y", "validate", "--profile-identifier", "workflow-run-crate", "--no-cache",
        "--requirement-severity", "required", "--output-format", "json", "--output-file", report,
        out,
    ]  # fmt: skip
    ended = subprocess.run(
        [tool("rocrate") / "python", "-c", code, *arguments],
        check=False, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert report.is_file(), ended.stdout + ended.stderr
    verdict = json.loads(report.read_text("utf-8"))
    assert verdict["issues"] == []
    assert verdict["passed"]
    assert ended.returncode == 0
