"""A change of the stream and what becomes of it: against differences of the model, and where nothing is passed on."""

import json

import numpy as np
import pytest
import torch

from residlab.errors import ResidlabError
from residlab.experiments.passed_error import PassedError
from residlab.experiments.rounded_inference import RoundedInference, subject

TOY = {"depth": 4, "width": 16, "heads": 2, "vocabulary": 32, "context": 12, "init_std": 0.3}


def run(**values):
    return PassedError(**{"source": "random", "model": TOY, "tokens": 10, **values})


def streams(model, ids, change=None):
    """The stream behind blocks 2, 3 and 4 of torch's own float64 model; ``change`` is added behind block 2."""
    seen = []

    def look(_, arguments, output):
        seen.append(output[0] if change is None or seen else output[0] + change)
        return (seen[-1], *output[1:])

    hooks = [block.register_forward_hook(look) for block in list(model.layers)[1:]]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen)


def test_a_change_behind_a_block_is_what_the_other_blocks_make_of_it():
    """By central differences of the model without our arithmetic."""
    record = run(after=2, share=1e-6, seed=3).perform("test")
    model, ids = subject(RoundedInference("fp64", "random", TOY, 10, seed=3))
    model = model.double()
    exact = streams(model, ids)
    direction = torch.randn(exact[0].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    step = 1e-6 * exact[0].norm(dim=-1, keepdim=True) * direction / direction.norm(dim=-1, keepdim=True)
    ends = [streams(model, ids, sign * step) for sign in (1, -1)]
    passed = ((ends[0] - ends[1]).norm(dim=-1) / 2e-6 / exact.norm(dim=-1))[:, 0, 1:].mean(-1)
    np.testing.assert_allclose(record.metrics["passed"], passed, rtol=1e-4)
    np.testing.assert_allclose(record.metrics["size"], exact.norm(dim=-1)[:, 0, 1:].mean(-1), rtol=1e-7)
    assert record.metrics["passed"][0] == 1
    json.dumps(record.metrics, allow_nan=False)


def test_branches_that_write_nothing_keep_it_and_the_first_token_does_not_count():
    silent = {**TOY, "init_std": 1e-9}
    assert run(model=silent, after=3).perform("test").metrics["passed"] == pytest.approx([1, 1], rel=1e-6)


def test_it_is_a_share_of_each_token_and_small_ones_are_alike():
    found = [run(share=share).perform("test").metrics["passed"] for share in (1e-4, 1e-6)]
    np.testing.assert_allclose(found[0], found[1], rtol=0.01)
    assert run(seed=1).perform("test").metrics["passed"] != found[0]
    assert run().hash == run().hash != run(after=2).hash


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"after": 0}, "after must be"),
        ({"share": 0.0}, "share must be"),
        ({"seed": -1}, "seed must be"),
        ({"model": None}, "needs the options"),
        ({"tokens": 13}, "at most the model's context, 12"),
    ],
)
def test_what_is_refused(values, said):
    with pytest.raises(ResidlabError, match=said):
        run(**values)


def test_a_model_without_a_block_behind_it():
    with pytest.raises(ResidlabError, match="after must be < 4, the number of blocks; got 4"):
        run(after=4).perform("test")


def test_what_is_said():
    one = run(after=2)
    assert "0.0001 behind block 2" in one.about()
    assert one.score({"passed": [1.0, 0.25]}) == "0.250 of it behind the last block"
