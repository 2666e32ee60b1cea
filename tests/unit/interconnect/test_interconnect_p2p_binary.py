"""Running NVIDIA's link test, without a GPU."""

import pytest
from p2p_printer import printed

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.nvidia_programs import find_or_build_p2p
from ddlbench.interconnect.p2p import run_p2p


def program(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return path


def test_values_are_medians_of_all_runs(tmp_path):
    for run, factor in enumerate((1.0, 9.0, 3.0, 2.0, 0.5)):

        def change(key, rows, factor=factor):
            return [[value * factor for value in row] for row in rows]

        (tmp_path / f"run{run}").write_text(printed(2, reads=True, change=change))
    fake = program(
        tmp_path / "fake",
        f'cd {tmp_path}; n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; cat "run$n"\n'
        f'echo "$@" > options\n',
    )
    pairs = run_p2p(find_or_build_p2p({"p2p_binary": str(fake)}))
    assert {pair["repeats"] for pair in pairs} == {5}
    assert pairs[0]["bandwidth_bytes_per_s"][0][1] == pytest.approx(2 * 101e9)
    assert pairs[0]["latency_s"][1][0] == pytest.approx(2 * 30e-6)
    assert (tmp_path / "options").read_text() == "--p2p_read\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo 'error while loading shared libraries' >&2; exit 127", "shared libraries"),
        ("exit 3", "failed: exit status 3"),
        ("echo hello", "this is no output of p2pBandwidthLatencyTest"),
    ],
)
def test_a_program_that_fails_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        run_p2p(program(tmp_path / "fake", text))
    assert "\n" not in str(caught.value)
