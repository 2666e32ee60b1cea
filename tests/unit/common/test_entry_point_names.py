"""What cannot be loaded, and the likely spelling of its name."""

import pytest

from ddlbench.common.entry_points import load_target
from ddlbench.common.errors import ConfigError


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("my_parts:large_netwrk", "my_parts has no 'large_netwrk'; did you mean 'large_network'?"),
        ("my_parts:zzz", "my_parts has no 'zzz'$"),
        ("broken_parts:large_network", "No module named 'not_installed'$"),
    ],
)
def test_a_near_name_is_of_the_module(target, sentence, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_parts.py").write_text("def large_network(spec): ...\n")
    (tmp_path / "broken_parts.py").write_text("import not_installed\n")
    with pytest.raises(ConfigError, match=sentence):
        load_target(target, target)
