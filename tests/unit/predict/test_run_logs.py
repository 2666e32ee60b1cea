"""Logs of MLPerf, Megatron and torchtitan as rows: noise, ranks and cut files included."""

import json

import pandas as pd
import pytest
from click.testing import CliRunner

from ddlbench.commands.oracle import oracle
from ddlbench.common.errors import ConfigError
from ddlbench.predict.run_logs import megatron, mlperf, torchtitan
from ddlbench.predict.run_logs.logged_run import after_warm_up, real, table_text, whole
from ddlbench.predict.run_tables import kind_of


def event(time_ms, key, value=None, rank=0, **metadata):
    entry = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key,
             "value": value, "metadata": {"file": "train.py", "lineno": 1, **metadata}}  # fmt: skip
    return f"{rank}: :::MLLOG {json.dumps(entry)}"


def settings(batch=3200):
    return [
        event(1, "submission_benchmark", "resnet"), event(1, "submission_org", "NVIDIA"),
        event(1, "submission_platform", "1xDGXH100"), event(1, "global_batch_size", batch),
        event(1, "train_samples", 1281167),
    ]  # fmt: skip


def epochs(count, epoch_ms=4347, first_ms=9000, **ends):
    """Epochs that two ranks print, the first of which is slow."""
    lines, now = [event(10_000, "run_start")], 10_000
    for epoch in range(1, count + 1):
        for rank in (0, 1):
            lines.append(event(now + rank, "epoch_start", None, rank, epoch_num=epoch))
        now += first_ms if epoch == 1 else epoch_ms
        for rank in (0, 1):
            lines.append(event(now + rank, "epoch_stop", None, rank, epoch_num=epoch))
    return [*lines, event(now + 1000, "run_stop", None, status="success")]


def test_epochs_of_mlperf():
    run = mlperf.read("\n".join(["+ NODELIST=a", *settings(), *epochs(5)]), "v3.0/log.txt")
    assert run.step_s == pytest.approx(4.347 * 3200 / 1281167)
    assert (run.submitter, run.model, run.round) == ("NVIDIA", "resnet", "v3.0")
    assert (run.status, run.epochs_median, run.steps_counted) == ("success", 5, 3)
    assert run.run_s_median == pytest.approx(9 + 4 * 4.347 + 1)


def evaluated(begin_ms, end_ms, stop_ms, **label):
    """Three epochs, each with an evaluation."""
    lines = [event(1, "global_batch_size", 64), event(1, "train_samples", 640)]
    lines.append(event(1_000, "run_start"))
    for epoch in range(3):
        start = 1_000 + epoch * stop_ms
        lines += [
            event(start, "epoch_start", None, epoch_num=epoch),
            event(start + begin_ms, "eval_start", None, **(label and {"epoch_num": epoch})),
            event(start + end_ms, "eval_stop", None, **(label and {"epoch_num": epoch})),
            event(start + stop_ms, "epoch_stop", None, epoch_num=epoch),
        ]
    return "\n".join([*lines, event(1_000 + 3 * stop_ms, "run_stop", None, status="success")])


@pytest.mark.parametrize("label", [{}, {"epoch_num": True}], ids=["unlabelled", "labelled"])
@pytest.mark.parametrize(
    ("spans_ms", "training_s"),
    [
        ((5000, 5200, 7500), 5.0),  # a checkpoint follows
        ((5000, 9000, 9001), 5.0),
        ((5000, 6000, 10_000), 9.0),  # training goes on
        ((500, 6000, 10_000), 4.5),  # evaluation first
    ],
)
def test_evaluation_within_an_epoch_does_not_train(spans_ms, training_s, label):
    run = mlperf.read(evaluated(*spans_ms, **label), "log.txt")
    assert run.step_s == pytest.approx(training_s * 64 / 640)
    assert run.epochs_share_of_run == pytest.approx(1e3 * training_s / spans_ms[2])


def test_an_instance_counts_its_nodes_and_processors_stand_for_accelerators():
    """As a weak-scaling entry of MLPerf HPC: four nodes of 512, which the description counts."""
    source = "hpc_results_v3.0/Fujitsu/results/fugaku/weak/cosmoflow/result_1.txt"
    lines = [event(1, "submission_org", "copied"), event(1, "number_of_nodes", 4)]
    run = mlperf.read("\n".join([*lines, event(1, "accelerators_per_node", 0)]), source)
    system = {
        "number_of_nodes": "512", "accelerators_per_node": "0", "host_processors_per_node": "1",
        "host_processor_model_name": "A64FX", "submitter": "Fujitsu", "framework": "TensorFlow",
        "other_software_stack": {"Horovod": "0.19.1"},
    }  # fmt: skip
    run = mlperf.with_system(run, "fugaku", system)
    assert (run.nodes, run.accelerators, run.accelerator) == (4, 4, "A64FX")
    assert run.instances == 128
    assert (run.submitter, run.round, run.process) == ("Fujitsu", "v3.0", "horovod")


def test_blocks_and_rates_stand_for_epochs():
    blocks = [event(0, "run_start")]
    for number, (start, stop) in enumerate([(1000, 9000), (10_000, 12_000), (13_000, 15_000)]):
        blocks.append(event(start, "block_start", None, samples_count=2688 * number))
        blocks.append(event(stop, "block_stop", None, samples_count=2688 * (number + 1)))
    run = mlperf.read("\n".join([*settings(batch=8), *blocks]), "log.txt")
    assert run.step_s == pytest.approx(2 * 8 / 2688)
    assert run.status == "cut off"
    rates = [event(5, "tracked_stats", {"throughput": rate}) for rate in (10.0, 50.0, 50.0)]
    run = mlperf.read("\n".join([*settings(batch=100), *rates]), "log.txt")
    assert run.step_s == pytest.approx(2) and "samples/s" in run.note


@pytest.mark.parametrize(
    ("benchmark", "progress", "batch", "length", "step_s"),
    [
        ("dlrm", 0.75, 64, None, 10 * 64 / 480),
        ("bert", 320, 64, 512, 10 * 64 / 320),
        ("gpt3", 1536 * 2048 * 2, 1536, 2048, 5.0),
        ("resnet", 1, 64, None, 10 * 64 / 640),
        ("resnet", 8, 64, None, 10 * 64 / 640),  # counts epochs
    ],
)
def test_an_epoch_may_end_early(benchmark, progress, batch, length, step_s):
    """DLRM tells a share of its epoch, BERT samples, GPT-3 tokens beside a batch of sequences."""
    lines = [event(1, "submission_benchmark", benchmark), event(1, "global_batch_size", batch)]
    lines += [event(1, "max_sequence_length", length)] if length else []
    lines += [
        event(1, "train_samples", 640),
        event(1_000, "run_start"),
        event(1_000, "epoch_start", None, epoch_num=0),
        event(11_000, "eval_start", None, epoch_num=progress),
        event(12_000, "eval_stop", None, epoch_num=progress),
        event(12_000, "eval_accuracy", 0.8, epoch_num=progress),
        event(12_000, "epoch_stop", None, epoch_num=0),
        event(13_000, "eval_accuracy", 0.8, epoch_num=100 * batch),  # of a later epoch
        event(14_000, "run_stop", None, status="success"),
    ]
    run = mlperf.read("\n".join(lines), "log.txt")
    assert run.step_s == pytest.approx(step_s)


def test_a_second_run_of_mlperf_is_refused():
    """A requeued job writes on in the same file."""
    first = "\n".join([*settings(), *epochs(3)])
    soon = event(40_000, "run_start")  # the first one stopped at 28.7 s
    with pytest.raises(ConfigError, match="log: a run begins 30 s after the first"):
        mlperf.read(f"{first}\n{soon}", "log")
    later = "\n".join(line.replace('"time_ms": ', '"time_ms": 90') for line in epochs(3))
    with pytest.raises(ConfigError, match="log: a run begins .* s after the first, so it holds"):
        mlperf.read(f"{first}\n{later}", "log")


def test_damaged_lines_of_mlperf_are_skipped():
    whole_lines = [*settings(), *epochs(5)]
    noise = [":::MLLOG", ":::MLLOG {", ":::MLLOG {}", ":::MLLOG [1]", ':::MLLOG {"key": 5}',
             ":::MLLOG " + '{"a":' * 5000, event("soon", "epoch_stop", epoch_num=9)]  # fmt: skip
    run = mlperf.read("\n".join([*noise, *whole_lines, *noise]), "log.txt")
    assert run.step_s == mlperf.read("\n".join(whole_lines), "log.txt").step_s
    cut = "\n".join(whole_lines)[:-150]
    assert mlperf.read(cut, "log.txt").status == "cut off"


def iteration(number, last=10, ms=5444.9, batch=128):
    return (
        f" [2024-04-06 02:59:{number:02d}] iteration {number:8d}/ {last:7d} | consumed samples: "
        f"{number * batch:12d} | elapsed time per iteration (ms): {ms:.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): 239.8 | learning rate: 8.600000E-06 | global batch size: {batch:5d} | lm "
        "loss: 1.825991E+00 | loss scale: 1.0 | grad norm: 1.426 | number of skipped iterations: "
        "  0 | number of nan iterations:   0 |"
    )


MEGATRON = """\
using world size: 16, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 1
[default0]:  hidden_size ..................................... 4096
  num_layers ...................................... 32
  num_attention_heads ............................. 32
  num_query_groups ................................ None
  seq_length ...................................... 4096
  micro_batch_size ................................ 1
[Rank 0] (after 2 iterations) memory (MB) | allocated: 213.1 | max allocated: 43008.0 | reserved: 1.0 | max reserved: 46000.0
"""  # noqa: E501 - as it was printed


def test_iterations_of_megatron():
    steps = [iteration(n, ms=20_000 if n == 1 else 5000 + n) for n in range(1, 11)]
    run = megatron.read(MEGATRON + "\n".join(steps), "log.txt")
    assert run.step_s == pytest.approx(5.008)  # of 6 to 10
    assert (run.devices, run.tensor, run.pipeline, run.data) == (16, 4, 1, 4)
    assert (run.layers, run.hidden_size, run.key_value_heads) == (32, 4096, None)
    assert (run.global_batch, run.status, run.steps_counted) == (128, "complete", 5)
    assert (run.memory_gib, run.tflops_a_device) == (42, 239.8)


def test_logs_say_whether_the_embedding_is_tied():
    argument = "  untie_embeddings_and_output_weights ............. {}\n"
    for word, expected in (("True", "no"), ("False", "yes")):
        assert megatron.read(MEGATRON + argument.format(word), "log").tied_embedding == expected
    assert megatron.read(MEGATRON, "log").tied_embedding == ""
    assert torchtitan.read(TITAN, "log").tied_embedding == "no"
    tied = TITAN.replace("dim=4096", "dim=4096, enable_weight_tying=True")
    assert torchtitan.read(tied, "log").tied_embedding == "yes"


def test_ranks_growing_batches_and_cut_lines_of_megatron():
    growing = [iteration(n, batch=32, ms=1000) for n in range(1, 7)]
    steps = [f"[rank{r}]:{iteration(n)}" for n in range(7, 10) for r in (0, 1)]
    cut = iteration(10)[:90]
    run = megatron.read("\n".join([*growing, *steps, cut]), "log.txt")
    assert (run.global_batch, run.step_s, run.steps_counted) == (128, pytest.approx(5.4449), 2)
    assert run.status == "cut off"
    failed = megatron.read(iteration(1) + "\ntorch.cuda.OutOfMemoryError: CUDA", "log.txt")
    assert failed.status == "out of memory" and "warm-up included" in failed.note


@pytest.mark.parametrize(
    "written",
    ["elapsed time per iteration (s): 5.44", "elapsed time per iteration (ms): 5440.0/5500.0"],
    ids=["bloom", "primus"],
)
def test_other_times_of_an_iteration(written):
    assert "elapsed time per iteration (ms): 5444.9" in iteration(1)
    lines = [
        iteration(number).replace("elapsed time per iteration (ms): 5444.9", written)
        for number in range(1, 11)
    ]
    assert megatron.read("\n".join(lines), "log").step_s == pytest.approx(5.44)


def test_settings_that_mean_something_else():
    """Groups without grouped queries; and DeepSpeed's list, whose world is the replicas."""
    ungrouped = "  group_query_attention ........................... False\n"
    one_group = MEGATRON.replace("num_query_groups ................................ None",
                                 "num_query_groups ................................ 1")  # fmt: skip
    assert one_group != MEGATRON
    assert megatron.read(ungrouped + one_group, "log").key_value_heads == 32
    assert megatron.read(one_group, "log").key_value_heads == 1
    deepspeed = "[2024-04-06] [INFO] [config.py:1007:print]   world_size ................... 4\n"
    assert megatron.read(MEGATRON + deepspeed, "log").devices == 16


def test_steps_that_begin_again_are_noted():
    once, slower = ([iteration(n, ms=ms) for n in range(1, 11)] for ms in (500.0, 900.0))
    assert not megatron.read("\n".join(once), "log").note
    again = megatron.read("\n".join(once + slower), "log")
    assert (again.step_s, "begin again" in again.note) == (pytest.approx(0.9), True)
    steps = [titan(step, 5856, 20 + step) for step in range(1, 21)]
    assert not torchtitan.read(TITAN + "\n".join(steps), "log").note
    assert "begin again" in torchtitan.read(TITAN + "\n".join(2 * steps), "log").note


def titan(step, tps, second, rank=0):
    return (
        f"[rank{rank}]:[titan] 2025-03-12 11:10:{second:02d},500 - root - INFO - \x1b[31mstep: "
        f"{step:2d}  \x1b[32mloss:  6.2250  \x1b[38mgrad_norm:  2.6  \x1b[33mmemory: 41.41GiB"
        f"(51.79%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 339.16  \x1b[35mmfu: 34.29%\x1b[39m"
    )


TITAN = """\
[rank0]:[titan] 2025-03-12 11:10:00,298 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
[rank0]:[titan] 2025-03-12 11:10:00,300 - root - INFO - Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, vocab_size=128256)
[rank0]:[titan] 2025-03-12 11:10:00,310 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
[rank0]:[titan] 2025-03-12 11:10:00,320 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2025-03-12 11:10:00,330 - root - INFO - Trainer is initialized with local batch size 1, global batch size 4, gradient accumulation steps 1, sequence length 8192, total steps 20 (warmup 2)
"""  # noqa: E501 - as it was printed


def test_steps_of_torchtitan():
    steps = [titan(s, 300 if s == 1 else 5856, 20 + s, r) for s in range(1, 21) for r in (0, 1)]
    run = torchtitan.read(TITAN + "\n".join(steps), "log.txt")
    assert run.step_s == pytest.approx(4 * 8192 / (8 * 5856))
    assert (run.devices, run.tensor, run.data, run.key_value_heads) == (8, 2, 4, 8)
    assert (run.status, run.steps_counted, run.memory_gib) == ("complete", 10, 41.41)
    assert (run.accelerator, run.model) == ("NVIDIA H100 80GB HBM3", "llama3 8B")


def test_validation_does_not_train():
    """It prints the same rates, and takes time between two steps."""
    steps = [titan(step, 5856, 20 + step) for step in range(1, 21)]
    validations = [
        titan(step, 18_000, 20 + step).replace("step: ", "validate step: ") for step in (10, 20)
    ]
    run = torchtitan.read(TITAN + "\n".join([*steps, *validations]), "log")
    assert run.step_s == pytest.approx(4 * 8192 / (8 * 5856))
    slow = [titan(step, 5856, 2 * step + (20 if step > 10 else 0)) for step in range(1, 21)]
    assert torchtitan.read("\n".join([*slow, validations[0]]), "log").step_s == pytest.approx(2)


def test_other_forms_of_torchtitan():
    """Of 2024, words per second; since the end of 2025 another line of the mesh."""
    steps = "\n".join(titan(step, 5856, 20 + step) for step in range(1, 21))
    plain = torchtitan.read(TITAN + steps, "log")
    assert torchtitan.read(TITAN + steps.replace("tps: ", "wps: "), "log") == plain
    mesh = "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]"
    parallelism = "pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=4, etp=1"
    newer = TITAN.replace(mesh, f"Building device mesh with parallelism: {parallelism}")
    assert newer != TITAN
    assert torchtitan.read(newer + steps, "log") == plain


def test_a_log_of_several_runs_is_refused_unless_they_are_restarts():
    assert megatron.read(2 * MEGATRON, "log").step_s == megatron.read(MEGATRON, "log").step_s
    assert torchtitan.read(2 * TITAN, "log").devices == torchtitan.read(TITAN, "log").devices
    other = MEGATRON.replace("tensor-model-parallel size: 4", "tensor-model-parallel size: 2")
    assert other != MEGATRON
    with pytest.raises(ConfigError, match="log: tensor is 4 and later 2, so it holds several runs"):
        megatron.read(MEGATRON + other, "log")
    other = TITAN.replace("global batch size 4", "global batch size 8")
    assert other != TITAN
    with pytest.raises(ConfigError, match="global_batch is 4 and later 8"):
        torchtitan.read(TITAN + other, "log")


def test_the_clock_stands_for_an_unknown_batch():
    steps = [titan(10 * s, 5856, 10 + 14 * s // 10) for s in range(1, 11)]
    run = torchtitan.read("\n".join(steps), "log.txt")
    assert run.step_s == pytest.approx(0.14, abs=0.05) and "clock" in run.note
    assert run.status == "cut off"


def read(tmp_path, files, *more):
    paths = []
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(str(path))
    output = tmp_path / "runs.csv"
    words = ["read", *paths, *more, "--output", str(output)]
    result = CliRunner().invoke(oracle, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return pd.read_csv(output)


def test_a_log_of_steps_that_take_no_time_is_refused(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(MEGATRON.partition("[Rank 0]")[0] + iteration(10, ms=0))
    words = ["read", str(path), "--output", str(tmp_path / "runs.csv")]
    result = CliRunner().invoke(oracle, words)
    assert isinstance(result.exception, ConfigError) and "log.txt" in str(result.exception)
    assert not (tmp_path / "runs.csv").exists()


def test_a_table_of_mlperf_is_scored(tmp_path):
    system = {
        "number_of_nodes": "8", "accelerators_per_node": 8, "submitter": "NVIDIA",
        "accelerator_model_name": "NVIDIA H100-SXM5-80GB", "framework": "MXNet 23.04",
        "host_networking": "Compute: 8x ConnectX-7 IB NDR 400Gb/s",
    }  # fmt: skip
    log = "\n".join([*settings(), *epochs(5)])
    folder = "training_results_v3.0/NVIDIA"
    files = {f"{folder}/results/mine_n8/resnet/result_0.txt": log,
             f"{folder}/systems/mine_n8.json": json.dumps(system)}  # fmt: skip
    table = read(tmp_path, files)
    assert table["accelerators"].tolist() == [64] and table["round"].tolist() == ["v3.0"]
    files = {f"{folder}/results/mine_n8/resnet/result_0.txt": log,
             f"{folder}/systems/other.json": json.dumps(system)}  # fmt: skip
    unnamed = read(tmp_path / "unnamed", files)
    assert "its system is 'mine_n8'" in unnamed["note"][0] and "other" in unnamed["note"][0]
    path = tmp_path / "runs.csv"
    assert kind_of(path).name == "mlperf"
    scored = CliRunner().invoke(oracle, ["score", str(path), "--json"], catch_exceptions=False)
    assert json.loads(scored.output)["mean_absolute_error"] < 0.1


def test_logs_of_cosmoflow_are_scored_as_cosmoflow(tmp_path):
    """Two systems of a family; both logs have their batch, and twice the nodes."""
    files = {}
    for nodes, begin_ms in ((16, 5000), (32, 2600)):
        log = evaluated(begin_ms, begin_ms + 200, begin_ms + 1000).replace(
            '"global_batch_size", "value": 64', f'"global_batch_size", "value": {4 * nodes}'
        )
        named = [event(1, "submission_benchmark", "cosmoflow"), event(1, "number_of_nodes", nodes)]
        folder = "hpc_results_v1.0/Mine"
        path = f"{folder}/results/mine_n{nodes}/strong/cosmoflow/result_1.txt"
        files[path] = "\n".join([*named, log])
        files[f"{folder}/systems/mine_n{nodes}.json"] = json.dumps({
            "number_of_nodes": nodes, "accelerators_per_node": 4, "submitter": "Mine",
            "accelerator_model_name": "A100", "framework": "MXNet",
            "host_networking": "4x ConnectX-6 IB HDR 200Gb/s",
        })  # fmt: skip
    read(tmp_path, files)
    path = str(tmp_path / "runs.csv")
    scored = CliRunner().invoke(oracle, ["score", path, "--json"], catch_exceptions=False)
    values = json.loads(scored.output)
    assert values["rows"] == 1 and list(values["by"]["family"]) == ["cosmoflow v1.0 Mine, 4 x A100"]
    assert values["mean_absolute_error"] < 0.1


def test_logs_of_several_kinds_are_one_table(tmp_path):
    logs = {"a.txt": MEGATRON + iteration(10), "b.txt": TITAN + titan(20, 5856, 30)}
    table = read(tmp_path, logs)
    assert table["log"].tolist() == ["Megatron", "torchtitan"]
    assert "round" not in table


NCCL_ROW = " 1073741824 268435456 float sum -1 4607.6 100.00 187.50 0"


def test_a_note_tells_what_else_a_log_has(tmp_path):
    first, second = MEGATRON + iteration(10), TITAN + titan(19, 5856, 29) + titan(20, 5856, 30)
    logs = {
        "alone.txt": first,
        "tested.txt": f"# nThread 1 nGpus 1\n{NCCL_ROW}\n{first}",
        "two.txt": f"{first}\n{second}",
    }
    notes = read(tmp_path, logs)["note"]
    assert "left out" not in notes[0]
    assert notes[1].endswith("its lines of Megatron; those of nccl-tests are left out")
    assert notes[2].endswith("its lines of torchtitan; those of Megatron are left out")


def test_unknown_logs_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no line of a known log"):
        read(tmp_path, {"a.txt": "hello"})
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path, {"a.txt": iteration(1)}, str(tmp_path / "none.txt"))
    for name, text in (("b.txt", f"# nThread 1 nGpus 1\n{NCCL_ROW}\n"), ("links.json", "{}")):
        with pytest.raises(ConfigError, match=f"{name} is read as times of links.*two tables"):
            read(tmp_path, {"a.txt": iteration(1), name: text})


def test_a_log_is_not_overwritten_by_the_table(tmp_path):
    log = iteration(1)
    with pytest.raises(ConfigError, match="is one of the files to read"):
        read(tmp_path, {"runs.csv": log})
    assert (tmp_path / "runs.csv").read_text() == log


def test_warm_up_and_numbers():
    assert after_warm_up([9]) == [9]
    assert after_warm_up([9, 1, 2]) == [1, 2]
    assert after_warm_up(range(100)) == [*range(10, 100)]
    assert [real(word) for word in ("1,234.5", "nan", "-1", None, True, "x", 2)] == [
        1234.5, None, None, None, None, None, 2,
    ]  # fmt: skip
    assert [whole(word) for word in ("None", "8", 8.5, "9" * 400)] == [None, 8, None, None]


def test_empty_columns_are_left_out():
    run = megatron.read(iteration(1), "log.txt")
    assert table_text([run]).splitlines()[0] == (
        "source,log,status,global_batch,step_s,steps_counted,tflops_a_device,note"
    )


@pytest.mark.parametrize("noise", ["\xa0", " \u200b", " \x1b]0;title\x07"])
def test_signs_that_nobody_sees_change_no_value(noise):
    line = event(1, "global_batch_size", 64)
    log = "\n".join([line, *settings(), *epochs(3)])
    assert mlperf.read(log.replace(" ", noise), "log") == mlperf.read(log, "log")


MEGATRON_LINE = (
    " iteration {0:8d}/      20 | consumed samples: 512 | "
    "elapsed time per iteration (ms): {0}00.0 | throughput per GPU (TFLOP/s/GPU): 240.0 | "
    "global batch size:   128 | lm loss: 1.8E+00 |"
)
TITAN_LINE = (
    "[titan] 2025-07-21 15:00:{0:02d},000 - root - INFO - step: {0:2d}  loss:  6.2250  "
    "memory:  1.41GiB(1.79%)  tps: {0},856  tflops: 339.16  mfu: 34.29%"
)


@pytest.mark.parametrize(
    ("read", "line"), [(megatron.read, MEGATRON_LINE), (torchtitan.read, TITAN_LINE)]
)
def test_a_log_that_ends_anywhere_has_the_values_of_its_whole_lines(read, line):
    lines = [line.format(number) for number in range(1, 7)]
    known = [read("\n".join(lines[:count]) + "\n", "log") for count in (5, 6)]
    for end in range(len(lines[-1])):
        cut = read("\n".join([*lines[:-1], lines[-1][:end]]), "log")
        for name in ("step_s", "global_batch", "tokens_per_s_a_device", "memory_gib"):
            assert getattr(cut, name) in [getattr(each, name) for each in known], end


@pytest.mark.parametrize(
    ("log", "beginning"),
    [
        (megatron, "using world size: 16, data-parallel size: 4, tensor-model-parallel size: 4"),
        (torchtitan, "[titan] Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]"),
        (torchtitan, "[titan] Building device mesh with parallelism: pp=1, dp_shard=16, tp=1"),
    ],
)
def test_a_run_without_memory_for_its_first_step_is_known_by_its_beginning(log, beginning):
    text = f"{beginning}\n[rank3]: torch.OutOfMemoryError: CUDA out of memory."
    assert log.lines_of(text) == 1
    run = log.read(text, "log")
    assert (run.status, run.devices, run.step_s) == ("out of memory", 16, None)


def test_lines_that_are_broken_everywhere_are_named():
    wrapped = "\n".join(iteration(number).replace("| el", "|\nel") for number in (1, 2))
    with pytest.raises(ConfigError, match="log line 1: an iteration without 'elapsed time"):
        megatron.read(wrapped, "log")
    with pytest.raises(ConfigError, match="log line 2: :::MLLOG without its event"):
        mlperf.read("start\n" + event(1, "run_start").replace("{", "{\n"), "log")
