"""The optimizers against textbook updates in float64, and what libraries do behind one's back."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss
from residlab.training.optimizers import SETTINGS, OptimizerConfig, clip, grad_norm, make_optimizer
from residlab.training.state import flatten_state, unflatten_state

KINDS = tuple(SETTINGS)


def matrix_model(rows, columns, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(columns, rows, bias=False)).to(dtype)


def gradients(rows, columns, count, seed=0):
    """Gradients with row and column covariances of condition 100, as the second-order methods like them."""
    generator = np.random.default_rng(seed)
    A = np.linalg.qr(generator.normal(size=(rows, rows)))[0] * np.logspace(0, -1, rows)
    B = np.linalg.qr(generator.normal(size=(columns, columns)))[0] * np.logspace(0, -1, columns)
    return [A @ generator.normal(size=(rows, columns)) @ B.T for _ in range(count)]


def run(config, all_gradients, dtype=torch.float64):
    """Return the matrix at the start and after each step on given gradients."""
    model = matrix_model(*all_gradients[0].shape, dtype)
    W, optimizer = model[0].weight, make_optimizer(model, config)
    path = [W.detach().double().numpy().copy()]
    for G in all_gradients:
        W.grad = torch.as_tensor(G, dtype=dtype)
        optimizer.step()
        path.append(W.detach().double().numpy().copy())
    return path


def power(S, exponent):
    values, vectors = np.linalg.eigh(S)
    return (vectors * values**exponent) @ vectors.T


def cosine(A, B):
    return float((A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B))


def library_bases(G):
    optimizer = make_optimizer(matrix_model(*G.shape), OptimizerConfig(kind="soap"))
    optimizer.assignments[0].parameter.grad = torch.as_tensor(G)
    optimizer.step()
    return [Q.numpy() for Q in optimizer.parts[0].state_dict()["state"]["0.weight"]["Q"]]


# --- Textbook updates


def adamw(W, all_gradients, lr, decay, beta1=0.9, beta2=0.95, eps=1e-8):
    m = v = 0
    for t, G in enumerate(all_gradients, 1):
        m, v = beta1 * m + (1 - beta1) * G, beta2 * v + (1 - beta2) * G**2
        step = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        W = (1 - lr * decay) * W - lr * step
        yield W


def signgd(W, all_gradients, lr, decay, momentum=0.9):
    m = 0
    for G in all_gradients:
        m = momentum * m + (1 - momentum) * G
        W = (1 - lr * decay) * W - lr * np.sign(m)
        yield W


def shampoo(W, all_gradients, lr, decay, eps=1e-6):
    L, R = eps * np.eye(W.shape[0]), eps * np.eye(W.shape[1])
    for G in all_gradients:
        L, R = L + G @ G.T, R + G.T @ G
        W = (1 - lr * decay) * W - lr * power(L, -0.25) @ G @ power(R, -0.25)
        yield W


def soap(W, all_gradients, lr, decay, beta1=0.95, beta2=0.95, eps=1e-8, frequency=1):
    """Algorithm 3 of arXiv 2409.11321: Adam in the eigenbasis, which one power iteration and a QR keep up to date.

    The first gradient leaves a null space, in which any basis will do: it is the library's.
    """
    factors, bases, v, m = [0, 0], library_bases(all_gradients[0]), np.zeros_like(W), np.zeros_like(W)
    for t, G in enumerate(all_gradients):
        if t:
            rotated = bases[0].T @ G @ bases[1]
            m, v = beta1 * m + (1 - beta1) * G, beta2 * v + (1 - beta2) * rotated**2
            N = bases[0] @ ((bases[0].T @ m @ bases[1]) / (np.sqrt(v) + eps)) @ bases[1].T
            W = (W - lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) * N) * (1 - lr * decay)
        for side, outer in enumerate((G @ G.T, G.T @ G)):
            factors[side] = beta2 * factors[side] + (1 - beta2) * outer
            if not t:
                Q = bases[side]
                values = np.linalg.eigvalsh(factors[side])[::-1]
                np.testing.assert_allclose((Q * values) @ Q.T, factors[side], rtol=0, atol=1e-14)
                np.testing.assert_allclose(Q.T @ Q, np.eye(len(Q)), rtol=0, atol=1e-14)
            elif t % frequency == 0:
                Q = bases[side]
                order = np.argsort(-np.diag(Q.T @ factors[side] @ Q))
                v = v[order] if side == 0 else v[:, order]
                bases[side] = np.linalg.qr(factors[side] @ Q[:, order])[0]
        yield W


def muon(W, all_gradients, lr, decay, momentum=0.95):
    m = 0
    for G in all_gradients:
        m = momentum * m + (1 - momentum) * G
        U, x, V = np.linalg.svd((1 - momentum) * G + momentum * m, full_matrices=False)
        x = x / np.linalg.norm(x)
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
        W = (1 - lr * decay) * W - lr * math.sqrt(max(1, W.shape[0] / W.shape[1])) * (U * x) @ V
        yield W


def kl_shampoo(W, all_gradients, lr, decay, momentum=0.9, beta=0.95, start=0.1):
    """The update of arXiv 2509.03378, with exact roots and inverses.

    The Gaussian N(0, S_a (x) S_b) nearest in KL divergence to gradients of second moment E[g g^T] satisfies
    S_a = E[G S_b^-1 G^T] / d_b and S_b = E[G^T S_a^-1 G] / d_a: set the derivatives of
    d_b log|S_a| + d_a log|S_b| + E tr(S_a^-1 G S_b^-1 G^T) to zero. Both sides are followed by moving averages, from
    start I, with the average's correction for step t; the step is S_a^-1/2 M S_b^-1/2 with the factors of the step
    before. (heavyball also rescales the factors against each other, which changes no step.)
    """
    S = [start * np.eye(side) for side in W.shape]
    m = np.zeros_like(W)
    for t, G in enumerate(all_gradients, 1):
        if t > 1:
            m = momentum * m + (1 - momentum) * G
            W = (1 - lr * decay) * W - lr * power(S[0], -0.5) @ m @ power(S[1], -0.5)
            weight = (1 - beta) / (1 - beta**t)
            new = G @ power(S[1], -1) @ G.T / W.shape[1], G.T @ power(S[0], -1) @ G / W.shape[0]
            S = [(1 - weight) * old + weight * outer for old, outer in zip(S, new, strict=True)]
        yield W


TEXTBOOK = {"adamw": adamw, "signgd": signgd, "muon": muon, "shampoo": shampoo, "soap": soap}


@pytest.mark.parametrize("shape", [(7, 5), (5, 7)])
@pytest.mark.parametrize("kind", TEXTBOOK)
def test_the_update_is_the_textbook_s(kind, shape):
    more = {"frequency": 1} if kind == "soap" else {}
    all_gradients = gradients(*shape, 12)
    path = run(OptimizerConfig(kind=kind, lr=0.01, weight_decay=0.1, **more), all_gradients)
    tolerance = 1e-5 if kind == "soap" else 1e-10  # SOAP's QR is in float32 whatever the parameter
    for W, wanted in zip(path[1:], TEXTBOOK[kind](path[0], all_gradients, lr=0.01, decay=0.1), strict=True):
        np.testing.assert_allclose(W, wanted, rtol=0, atol=tolerance)
    assert np.abs(path[-1] - path[0]).max() > 0.01


@pytest.mark.parametrize("kind", TEXTBOOK)
def test_float32_follows_float64(kind):
    all_gradients = gradients(9, 9, 8)  # square: SOAP's first basis is decided
    config = OptimizerConfig(kind=kind, lr=0.01)
    exact, single = run(config, all_gradients), run(config, all_gradients, torch.float32)
    np.testing.assert_allclose(single[-1] - single[0], exact[-1] - exact[0], rtol=0, atol=2e-4)


def test_soap_keeps_its_basis_between_updates():
    all_gradients = gradients(6, 4, 8)
    path = run(OptimizerConfig(kind="soap", lr=0.01, frequency=3), all_gradients)
    wanted = list(soap(path[0], all_gradients, lr=0.01, decay=0, frequency=3))
    np.testing.assert_allclose(path[-1], wanted[-1], rtol=0, atol=1e-5)
    assert np.abs(path[-1] - list(soap(path[0], all_gradients, lr=0.01, decay=0, frequency=1))[-1]).max() > 1e-4


def test_shampoo_takes_roots_after_powers_of_two_and_then_now_and_then():
    all_gradients = gradients(6, 4, 13)
    path = run(OptimizerConfig(kind="shampoo", lr=0.01, frequency=5), all_gradients)
    W, L, R = path[0], 1e-6 * np.eye(6), 1e-6 * np.eye(4)
    for number, G in enumerate(all_gradients, 1):
        L, R = L + G @ G.T, R + G.T @ G
        if number in (1, 2, 4, 5, 10):
            left, right = power(L, -0.25), power(R, -0.25)
        W = W - 0.01 * left @ G @ right
        np.testing.assert_allclose(path[number], W, rtol=0, atol=1e-10)


def test_signgd_without_momentum_is_the_sign():
    (G,) = gradients(4, 3, 1)
    G[0, 0] = 0
    start, end = run(OptimizerConfig(kind="signgd", lr=0.5, momentum=0.0), [G])
    np.testing.assert_array_equal(end, start - 0.5 * np.sign(G))


@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16), (64, 64)])
def test_muon_orthogonalises(shape):
    G = np.random.default_rng(0).normal(size=shape)
    start, end = run(OptimizerConfig(kind="muon", lr=1.0), [G])
    update = (start - end) / math.sqrt(max(1, shape[0] / shape[1]))
    U, _, V = np.linalg.svd(G, full_matrices=False)
    assert cosine(update, U @ V) > 0.97
    singular = np.linalg.svd(update, compute_uv=False)
    assert singular.max() < 1.21
    assert np.mean(singular > 0.67) > 0.95
    assert np.mean(singular) == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(24, 16), (16, 24)])
def test_muon_is_torch_s_up_to_bfloat16(shape, scale):
    config = OptimizerConfig(kind="muon", lr=0.1, weight_decay=0.5, momentum=0.9, scale=scale)
    all_gradients = gradients(*shape, 4)
    path = run(config, all_gradients, torch.float32)
    model = matrix_model(*shape, torch.float32)
    theirs = torch.optim.Muon(model.parameters(), lr=0.1, weight_decay=0.5, momentum=0.9, adjust_lr_fn=scale)
    for G in all_gradients:
        model[0].weight.grad = torch.as_tensor(G, dtype=torch.float32)
        theirs.step()
    difference = np.linalg.norm(model[0].weight.detach().double().numpy() - path[-1])
    assert difference < 0.02 * np.linalg.norm(path[-1] - path[0])


def test_muon_s_other_scale():
    all_gradients = gradients(8, 18, 1)
    steps = {
        scale: np.subtract(*run(OptimizerConfig(kind="muon", lr=1.0, scale=scale), all_gradients))
        for scale in ("original", "match_rms_adamw")
    }
    np.testing.assert_allclose(steps["match_rms_adamw"], 0.2 * math.sqrt(18) * steps["original"], rtol=1e-12)


@pytest.mark.parametrize("shape", [(8, 6), (5, 9)])
def test_kl_shampoo_follows_the_exact_update(shape):
    all_gradients = gradients(*shape, 60)
    path = run(OptimizerConfig(kind="kl-shampoo", lr=0.01, weight_decay=0.1, frequency=1), all_gradients)
    exact = [path[0], *kl_shampoo(path[0], all_gradients, lr=0.01, decay=0.1)]
    cosines, ratios = [], []
    for t in range(2, 61):
        ours, theirs = ((p[t] - (1 - 0.001) * p[t - 1]) for p in (path, exact))
        cosines.append(cosine(ours, theirs))
        ratios.append(np.linalg.norm(ours) / np.linalg.norm(theirs))
    assert cosines[0] > 1 - 1e-6  # the first factors are exact
    assert np.mean(cosines) > 0.99
    assert np.mean(ratios[20:]) == pytest.approx(1, rel=0.1)
    assert min(cosines) > 0.9
    np.testing.assert_array_equal(path[0], path[1])  # the first step starts the factors


# --- Gradients that are nothing, almost nothing, or not there


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_almost_nothing(kind, dtype):
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1), nn.Linear(1, 3), nn.Linear(3, 3), nn.Embedding(3, 4))
    model = model.to(dtype)
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for scale in (0.0, 1e-30):
        for _ in range(12):
            for name, p in model.named_parameters():
                p.grad = None if name.startswith("3") else torch.full_like(p, scale)
            optimizer.step()
            assert all(p.grad is None or (p.grad == scale).all() for p in model.parameters())
        for name, p in model.named_parameters():
            assert torch.isfinite(p).all()
            moved = float((p.detach() - before[name]).abs().max())
            if scale == 0 or name.startswith("3"):
                assert moved == 0, name
            # The sign knows no size: SignGD moves by its rate, however small the gradient.
            assert moved <= (0.01 if kind == "signgd" else 1e-4), name
    for _ in range(4):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.isfinite(p).all()
        moved = float((p.detach() - before[name]).abs().max())
        assert moved < 3, name
        assert moved > 0 or dtype == torch.bfloat16, name  # which loses small steps


def test_kl_shampoo_s_factors_never_vanish():
    # After 2,000 steps without a gradient 0.95**2000 leaves float32, where subnormal numbers are flushed to zero; and
    # the factors are balanced by the ratio of their sizes.
    model = matrix_model(2, 2, torch.float32)
    optimizer = make_optimizer(model, OptimizerConfig(kind="kl-shampoo"))
    for step in range(10):
        model[0].weight.grad = torch.zeros(2, 2)
        optimizer.step()
        state = optimizer.parts[0].optimizer.state[model[0].weight][0]
        factors = next(value for key, value in state.items() if "GG" in key)
        if step == 1:
            for factor in factors:
                factor.zero_()
    assert torch.isfinite(model[0].weight).all()
    assert all(torch.isfinite(factor).all() and factor.any() for factor in factors)


# In float32 Shampoo fails on 16, 37, 39 and 57, and SOAP makes steps of 20,000 times its rate on 268 and 287.
@pytest.mark.parametrize("seed", [16, 37, 39, 57, 268, 287])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_rank_one(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(2, 40, (2,), generator=generator).tolist()
    scale = 10 ** float(torch.rand(1, generator=generator) * 3)
    u, v = torch.randn(rows, 1, generator=generator), torch.randn(1, columns, generator=generator)
    model = matrix_model(rows, columns, torch.float32)
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind))
    for _ in range(6):
        model[0].weight.grad = scale * u @ v
        optimizer.step()
        assert torch.isfinite(model[0].weight).all()
    # KL-Shampoo's factors start at 0.1 whatever the gradient, so its first step is as long as the gradient.
    assert float(model[0].weight.detach().abs().max()) < (30 if kind == "kl-shampoo" else 2)


# --- What a step does not touch


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leaves_gradients_random_numbers_and_settings_alone(kind):
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind, weight_decay=0.1))

    def settings():
        backends = torch.backends
        values = [torch.get_float32_matmul_precision(), backends.cudnn.benchmark, backends.opt_einsum.strategy]
        if kind == "kl-shampoo":
            import heavyball

            values.append(heavyball.utils.compile_mode)
        return [*values, torch.get_num_threads(), len(warnings.filters)]

    before = settings()
    for factor in (1.0, 0.5, 0.25):  # heavyball warns of rates that change, and warnings are errors here
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        kept = [p.grad.clone() for p in model.parameters()]
        random = torch.get_rng_state()
        optimizer.set_lr(factor)
        optimizer.step()
        assert torch.equal(random, torch.get_rng_state())
        assert all(torch.equal(p.grad, k) for p, k in zip(model.parameters(), kept, strict=True))
    assert settings() == before
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_scales_the_step(kind):
    all_gradients = gradients(6, 4, 4)

    def last_step(factor):
        model = matrix_model(6, 4)
        optimizer = make_optimizer(model, OptimizerConfig(kind=kind, lr=0.01, weight_decay=0.1))
        for index, G in enumerate(all_gradients):
            optimizer.set_lr(factor if index == 3 else 1.0)
            before = model[0].weight.detach().clone()
            model[0].weight.grad = torch.as_tensor(G)
            optimizer.step()
        return model[0].weight.detach() - before

    whole, half, none = (last_step(factor) for factor in (1.0, 0.5, 0.0))
    torch.testing.assert_close(half, whole / 2, rtol=1e-3, atol=1e-9)  # SOAP's decay multiplies its step
    assert not none.any()
    assert whole.any()


# --- Resuming


def tiny(dtype=torch.float32):
    config = ModelConfig(
        depth=1,
        width=16,
        heads=2,
        vocabulary=20,
        context=12,
        norm=norm_options("dyt", embedding_scale=True, bias=True),
        bias=True,
        tied_embeddings=False,
        init_std=0.5,  # no gradient is so small that what an optimizer makes of it is lost
    )
    return Transformer(config, seed=0).to(dtype)


def train(model, optimizer, first, last):
    for step in range(first, last):
        tokens = torch.randint(0, 20, (2, 12), generator=torch.Generator().manual_seed(step))
        optimizer.set_lr(1 / (1 + step))
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        clip(model, 1.0)
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_bit_identical(kind, dtype):
    frequency = {"frequency": 2} if "frequency" in SETTINGS[kind] else {}
    config = OptimizerConfig(kind=kind, weight_decay=0.1, **frequency)
    straight = tiny(dtype)
    train(straight, make_optimizer(straight, config), 0, 6)

    first = tiny(dtype)
    optimizer = make_optimizer(first, config)
    train(first, optimizer, 0, 3)
    tensors, scalars = flatten_state({"model": first.state_dict(), "optimizer": optimizer.state_dict()})
    data, text = save(tensors), json.dumps(scalars)
    train(first, optimizer, 3, 5)  # what was saved does not move

    torch.manual_seed(1234)
    saved = unflatten_state(load(data), json.loads(text))
    second = tiny(dtype)
    second.load_state_dict(saved["model"])
    resumed = make_optimizer(second, OptimizerConfig.from_dict(json.loads(json.dumps(config.to_dict()))))
    resumed.load_state_dict(saved["optimizer"])
    kept = {name: tensor.clone() for name, tensor in flatten_state(saved["optimizer"])[0].items()}
    assert (resumed.steps, resumed.factor) == (3, 1 / 3)
    train(second, resumed, 3, 6)
    different = [
        name
        for (name, a), b in zip(straight.named_parameters(), second.parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    assert not different
    assert all(torch.equal(tensor, kept[name]) for name, tensor in flatten_state(saved["optimizer"])[0].items())
    assert not torch.equal(straight.layers[0].attention.W_V.weight, tiny(dtype).layers[0].attention.W_V.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_rates_learn(kind):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=32, context=16), seed=0)
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind))
    tokens = torch.randint(0, 32, (4, 16))
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        clip(model, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(math.log(32), rel=0.02)
    assert losses[-1] < 0.85 * losses[0]


def test_a_state_that_does_not_fit_is_refused():
    model = matrix_model(4, 3)
    muon = make_optimizer(model, OptimizerConfig(kind="muon"))
    with pytest.raises(ResidlabError, match="the saved optimizer is adamw; this one is muon"):
        muon.load_state_dict(make_optimizer(model, OptimizerConfig()).state_dict())
    other = make_optimizer(matrix_model(4, 5), OptimizerConfig(kind="muon"))
    with pytest.raises(ResidlabError, match=r"0.weight has shape \[4, 3\] here and \[4, 5\] there"):
        muon.load_state_dict(other.state_dict())
    longer = make_optimizer(nn.Sequential(*matrix_model(4, 3), nn.Linear(4, 2)), OptimizerConfig(kind="muon"))
    with pytest.raises(ResidlabError, match="one of them has matrices only"):
        muon.load_state_dict(longer.state_dict())


# --- Who goes where


def test_parameters_go_where_they_belong():
    config = ModelConfig(
        depth=2,
        width=16,
        heads=2,
        vocabulary=20,
        context=12,
        norm=norm_options("dyt", embedding_scale=True, bias=True),
        bias=True,
        position="learned",
        tied_embeddings=False,
    )
    model = Transformer(config, seed=0)
    model.layers[1].feedforward.W_up.weight.requires_grad_(False)
    optimizer = make_optimizer(model, OptimizerConfig(kind="muon", lr=0.02, weight_decay=0.1, rest_lr=0.003))
    names = {a.name for a in optimizer.assignments}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}
    for a in optimizer.assignments:
        inside = ".W_" in a.name and a.name.endswith("weight")
        assert a.role == (
            "matrix"
            if inside
            else "output"
            if a.name == "output.weight"
            else "embedding"
            if "embedding." in a.name
            else "other"
        )
        assert a.by == ("muon" if inside else "adamw")
        assert a.lr == (0.02 if inside else 0.003)
        assert a.weight_decay == (0.1 if inside or a.name == "output.weight" else 0)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(a.parameter) for a in optimizer.assignments)
    by_id = {id(a.parameter): a for a in optimizer.assignments}
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert (group["lr"], group["weight_decay"]) == (by_id[id(p)].lr, by_id[id(p)].weight_decay)
    table = optimizer.describe().splitlines()
    assert table[0].split() == ["parameter", "shape", "role", "by", "lr", "decay"]
    assert "blocks.0.attention.W_Q.weight 16×16 matrix muon 0.02 0.1" in [" ".join(row.split()) for row in table]
    assert "embedding_scale scalar other adamw 0.003 0" in [" ".join(row.split()) for row in table]


def test_any_module_will_do():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.attention = nn.MultiheadAttention(4, 2)
            self.convolution = nn.Conv1d(4, 4, 3)
            self.thin = nn.Linear(4, 1)
            self.lm_head = nn.Linear(4, 9)
            self.lm_head.weight = self.table.weight
            self.readout = nn.Linear(4, 5)

    def roles(**options):
        made = make_optimizer(Odd(), OptimizerConfig(kind="shampoo", weight_decay=0.1), **options)
        return {a.name: (a.role, a.weight_decay) for a in made.assignments if "bias" not in a.name}

    wanted = {
        "table.weight": ("embedding", 0),
        "attention.in_proj_weight": ("matrix", 0.1),
        "attention.out_proj.weight": ("matrix", 0.1),
        "convolution.weight": ("other", 0.1),
        "thin.weight": ("other", 0),
        "readout.weight": ("matrix", 0.1),
    }
    assert roles() == wanted
    assert roles(heads=["readout"]) == {**wanted, "readout.weight": ("output", 0.1)}
    with pytest.raises(ResidlabError, match="heads must name modules of the model; it has no 'head'"):
        roles(heads=["head"])


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        (nn.Linear(9, 4), "soap", "soap takes matrices of sides up to max_dimension = 8; weight has shape (4, 9)"),
        (nn.Linear(9, 4), "shampoo", "shampoo takes matrices of sides up to max_dimension = 8"),
        (nn.Linear(9, 4), "kl-shampoo", "kl-shampoo takes matrices of sides up to"),
        (nn.LayerNorm(4), "muon", "muon takes matrices, and the model has none outside embeddings and output"),
        (nn.Embedding(4, 4), "signgd", "signgd takes matrices"),
        (nn.Embedding(4, 4, sparse=True), "adamw", "makes sparse gradients"),
        (nn.Linear(2, 2, dtype=torch.complex64), "adamw", "take real parameters; weight is torch.complex64"),
        (nn.ReLU(), "adamw", "no parameter that requires a gradient"),
    ],
)
def test_what_cannot_be_taken_is_refused(model, kind, said):
    with pytest.raises(ResidlabError) as error:
        make_optimizer(model, OptimizerConfig(kind=kind, max_dimension=8))
    assert said in str(error.value)
    if "max_dimension" in said:
        make_optimizer(model, OptimizerConfig(kind="muon", max_dimension=8))


# --- The configuration


def test_what_is_left_out_is_filled_in():
    config = OptimizerConfig(kind="soap")
    assert (config.lr, config.betas, config.frequency, config.momentum) == (3e-3, (0.95, 0.95), 10, None)
    assert (config.rest_lr, config.rest_betas, config.rest_eps) == (1e-3, (0.9, 0.95), 1e-8)
    config = OptimizerConfig(lr=0.5, betas=(0.8, 0.9), eps=1e-6)
    assert (config.rest_lr, config.rest_betas, config.rest_eps) == (0.5, (0.8, 0.9), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_json_and_back_is_the_same(kind):
    config = OptimizerConfig(kind=kind, lr=0.1 + 0.2, rest_betas=(0.1, 0.2))
    assert OptimizerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "lion"}, "kind must be one of adamw, signgd, muon, soap, shampoo, kl-shampoo; got 'lion'"),
        ({"lr": -1}, "lr must be a finite number >= 0; got -1"),
        ({"lr": float("nan")}, "lr must be a finite number >= 0"),
        ({"weight_decay": "0.1"}, "weight_decay must be a finite number >= 0; got '0.1'"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in [0, 1); got (0.9, 1.0)"),
        ({"betas": 0.9}, "betas must be two numbers in [0, 1); got 0.9"),
        ({"eps": 0}, "eps must be a finite number > 0; got 0"),
        ({"momentum": 0.9}, 'momentum belongs to signgd, muon, kl-shampoo; got momentum = 0.9 for "adamw"'),
        ({"kind": "muon", "momentum": 1.5}, "momentum must be in [0, 1); got 1.5"),
        ({"kind": "muon", "scale": "rms"}, "scale must be one of original, match_rms_adamw; got 'rms'"),
        ({"kind": "muon", "frequency": 2}, 'belongs to soap, shampoo, kl-shampoo; got frequency = 2 for "muon"'),
        ({"kind": "soap", "frequency": 0}, "frequency must be a whole number >= 1; got 0"),
        ({"kind": "soap", "factor_beta": 1}, "factor_beta must be in [0, 1); got 1"),
        ({"rest_betas": [0.9]}, "rest_betas must be two numbers in [0, 1); got [0.9]"),
        ({"max_dimension": 1.5}, "max_dimension must be a whole number >= 1"),
        ({"learning_rate": 1}, "optimizer has no option learning_rate; it has kind, lr"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, said):
    with pytest.raises(ResidlabError) as error:
        OptimizerConfig.from_dict(values)
    assert said in str(error.value)


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf"), "1"])
def test_a_wrong_factor_is_refused(factor):
    with pytest.raises(ResidlabError, match="factor of the learning rate must be a finite number >= 0"):
        make_optimizer(matrix_model(2, 2), OptimizerConfig()).set_lr(factor)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    with pytest.raises(ResidlabError, match=r"pytorch_optimizer is missing: .* pip install -e '\.\[train"):
        make_optimizer(matrix_model(2, 2), OptimizerConfig(kind="soap"))


# --- Norm and clipping


def with_gradients(*values, dtype=torch.float32):
    parameters = [nn.Parameter(torch.zeros(len(value), dtype=dtype)) for value in values]
    for p, value in zip(parameters, values, strict=True):
        p.grad = torch.tensor(value, dtype=dtype)
    return [*parameters, nn.Parameter(torch.zeros(2))]


def test_the_norm_is_of_all_gradients_together():
    parameters = with_gradients([3.0, 0.0], [4.0])
    assert float(grad_norm(parameters)) == 5
    assert float(clip(parameters, 10.0)) == 5
    assert float(parameters[1].grad) == 4
    assert float(clip(parameters, 1.0)) == 5
    assert float(grad_norm(parameters)) == pytest.approx(1, rel=1e-5)
    assert parameters[2].grad is None


def test_a_model_without_gradients_has_norm_zero():
    assert float(clip(nn.Linear(2, 2), 1.0)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    many = with_gradients([1.0] * 70_000, dtype=dtype)
    assert grad_norm(many).dtype == torch.float32
    assert float(grad_norm(many)) == pytest.approx(70_000**0.5, rel=1e-6)
    large = with_gradients([60_000.0] * 4, dtype=dtype)
    norm = float(clip(large, 1.0))
    assert norm == pytest.approx(float(large[0].new_tensor(60_000.0)) * 2, rel=1e-6)
    assert float(grad_norm(large)) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_reported_and_left(wrong):
    parameters = with_gradients([1.0, wrong], [1e3])
    assert not math.isfinite(float(clip(parameters, 1.0)))
    assert float(parameters[0].grad[0]) == 1
    assert float(parameters[1].grad) == 1e3


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-38])
def test_tiny_gradients_survive_clipping(scale):
    parameters = with_gradients([scale, -scale])
    clip(parameters, 1.0)
    assert parameters[0].grad.tolist() == pytest.approx([scale, -scale], rel=1e-6)


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), float("inf"), "1"])
def test_a_wrong_bound_is_refused(max_norm):
    with pytest.raises(ResidlabError, match="max_norm must be a finite number > 0"):
        clip(nn.Linear(2, 2), max_norm)
