"""What README.md and the docstrings show runs as it stands."""

import doctest
import re
from pathlib import Path

import torch

from residlab.models.hf import swap

README = Path(__file__).parents[3] / "README.md"


def test_the_readme_trains_saves_and_loads(tmp_path, monkeypatch, capsys):
    (block,) = (
        code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "swap_norms" in code
    )
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    exec(compile(block, str(README), "exec"), names)
    assert "bhyt in 2 layers of LlamaForCausalLM" in capsys.readouterr().out
    assert names["loss"] < 5.6
    assert names["model"].config.residlab["norm"]["lam_attention"] == 3.0
    assert (tmp_path / "llama-bhyt" / "config.json").is_file()


def test_the_docstring_of_swap():
    assert doctest.testmod(swap).failed == 0
