"""One profile from several jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlbench.experiment.profile import (
    BatchTime,
    BlockProfile,
    InvalidProfile,
    LayerProfile,
    LoneMessage,
    LoneRun,
    NodeSlowdown,
    ParameterTensor,
    Profile,
    StepTimes,
    read_profile,
    write_profile,
)
from ddlbench.profiling.profile import pooled


def run(speed: float, *, width: float = 0.01, slowdown: float = 1.1) -> Profile:
    """A profile of one block; everything takes ``speed`` times as long."""

    def step(batch: int) -> StepTimes:
        step_s = speed * batch * 0.01
        interval = (step_s * (1 - width), step_s * (1 + width))
        return StepTimes(batch, 5, step_s, interval, 0.0, 0.3 * step_s, 0.6 * step_s,
                         0.1 * step_s, 1000 * batch)  # fmt: skip

    times = tuple(BatchTime(batch, speed * batch * 0.003, None) for batch in (4, 8))
    block = BlockProfile(0, "all", 40, 0, 10.0, 10.0, 20.0, times, times, times, times)
    layer = LayerProfile(
        name="all.linear", block=0, block_name="all", kind="Linear", parameter_bytes=40,
        output_bytes_per_sample=10.0, saved_bytes_per_sample=20.0, forward=times, backward=times,
    )  # fmt: skip
    return Profile(
        site="local", profile_id="mnist/mlp/fp32-1t", dataset="mnist", network="mlp",
        precision="fp32", threads_per_device=1, device_kind="cpu", batch_sizes=(4, 8),
        steps=(step(4), step(8)), layers=(layer,), blocks=(block,),
        tensors=(ParameterTensor("bias", 0, 8, 0.5), ParameterTensor("weight", 0, 32, speed / 2)),
        node_slowdown=(NodeSlowdown(1, 1.0, None), NodeSlowdown(2, slowdown, (1.0, slowdown))),
        alone=(LoneRun("filter", 5, speed * 0.02, None, (LoneMessage("swap", (0, 1), 8, 3),)),),
        fixed_memory_bytes=0, notes=("same",), provenance={"host": f"n{speed:g}"},
    )  # fmt: skip


def test_times_are_medians_over_the_runs():
    whole = pooled([run(1.0), run(1.5), run(1.1, slowdown=1.3)])
    assert whole.runs == 3
    assert [step.step_s for step in whole.steps] == pytest.approx([0.044, 0.088])
    assert whole.blocks[0].forward[1].time_s == pytest.approx(1.1 * 8 * 0.003)
    assert whole.blocks[0].weight_half == whole.blocks[0].forward
    assert whole.layers[0].backward[0].time_s == pytest.approx(1.1 * 4 * 0.003)
    assert whole.node_slowdown[1].slowdown == 1.1
    assert whole.alone[0].step_s == pytest.approx(0.022)
    assert whole.alone[0].count == 15
    assert whole.notes == ("same",)
    assert [entry["host"] for entry in whole.provenance["runs"]] == ["n1", "n1.5", "n1.1"]


def test_an_interval_holds_those_of_all_runs():
    step = pooled([run(1.0), run(1.5, width=0.02)]).steps[0]
    assert step.interval_s == pytest.approx((0.04 * 0.99, 0.06 * 1.02))


def test_parts_of_a_step_still_fill_it():
    odd = run(1.0)
    late = replace(odd.steps[0], forward_s=0.5 * 0.04, backward_s=0.4 * 0.04)
    step = pooled([odd, replace(odd, steps=(late, odd.steps[1])), odd]).steps[0]
    parts = step.load_s + step.forward_s + step.backward_s + step.optimizer_s
    assert parts == pytest.approx(step.step_s)


def test_gradients_keep_the_order_in_which_they_are_ready():
    ready = pooled([run(0.8), run(0.9)]).tensors  # the weight before the bias
    assert [tensor.name for tensor in ready] == ["weight", "bias"]


def test_a_batch_size_that_some_run_lacks_is_left_out():
    short = run(1.0)
    whole = pooled([run(1.0), replace(short, steps=short.steps[:1])])
    assert [step.batch_size for step in whole.steps] == [4]


def test_runs_of_pools_add_up(tmp_path):
    again = pooled([pooled([run(1.0), run(1.1)]), run(1.2)])
    write_profile(tmp_path / "profile.json", again)
    assert read_profile(tmp_path / "profile.json").runs == 3


def test_runs_of_another_network_are_refused():
    other = replace(run(1.0), profile_id="mnist/resnet18/fp32-1t")
    with pytest.raises(InvalidProfile, match="runs are of different networks"):
        pooled([run(1.0), other])
