"""Rows of attention: what is seen of a model's softmax, and each number of a row's rounding against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer
from residlab.precision.formats import BF16, FP16
from residlab.precision.rounding import rounded
from residlab.precision.softmax import softmax
from residlab.precision.summation import summed
from residlab.probes.softmax import observe_softmax, row_rounding
from residlab.theory import softmax as theory


def test_logits_of_each_layer_are_seen_and_nothing_is_changed() -> None:
    model = Transformer(ModelConfig(depth=3, width=32, heads=4, vocabulary=20, context=8), seed=0)
    ids = torch.arange(8)[None]
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        plain, rows = model.forward_with_rows(ids)
        with observe_softmax(seen.append):
            again, _ = model.forward_with_rows(ids)
        model.forward_with_rows(ids)
    assert torch.equal(plain, again)
    assert len(seen) == 3
    for logits, row in zip(seen, rows, strict=True):
        assert logits.shape == (1, 4, 8, 8)
        torch.testing.assert_close(logits.softmax(-1), row)


@pytest.mark.parametrize("form", ["method", "torch", "functional", "keyword"])
def test_every_way_to_call_softmax_is_seen(form: str) -> None:
    x, seen = torch.randn(2, 3, requires_grad=True), []
    with observe_softmax(seen.append):
        y = {
            "method": lambda: x.softmax(-1),
            "torch": lambda: torch.softmax(x, -1),
            "functional": lambda: nn.functional.softmax(x, dim=-1, dtype=torch.float64),
            "keyword": lambda: nn.functional.softmax(input=x, dim=-1),
        }[form]()
        x.exp()
    assert y.requires_grad
    assert len(seen) == 1
    assert torch.equal(seen[0], x)
    assert not seen[0].requires_grad


@pytest.mark.parametrize("last_first", [False, True])
def test_row_rounding_is_what_it_says(last_first: bool) -> None:
    x = 3 * torch.randn(2, 40, 60, generator=torch.Generator().manual_seed(0))
    x[..., 0] += 6
    mask = torch.arange(60) <= torch.arange(20, 60)[:, None]
    got = row_rounding(x, FP16, mask=mask, last_first=last_first)
    assert not got.above.any()
    for query in (0, 17, 39):
        row = rounded(x[1, query, : query + 21].double(), FP16)
        row = row.flip(0) if last_first else row
        true, weights = theory.softmax(row), softmax(row, FP16).numpy()
        assert got.keys[1, query] == query + 21
        assert got.weight_error[1, query] == pytest.approx(np.abs(weights - true).sum(), rel=1e-9)
        e = rounded(torch.exp(rounded(row - row.max(), FP16)), FP16)
        assert got.sum_error[1, query] == pytest.approx(float(summed(e, FP16) / e.sum()) - 1, abs=1e-13)
        p = (e / e.sum()).numpy()
        for name, function in (
            ("effective", theory.effective_terms),
            ("absorption", theory.absorption_bound),
            ("absorbed", theory.absorbed_weight),
        ):
            assert getattr(got, name)[1, query] == pytest.approx(float(function(p, FP16.u)), rel=1e-9, abs=1e-15)
    assert np.all(np.abs(got.sum_error) <= got.sum_bound * (1 + 1e-9) + 1e-14)
    assert np.all(got.weight_error <= got.weight_bound + 1e-14)
    assert got[0].keys.shape == (40,)


def test_above_is_raised_where_a_bound_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roundoff that is too small by half must be noticed."""
    x = 2 * torch.randn(50, 200, generator=torch.Generator().manual_seed(1))
    assert not row_rounding(x, BF16).above.any()
    for name in ("enclosure", "sum_enclosure"):
        real = getattr(theory, name)
        monkeypatch.setattr(theory, name, lambda *a, real=real, name=name, **k: real(*_halved(a, name), **k))
        assert row_rounding(x, BF16).above.any(), name
        monkeypatch.undo()


def _halved(arguments: tuple[object, ...], name: str) -> tuple[object, ...]:
    at = 1 if name == "enclosure" else 2
    return tuple(v / 64 if i == at else v for i, v in enumerate(arguments))  # type: ignore[operator]


def test_a_row_without_a_key_is_refused() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(ResidlabError, match="each row must have a key that mask shows"):
        row_rounding(torch.zeros(2, 2), BF16, mask=mask)
