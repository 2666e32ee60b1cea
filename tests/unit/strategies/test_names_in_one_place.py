"""Only a strategy's own folder knows its name: nobody else asks which strategy a cell has."""

import ast
from pathlib import Path

import pytest

import ddlbench
from ddlbench.experiment.registry import SHIPPED_STRATEGIES

SOURCE = Path(ddlbench.__file__).parent

# Files that may hold such a word, and why.
REASONS = {
    "experiment/registry.py": "the one line of each strategy; predictors of the same name",
    "experiment/links.py": "transports and libraries, as links.json names them",
    "interconnect/sweep.py": "a Python package",
    "interconnect/time_plan.py": "a transport, as links.json names it",
    "interconnect/training_sweep.py": "a transport, as links.json names it",
    "planning/schedules/events.py": "names of schedules",
    "planning/schedules/orders.py": "names of schedules",
    "planning/network_tables.py": "what of a layer is split",
    "networks/operations.py": "a kind of convolution",
    "planning/layer_table.py": "a kind of convolution",
    "predict/roofline.py": "a kind of convolution",
    "predict/horovod_scaling.py": "the software of published runs",
    "predict/links.py": "a transport, as links.json names it",
    "predict/paradl/corrected.py": "ParaDL's kinds of parallelism",
    "predict/paradl/oracle.py": "ParaDL's kinds of parallelism",
    "predict/paradl/authors_code.py": "ParaDL's kinds of parallelism",
    "predict/paradl/printed.py": "ParaDL's kinds of parallelism",
    "predict/paradl/configuration.py": "ParaDL's kinds of parallelism",
    "predict/ranking.py": "the rule Horovod, or GPipe where that does not fit",
    "predict/recommender_score.py": "the published rule of thumb names two strategies",
    "predict/predictors/paradl.py": "ParaDL's kinds of parallelism",
    "predict/predictors/steps.py": "a predictor of the same name",
    "predict/predictors/published.py": "predictors of the same names",
    "predict/run_logs/mlperf.py": "the software of published runs",
    "predict/transformer/configurations.py": "names of schedules",
    "predict/transformer/training_runs.py": "the software of published runs",
    "predict/transformer/step.py": "names of schedules",
    "report/registry.py": "thesis Figure 6.3 is of GPipe",
    "report/figures/links.py": "a transport, as links.json names it",
    "report/figures/conditions.py": "thesis Table 6.1 is of GPipe",
    "report/figures/networking.py": "Figures 2 to 10 of Cheng et al. are of a parameter server",
    "report/figures/paradl.py": "ParaDL's kinds of parallelism, drawn in the colours of ours",
    "report/figures/pipelines.py": "the thesis measured one GPipe, which is beside both of ours",
    "report/published.py": "strategies and libraries, as the papers print them",
    "report/timeline/figure.py": "names of schedules",
    "runtime/environment.py": "a Python package",
}


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {word for word in words if isinstance(word, str) and word in SHIPPED_STRATEGIES}


def modules(everywhere=False):
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if everywhere or not place.startswith(("strategies/", "testing/")):
            yield place, path


def test_no_module_names_a_strategy_without_a_reason():
    actual = {place: names for place, path in modules() if (names := names_in(path))}
    without = {place: names for place, names in actual.items() if place not in REASONS}
    assert not without, "ask the descriptor; a new strategy whose name is a word here: rename it"
    assert REASONS.keys() - actual.keys() == set()  # nor is a reason kept that nothing needs


def _calls(path: Path, function: str):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
            yield ast.unparse(node)


@pytest.mark.parametrize("folder", ["planning", "predict", "report", "runtime", "strategies"])
def test_nobody_asks_of_which_class_a_descriptor_is(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        for call in _calls(path, "isinstance"):
            assert not call.startswith(("isinstance(strategy,", "isinstance(descriptor,")), path


def test_nobody_reads_the_details_of_a_plan_by_key():
    """Strategies read them through their typed views, which ``planning/plan.py`` makes."""
    for place, path in modules(everywhere=True):
        if place == "planning/plan.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            read = isinstance(node, ast.Subscript) and ast.unparse(node.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = node.func.attr == "get" and ast.unparse(node.func.value)
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                read = ast.unparse(node.comparators[0])
            assert not (read and str(read).endswith("plan.details")), f"{place}: {read}"
