"""The model in rounded arithmetic: against float64, against a second model of scalars bit for bit, by role."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from tests.models.test_transformer import VARIANTS, make, some_tokens
from tests.precision.oracle import round_fraction, sum_fractions

from residlab.errors import ResidlabError
from residlab.models.arithmetic import Arithmetic
from residlab.models.attention import KVCache, rotary_table
from residlab.models.config import ModelConfig
from residlab.models.rounded import Rounded
from residlab.models.transformer import Transformer
from residlab.precision import compiled
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, blocked
from residlab.precision.formats import BF16, E4M3FN, FP16, FP32, Format
from residlab.precision.roles import Roles


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"residual": False, "position": "learned", "feedforward": "gelu", "bias": True, "tied_embeddings": False},
        {"feedforward": "gelu-tanh", "logit_scale": 2.0, "temperature_base": 1.03},
    ],
    ids=["llama", "gpt2 without residual", "temperature"],
)
def test_in_float64_nothing_changes(kind, options, values):
    model, tokens = make(kind, options, **values), some_tokens()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :4] = False
    with torch.no_grad():
        for given in (None, mask):
            expected, result = model(tokens, mask=given), model(tokens, mask=given, arithmetic=Rounded("fp64"))
            assert result.dtype == torch.float64
            torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)
        rows = model.forward_with_rows(tokens, arithmetic=Rounded("fp64"))[1]
        torch.testing.assert_close(rows, model.forward_with_rows(tokens)[1], rtol=1e-9, atol=1e-14)


def test_weights_keep_their_dtype_and_are_read_as_they_are():
    model, tokens = make("rmsnorm").float(), some_tokens()
    wide = make("rmsnorm").float().double()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, arithmetic=Rounded("fp64")), wide(tokens), rtol=1e-9, atol=1e-12)
    assert next(model.parameters()).dtype == torch.float32


# --- A second model, of scalars


def second_model(model, tokens, roles):
    """One sequence through an RMSNorm, SwiGLU, rotary model: Python numbers, every operation rounded as a fraction."""
    w = {name: tensor.double() for name, tensor in model.state_dict().items()}
    config = model.config
    q, a, f, r = roles.operands, roles.accumulator, roles.functions, roles.stream

    def fl(x, fmt):
        return round_fraction(Fraction(x), fmt)

    def dot(u, v):
        return sum_fractions(
            [Fraction(fl(x, q)) * Fraction(fl(y, q)) for x, y in zip(u, v, strict=True)], a, roles.order
        )

    def times(x, y):
        return fl(Fraction(x) * Fraction(y), f)

    def plus(x, y):
        return fl(Fraction(x) + Fraction(y), f)

    def over(x, y):
        return fl(Fraction(x) / Fraction(y), f)

    def total(terms):
        return sum_fractions([Fraction(term) for term in terms], f, roles.order)

    def linear(x, weight):
        return [dot(x, row) for row in weight.tolist()]

    def norm(x, gamma):
        x = [fl(v, f) for v in x]
        square = over(total([times(v, v) for v in x]), len(x))
        inverse = over(1.0, fl(math.sqrt(plus(square, fl(config.norm.eps, f))), f))
        return [times(times(v, inverse), fl(g, f)) for v, g in zip(x, gamma.tolist(), strict=True)]

    table = rotary_table(torch.arange(len(tokens)), config.head_dim, config.rope_base, torch.float32)

    def turned(x, position):
        cos, sin = ([fl(v, f) for v in part[position].tolist()] for part in table)
        half = len(x) // 2
        x = [fl(v, f) for v in x]
        first, second = x[:half], x[half:]
        return [plus(times(u, c), -times(v, s)) for u, v, c, s in zip(first, second, cos, sin, strict=True)] + [
            plus(times(v, c), times(u, s)) for u, v, c, s in zip(first, second, cos, sin, strict=True)
        ]

    def silu(x):
        return over(x, plus(1.0, fl(math.exp(-x), f)))

    stream = [[fl(v, r) for v in w["embedding.weight"][token].tolist()] for token in tokens]
    size, group = config.head_dim, config.heads // config.kv_heads
    for layer in range(config.depth):
        p = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"blocks.{layer}.")}
        y = [norm(x, p["attention_norm.gamma"]) for x in stream]
        queries, keys, values = ([linear(x, p[f"attention.W_{name}.weight"]) for x in y] for name in "QKV")
        for i, x in enumerate(stream):
            heads = []
            for head in range(config.heads):
                part = slice(head * size, (head + 1) * size)
                shared = slice(head // group * size, (head // group + 1) * size)
                query = turned(queries[i][part], i)
                scale = fl(config.attention_scale(layer + 1), f)
                logits = [times(fl(dot(query, turned(keys[j][shared], j)), f), scale) for j in range(i + 1)]
                e = [fl(math.exp(plus(logit, -max(logits))), f) for logit in logits]
                bottom = total(e)
                row = [over(each, bottom) for each in e]
                heads += [dot(row, [values[j][shared][k] for j in range(i + 1)]) for k in range(size)]
            branch = linear(heads, p["attention.W_O.weight"])
            stream[i] = [fl(Fraction(u) + Fraction(v), r) for u, v in zip(x, branch, strict=True)]
        for i, x in enumerate(stream):
            y = norm(x, p["feedforward_norm.gamma"])
            gate, up = (linear(y, p[f"feedforward.W_{name}.weight"]) for name in ("gate", "up"))
            inner = [times(silu(fl(u, f)), fl(v, f)) for u, v in zip(gate, up, strict=True)]
            branch = linear(inner, p["feedforward.W_down.weight"])
            stream[i] = [fl(Fraction(u) + Fraction(v), r) for u, v in zip(x, branch, strict=True)]
    return [linear(norm(x, w["final_norm.gamma"]), w["embedding.weight"]) for x in stream]


@pytest.mark.parametrize(
    "roles",
    [
        Roles.all(BF16),
        Roles.all(FP16, PAIRWISE),
        Roles(BF16, FP32, FP32, BF16, blocked(4)),
        Roles(E4M3FN, FP16, BF16, FP32),
        Roles(FP32, BF16, FP16, E4M3FN),
        Roles(FP32, FP32, BF16, FP16, blocked(3)),
        Roles(Format.of(6), Format.of(9), Format.of(12), Format.of(7)),
    ],
    ids=str,
)
def test_every_operation_is_rounded_by_its_role(roles):
    config = ModelConfig(
        depth=2, width=8, heads=4, kv_heads=2, vocabulary=9, context=8, init_std=0.5, feedforward_width=10
    )
    model = Transformer(config, seed=3)
    torch.nn.init.uniform_(model.blocks[0].attention_norm.gamma, 0.5, 2.0)
    tokens = [4, 1, 7, 7]
    with torch.no_grad():
        result = model(torch.tensor([tokens]), arithmetic=Rounded(roles))[0]
    assert result.tolist() == second_model(model, tokens, roles)


def test_the_order_of_sums_matters_and_a_mask_of_all_does_not():
    model, tokens = make("rmsnorm", width=64), some_tokens()
    with torch.no_grad():
        recursive, pairwise = (
            model(tokens, arithmetic=Rounded(Roles.all(BF16, order))) for order in (RECURSIVE, PAIRWISE)
        )
        masked = model(tokens, mask=torch.ones(2, 12, dtype=torch.bool), arithmetic=Rounded("bf16"))
    assert not recursive.equal(pairwise)
    assert masked.equal(recursive)


@pytest.mark.parametrize("role", ["operands", "accumulator", "functions", "stream"])
def test_each_role_alone_costs_in_proportion_to_its_unit_roundoff(role):
    """Four bits more in one role, the others far finer: an error 16 times smaller, up to chance."""
    model, tokens = make("rmsnorm", width=64, depth=4, init_std=0.15), some_tokens(4, 16)
    fine = {name: Format.of(24) for name in ("operands", "accumulator", "functions", "stream")}
    with torch.no_grad():
        exact = model(tokens, arithmetic=Rounded("fp64"))
        coarse, finer = (
            (model(tokens, arithmetic=Rounded(Roles(**{**fine, role: Format.of(t)}))) - exact).norm() for t in (9, 13)
        )
    assert 8 < coarse / finer < 32


def test_stochastic_rounding_is_seeded_and_on_average_the_exact_result():
    model, tokens = make("rmsnorm", depth=1), some_tokens(1, 6)
    with torch.no_grad():
        exact = model(tokens, arithmetic=Rounded("fp64"))
        first, again, other = (
            model(tokens, arithmetic=Rounded("bf16", mode="stochastic", seed=seed)) for seed in (1, 1, 2)
        )
        many = Rounded(Roles.named("q=fp32 a=bf16 w=fp32 r=bf16"), mode="stochastic", seed=0)
        drawn = torch.stack([model(tokens, arithmetic=many) for _ in range(60)])
    assert first.equal(again)
    assert not first.equal(other)
    away = (drawn.mean(0) - exact).abs() / (drawn.std(0) / 60**0.5)
    assert away.median() < 1.5  # of |t|, whose median is 0.68; a bias of one deviation would make it 7
    assert (drawn[0] - exact).norm() > 3 * (drawn.mean(0) - exact).norm()


# --- The door


def test_a_cache_is_refused_and_so_are_other_norms():
    model, tokens = make("rmsnorm"), some_tokens()
    with pytest.raises(ResidlabError, match="takes a cache"):
        model(tokens, cache=KVCache(model.config, 2, 12), arithmetic=Rounded("bf16"))
    with pytest.raises(ResidlabError, match="got GroupNorm"):
        Rounded("bf16").norm(torch.nn.GroupNorm(1, 4), torch.ones(1, 4))
    with pytest.raises(ResidlabError, match="roles are named"):
        Rounded("bf61")


def test_no_gradient_and_no_tokens():
    model = make("bhyt").float()
    result = model(some_tokens(), arithmetic=Rounded("bf16"))
    assert not result.requires_grad
    assert model(torch.zeros(1, 0, dtype=torch.int64), arithmetic=Rounded("bf16")).shape == (1, 0, 50)


def test_another_arithmetic_may_be_anyone_s():
    class Halved(Arithmetic):
        def add(self, x, branch):
            return x + branch / 2

    model, tokens = make("rmsnorm"), some_tokens()
    expected = make("rmsnorm")
    for block in expected.layers:
        block.attention.W_O.weight.data /= 2
        block.feedforward.W_down.weight.data /= 2
    torch.testing.assert_close(model(tokens, arithmetic=Halved()), expected(tokens), rtol=1e-9, atol=1e-12)


def test_the_reference_backend_computes_everything(monkeypatch):
    model, ids = make(), some_tokens()
    with torch.no_grad():
        expected = model(ids, arithmetic=Rounded("bf16"))
        monkeypatch.setattr(compiled, "library", lambda: pytest.fail("compiled code was asked for"))
        assert torch.equal(model(ids, arithmetic=Rounded("bf16", backend="reference")), expected)


@pytest.mark.parametrize("kind", ["lns", "rmsnorm"])
def test_float64_is_as_exact_as_a_model_in_float64(kind):
    model, ids = make(kind), some_tokens()
    with torch.no_grad():
        result = model(ids, arithmetic=Rounded("fp64"))
        expected = copy.deepcopy(model).double()(ids)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-13)
