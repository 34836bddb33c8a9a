"""The tutorials run as they stand, block by block, and print what their pages say."""

import contextlib
import io
import math
import re

import pytest
import torch

from residlab.compendium.project import Project
from residlab.data.texts import wikipedia_summaries
from residlab.models.hf import smollm2, swap_norms

TUTORIALS = Project.find().root / "book" / "tutorials"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def blocks(page):
    """Return the code blocks of a page, each with what it should print."""
    return [(code, printed.rstrip()) for code, printed in BLOCK.findall((TUTORIALS / page).read_text(encoding="utf-8"))]


def same(said, printed, *, rtol):
    """Say whether two texts have the same words, and numbers that differ by a share or by two in the last digit."""
    if NUMBER.sub("#", said).split() != NUMBER.sub("#", printed).split():
        return False
    for a, b in zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True):
        last = 10.0 ** -len(a.partition("e")[0].partition(".")[2]) * 10.0 ** int(a.partition("e")[2] or 0)
        if abs(float(a) - float(b)) > max(rtol * abs(float(a)), 2.01 * last):
            return False
    return True


def run(page, rtol):
    """Run the blocks of a page in one namespace; return what they made."""
    names = {}
    for code, said in blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert same(said, printed.getvalue(), rtol=rtol), f"said:\n{said}\nprinted:\n{printed.getvalue()}"
    return names


def test_bhyt_in_your_llama(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("llama.md", rtol=0.03)  # it trains: sums in another order end elsewhere
    assert (tmp_path / "my-llama-bhyt" / "config.json").is_file()
    assert names["again"].config.residlab["norm"]["tokens"] == 128


def test_what_the_swap_does_is_what_the_page_says():
    before, swapped, gains = (
        float(re.search(r"(\d+\.\d+)", said.splitlines()[-1])[1]) for _, said in blocks("llama.md")[1:4]
    )
    assert before <= gains < swapped - 0.1


@pytest.mark.smollm2
def test_measure_your_own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("measure.md", rtol=0.02)


@pytest.mark.smollm2
def test_a_large_model_is_worse_than_a_guess_until_its_gains_are_larger():
    model, tokenizer = smollm2()
    ids = tokenizer(wikipedia_summaries()[0].text, return_tensors="pt")["input_ids"][:, :32]

    @torch.no_grad()
    def loss():
        return model(ids, labels=ids).loss.item()

    before = loss()
    norm = swap_norms(model, "bhyt", tokens=32).options
    swapped = loss()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.gamma *= norm.kappa / norm.lam_attention
            layer.post_attention_layernorm.gamma *= norm.kappa / norm.lam_feedforward
    assert before + 0.5 < loss() < math.log(model.config.vocab_size) < swapped


@pytest.mark.parametrize(
    ("said", "printed", "agree"),
    [
        ("loss 2.51", "loss 2.53\n", True),
        ("loss 2.51", "loss 2.81\n", False),
        ("loss 2.51", "lost 2.51\n", False),
        ("error 1.0e-03", "error 1.1e-03\n", True),
        ("error 1.0e-03", "error 2.0e-03\n", False),
        ("12 of 270 heads", "12 heads\n", False),
        ("", "unexpected\n", False),
    ],
)
def test_a_page_that_says_something_else_is_found(said, printed, agree):
    assert same(said, printed, rtol=0.02) == agree
