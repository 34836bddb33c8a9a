"""The whole model against a second one in numpy, and against what must not matter to it."""

import math

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from residlab.errors import ResidlabError
from residlab.models.attention import KVCache
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss
from residlab.theory import block_variance

SMALL = {"depth": 3, "width": 32, "heads": 4, "kv_heads": 2, "vocabulary": 50, "context": 20, "initialization": "gpt2"}
VARIANTS = [
    *[(kind, {}) for kind in NORMS],
    ("bhyt", {"averaged": "position"}),
    ("bhyt", {"averaged": "rows"}),
    ("bhyt", {"centred": True, "learn_lam": False}),
    ("bhyt", {"refresh": "frozen", "tokens": 8}),
    ("peri-ln", {"embedding_norm": True}),
    ("dyt", {"embedding_scale": True, "bias": True}),
]


def make(kind="bhyt", options=None, seed=1, **values):
    config = ModelConfig(**{**SMALL, "init_std": 0.3, **values}, norm=norm_options(kind, **(options or {})))
    return Transformer(config, seed=seed).double()


def some_tokens(batch=2, length=12, seed=0):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(seed))


# --- An independent model


def second_model(model, tokens):
    """One sequence through a BHyT model, in numpy, sublayer by sublayer, with the theory's approximation."""
    w = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    config, norm = model.config, model.config.norm
    T, d, heads, size = len(tokens), config.width, config.heads, config.head_dim
    group = heads // config.kv_heads
    x = w["embedding.weight"][tokens]
    angles = np.arange(T)[:, None] * config.rope_base ** (-np.arange(0, size, 2) / size)

    def turned(part):
        z = (part[:, : size // 2] + 1j * part[:, size // 2 :]) * np.exp(1j * angles)
        return np.concatenate((z.real, z.imag), axis=1)

    for layer in range(config.depth):
        p = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"blocks.{layer}.")}
        gamma, lam = p["attention_norm.gamma"], p["attention_norm.lam"]
        spread = np.mean(x**2, axis=1, keepdims=True)
        y = gamma * np.tanh(lam * x / (norm.kappa * np.sqrt(spread + norm.eps)))
        out, rows = [], np.zeros((heads, T, T))
        for a in range(heads):
            part = slice(a * size, (a + 1) * size)
            shared = slice(a // group * size, (a // group + 1) * size)
            q, k = turned(y @ p["attention.W_Q.weight"][part].T), turned(y @ p["attention.W_K.weight"][shared].T)
            scores = np.where(np.tri(T, dtype=bool), q @ k.T * config.attention_scale(layer + 1), -np.inf)
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            rows[a] = e / e.sum(axis=1, keepdims=True)
            out.append(rows[a] @ y @ p["attention.W_V.weight"][shared].T)
        x = x + np.concatenate(out, axis=1) @ p["attention.W_O.weight"].T
        gram = block_variance.head_gram(
            p["attention.W_V.weight"].T, p["attention.W_O.weight"].T, heads, kv_heads=config.kv_heads, gamma=gamma
        )
        moment = (lam / norm.kappa) ** 2
        if norm.averaged == "rows":
            added = block_variance.attention_variance_from_rows(gram, rows.transpose(1, 0, 2), moment, d)
        else:
            tokens_averaged = (
                np.arange(1, T + 1) if norm.averaged == "position" else np.full(T, norm.tokens or config.context)
            )
            added = block_variance.attention_variance(gram.sum(), moment, tokens_averaged, d)
        z = p["feedforward_norm.lam"] * x / (norm.kappa * np.sqrt(spread + added[:, None] + norm.eps))
        y = p["feedforward_norm.gamma"] * np.tanh(z)
        gate = y @ p["feedforward.W_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ p["feedforward.W_up.weight"].T)) @ p["feedforward.W_down.weight"].T
    x = w["final_norm.gamma"] * x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + norm.eps)
    return x @ w["embedding.weight"].T


@pytest.mark.parametrize("options", [{}, {"tokens": 8}, {"averaged": "position"}, {"averaged": "rows"}])
def test_bhyt_is_what_the_theory_says(options):
    model = make("bhyt", options)
    for name, parameter in model.named_parameters():
        if name.endswith(("gamma", "lam")):
            torch.nn.init.uniform_(parameter, 0.5, 3.0)
    tokens = some_tokens(1)[0]
    expected = second_model(model, tokens.numpy())
    np.testing.assert_allclose(model(tokens[None])[0].detach().numpy(), expected, rtol=1e-9, atol=1e-10)


# --- What must not matter


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
@pytest.mark.parametrize(("residual", "position"), [(True, "rope"), (False, "learned")])
def test_cache_explicit_path_and_padding_change_nothing(kind, options, residual, position):
    model = make(kind, options, residual=residual, position=position)
    tokens = some_tokens()
    with torch.no_grad():
        whole = model(tokens)
        cache = KVCache(model.config, 2, 12, dtype=torch.float64)
        pieces = [tokens[:, :5], *tokens[:, 5:9].split(1, dim=1), tokens[:, 9:]]
        cached = torch.cat([model(piece, cache=cache) for piece in pieces], dim=1)
        explicit, rows = model.forward_with_rows(tokens)
        mask = torch.ones(2, 12, dtype=torch.bool)
        mask[1, :4] = False
        padded = model(tokens, mask=mask)
    assert whole.abs().max() > 1e-3
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(cached, whole, **close)
    torch.testing.assert_close(explicit, whole, **close)
    torch.testing.assert_close(padded[0], whole[0], **close)
    torch.testing.assert_close(padded[1, 4:], model(tokens[1:, 4:])[0], **close)
    assert padded.isfinite().all()
    assert len(rows) == 3


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_no_token_sees_a_later_one(kind, options):
    model, tokens = make(kind, options), some_tokens()
    other = tokens.clone()
    other[:, 8:] = (other[:, 8:] + 1) % 50
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :8], after[:, :8], rtol=1e-10, atol=1e-12)
    assert (before[:, 8] - after[:, 8]).abs().max() > 1e-6


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_every_parameter_learns(kind, options):
    model = make(kind, options)
    next_token_loss(model(some_tokens()), some_tokens()).backward()
    assert [
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ] == []


@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_gradient_checkpointing_gives_the_same_gradients(kind, options):
    model, tokens = make(kind, options), some_tokens()
    plain = torch.autograd.grad(next_token_loss(model(tokens), tokens), list(model.parameters()))
    for block in model.layers:
        original = block.forward
        block.forward = lambda *inputs, original=original: checkpoint(original, *inputs, use_reentrant=False)
    again = torch.autograd.grad(next_token_loss(model(tokens), tokens), list(model.parameters()))
    torch.testing.assert_close(again, plain, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_stays_near_float64(kind, dtype):
    reference = make(kind, init_std=0.1)
    tokens = some_tokens()
    exact = reference(tokens)
    logits = reference.to(dtype)(tokens)
    assert logits.dtype == dtype
    error = (logits.double() - exact).norm() / exact.norm()
    assert error < 30 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", NORMS)
def test_autocast_trains(kind):
    model = make(kind).float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = next_token_loss(model(some_tokens()), some_tokens())
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_no_tokens_and_one_token():
    model = make()
    assert model(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 50)
    assert model(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 50)
    assert model(torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 1, 50)


def test_a_compiled_model_is_the_same():
    model, tokens = make("bhyt", depth=1), some_tokens()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(next_token_loss(model(tokens), tokens), list(model.parameters()))
    got = torch.autograd.grad(next_token_loss(compiled(tokens), tokens), list(model.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-13)


def test_a_seed_decides_everything():
    first, again, other = (make(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


# --- The constant of the approximation follows the weights


def doubled(model):
    with torch.no_grad():
        for block in model.layers:
            block.attention.W_O.weight.mul_(2)


def constants(model):
    return [float(value) for value in model.variance_constants()]


def test_by_default_the_constant_is_measured_at_every_forward():
    model, tokens = make("bhyt", {"tokens": 1}), some_tokens()
    before = constants(model)
    doubled(model)
    assert constants(model) == pytest.approx([4 * value for value in before])
    stale = model(tokens, constants=[torch.tensor(value).double() for value in before])
    assert not torch.allclose(model(tokens), stale)
    assert not [name for name in model.state_dict() if "constant" in name]


def test_the_constant_is_measured_after_the_weights_are_drawn():
    model = make("bhyt", {"refresh": "frozen"})
    direct = [float(block.measured_constant()) for block in model.layers]
    assert constants(model) == pytest.approx(direct)
    assert direct[0] > 0


def test_construction_keeps_the_constant_of_weights_that_were_replaced():
    one, two = make("bhyt", {"refresh": "construction"}), make("bhyt", {"refresh": "construction"})
    layer = one.layers[0]
    kept = float(layer.current_constant())
    # torch makes linear layers uniform in +-1/sqrt(d), of variance 1/(3d): the expected energy is d d d / (3d)^2.
    assert kept == pytest.approx(one.config.width / 9, rel=0.2)
    assert float(layer.measured_constant()) != pytest.approx(kept, rel=0.5)
    one.refresh()
    one.refresh(7)
    assert float(layer.current_constant()) == kept == float(two.layers[0].current_constant())


@pytest.mark.parametrize(("refresh", "changes"), [("frozen", []), (3, [3, 6]), (1, [1, 2, 3, 4, 5, 6])])
def test_a_kept_constant_changes_when_its_policy_says(refresh, changes):
    model = make("bhyt", {"refresh": refresh})
    seen = []
    for step in range(1, 7):
        before = constants(model)
        doubled(model)
        assert constants(model) == before
        model.refresh(step)
        if constants(model) != before:
            seen.append(step)
    assert seen == changes
    doubled(model)
    model.refresh()
    assert constants(model) == pytest.approx([float(block.measured_constant()) for block in model.layers])


def test_a_kept_constant_survives_float16():
    model = make("bhyt", {"refresh": "frozen"}, init_std=2.0)
    expected = constants(model)
    assert expected[0] > 7e4  # more than float16 holds
    assert constants(model.half()) == pytest.approx(expected, rel=1e-3)


def test_the_constant_does_not_depend_on_the_length_of_the_first_call():
    first, second, tokens = make(), make(), some_tokens()
    first(tokens[:, :3])
    torch.testing.assert_close(first(tokens), second(tokens), rtol=0, atol=0)


def test_a_changed_lam_changes_the_next_forward():
    model, tokens = make("bhyt", {"learn_lam": False}), some_tokens()
    before = model(tokens)
    for block in model.layers:
        block.attention_norm.lam.mul_(2)
    assert not torch.allclose(model(tokens), before)


# --- The door


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(3, dtype=torch.int64), "tokens must be integers of shape"),
        (torch.zeros(1, 3), "tokens must be integers of shape .batch, tokens.; got torch.float32"),
        (torch.tensor([[0, 50]]), r"token ids must be in \[0, 50\); got 50"),
        (torch.tensor([[-1, 5]]), r"token ids must be in \[0, 50\); got -1"),
        (torch.zeros(1, 21, dtype=torch.int64), "the model's context is 20 tokens; got 21"),
    ],
)
def test_wrong_tokens_are_refused(tokens, said):
    with pytest.raises(ResidlabError, match=said):
        make()(tokens)


def test_a_wrong_mask_or_cache_is_refused():
    model, tokens = make(), some_tokens()
    with pytest.raises(ResidlabError, match=r"mask must be booleans of shape \(2, 12\); got torch.int64"):
        model(tokens, mask=torch.ones(2, 12, dtype=torch.int64))
    with pytest.raises(ResidlabError, match=r"the cache holds 2 sequences of at most 11 tokens; got 2 of 12"):
        model(tokens, cache=KVCache(model.config, 2, 11, dtype=torch.float64))


def test_the_loss_is_the_cross_entropy_of_the_next_token():
    logits, tokens = torch.randn(2, 4, 7).double(), torch.randint(0, 7, (2, 4))
    by_hand = [-math.log(torch.softmax(logits[b, t], 0)[tokens[b, t + 1]]) for b in range(2) for t in range(3)]
    assert float(next_token_loss(logits, tokens)) == pytest.approx(np.mean(by_hand), rel=1e-12)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_kernels_are_chosen_by_name(backend):
    model = make("bhyt")
    model.use_kernels(backend)
    assert {m.backend for m in model.modules() if hasattr(m, "backend")} == {backend}
    model(some_tokens())


def test_a_seed_leaves_the_global_generator_alone():
    for position, tied in (("rope", True), ("learned", False)):
        torch.manual_seed(0)
        expected = torch.rand(1)
        torch.manual_seed(0)
        make(position=position, tied_embeddings=tied)
        assert torch.equal(torch.rand(1), expected)


def test_the_loss_takes_tokens_of_any_integer_dtype():
    model = make()
    ids = torch.arange(12).reshape(2, 6)
    losses = {dtype: next_token_loss(model(ids.to(dtype)), ids.to(dtype)) for dtype in (torch.int32, torch.int64)}
    assert torch.equal(*losses.values())
