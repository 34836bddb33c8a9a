"""The norm modules against closed forms, torch's own, and the faults that others have shipped."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from residlab.kernels import TokenStatistic
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.norms import BHyT, BHyTStar, DyT, LayerNorm, RMSNorm, make_norm, make_output_norm

X = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
ALL = {"layernorm": LayerNorm, "rmsnorm": RMSNorm, "dyt": DyT, "bhyt*": BHyTStar}


def config(kind, **options):
    return ModelConfig(depth=2, width=16, heads=2, vocabulary=9, norm=norm_options(kind, **options))


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (BHyTStar(5), [-0.3411640, -0.1179186, 0, 0.0591657, 0.2326029]),
        (BHyTStar(5, centred=True), [-0.3405827, -0.1177024, 0, 0.0590565, 0.2321881]),
        (DyT(5), [-0.9051483, -0.4621172, 0, 0.2449187, 0.7615942]),
    ],
)
def test_golden_values(norm, expected):
    torch.testing.assert_close(norm.double()(X), torch.tensor(expected, dtype=torch.float64), atol=5e-7, rtol=0)


def test_layernorm_and_rmsnorm_are_torchs():
    x, gamma, beta = torch.randn(3, 4, 16).double(), torch.randn(16).double(), torch.randn(16).double()
    ours, theirs = LayerNorm(16).double(), nn.LayerNorm(16).double()
    for norm in (ours, theirs):
        for parameter, value in zip(norm.parameters(), (gamma, beta), strict=True):
            parameter.data.copy_(value)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-13, atol=0)
    ours, theirs = RMSNorm(16, eps=1e-3).double(), nn.RMSNorm(16, eps=1e-3).double()
    ours.gamma.data.copy_(gamma)
    theirs.weight.data.copy_(gamma)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-13, atol=0)


@pytest.mark.parametrize("layer", [1, 2, 7])
def test_layer_norm_scaling_divides_by_the_root_of_the_layer_but_not_at_the_end(layer):
    x = torch.randn(5, 16)
    plain = RMSNorm(16)(x)
    torch.testing.assert_close(make_norm(config("lns"), "attention", layer)(x), plain / math.sqrt(layer))
    torch.testing.assert_close(make_norm(config("lns"), "final", layer)(x), plain)


@pytest.mark.parametrize("kind", NORMS)
def test_each_site_has_the_norm_of_its_paper(kind):
    first, second, final = (make_norm(config(kind), site) for site in ("attention", "feedforward", "final"))
    plain = {"layernorm": LayerNorm, "dyt": DyT}.get(kind, RMSNorm)
    assert type(first) is {"bhyt": BHyTStar, "bhyt*": BHyTStar}.get(kind, plain)
    assert type(second) is {"bhyt": BHyT, "bhyt*": BHyTStar}.get(kind, plain)
    assert type(final) is plain
    assert (make_output_norm(config(kind)) is not None) == (kind == "peri-ln")


def test_first_values_at_the_sites():
    bhyt = config("bhyt", lam_attention=3.0, lam_feedforward=1.5, kappa=4.0, eps=1e-4)
    assert make_norm(bhyt, "attention").lam == 3.0
    second = make_norm(bhyt, "feedforward")
    assert (float(second.lam.detach()), second.kappa, second.eps) == (1.5, 4.0, 1e-4)
    dyt = config("dyt", alpha_attention=0.9, alpha_feedforward=0.6, alpha_final=0.3)
    got = [float(make_norm(dyt, site).alpha.detach()) for site in ("attention", "feedforward", "final")]
    assert got == pytest.approx([0.9, 0.6, 0.3])


@pytest.mark.parametrize("centred", [False, True])
def test_the_second_site_given_the_truth_is_the_first_site(centred):
    x, h = torch.randn(2, 3, 16).double() + 0.3, torch.randn(2, 3, 16).double()
    star = BHyTStar(16, centred=centred, lam=1.7).double()
    site = BHyT(16, centred=centred, lam=1.7).double()
    _, before = star(x, return_statistic=True)
    expected, after = star(x + h, return_statistic=True)
    given = TokenStatistic(before.spread, after.mean)
    torch.testing.assert_close(site(x + h, given, after.spread - before.spread), expected, rtol=1e-12, atol=0)


def test_a_fixed_lam_is_no_parameter_and_stays():
    norm = BHyTStar(8, learn_lam=False)
    assert [name for name, _ in norm.named_parameters()] == ["gamma"]
    norm(torch.randn(4, 8)).square().sum().backward()
    torch.optim.SGD(norm.parameters(), lr=1.0, weight_decay=1.0).step()
    assert norm.lam == 2.0
    assert norm.lam.grad is None
    assert "lam" in norm.state_dict()


def test_a_learnt_lam_learns():
    norm = BHyTStar(8)
    norm(torch.randn(4, 8)).square().sum().backward()
    assert norm.lam.grad != 0


@pytest.mark.parametrize("kind", ["rmsnorm", "bhyt*", "layernorm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [300.0, 2e4])
def test_large_entries_in_half_precision_do_not_vanish(kind, dtype, size):
    x = torch.randn(4, 64).to(dtype)
    x[:, 7] = size
    norm = ALL[kind](64).to(dtype)
    expected = ALL[kind](64).double()(x.double())
    y = norm(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    assert (y != 0).all()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (1, 1, 8), (8,)])
def test_no_token_and_one_token(kind, shape):
    norm = ALL[kind](8)
    y = norm(torch.randn(shape))
    assert y.shape == shape
    y.sum().backward()


@pytest.mark.parametrize("kind", ["rmsnorm", "bhyt*", "layernorm"])
def test_epsilon_is_the_one_that_was_given(kind):
    x = torch.randn(3, 8) * 1e-3
    small, large = (ALL[kind](8, eps=eps)(x) for eps in (1e-12, 1e-2))
    assert small.abs().max() > 5 * large.abs().max()


def test_what_is_printed_says_what_it_is():
    shown = str(make_norm(config("bhyt", learn_lam=False, centred=True, kappa=5.0), "attention"))
    assert shown == "BHyTStar(16, lam fixed, kappa=5, centred, eps=1e-06)"
    assert str(RMSNorm(4, scale=0.5)) == "RMSNorm(4, eps=1e-05, scale=0.5)"


def test_rmsnorm_with_the_gain_of_a_bound_is_bhyt_without_the_tanh():
    """``tanh(z u) = z u - (z u)**3/3 + ...`` with z = lam/kappa: equal up to third order."""
    bounded = ModelConfig(depth=1, width=64, heads=1, vocabulary=4, norm=norm_options("bhyt*", eps=1e-5))
    scaled = dataclasses.replace(bounded, norm=norm_options("rmsnorm", gain_attention=0.2, gain_feedforward=0.1))
    x = torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for site, ratio in (("attention", 0.2), ("feedforward", 0.1)):
        y, linear = (make_norm(config, site).double()(x) for config in (bounded, scaled))
        assert not torch.equal(y, linear)
        assert ((y - linear).abs() <= linear.abs() ** 3 / 3 + 1e-7 * linear.abs()).all()  # gains are float32
        torch.testing.assert_close(linear.square().mean(-1).sqrt(), torch.full((5,), ratio).double(), rtol=1e-4, atol=0)
    assert (make_norm(scaled, "final").gamma == 1).all()


@pytest.mark.parametrize("layer", [2, 3, 7, 12])
def test_the_scale_of_lns_is_not_rounded_to_the_dtype_of_the_gain(layer):
    norm = RMSNorm(64, eps=0, scale=layer**-0.5).bfloat16()
    x = torch.randn(2000, 64, generator=torch.Generator().manual_seed(layer)).bfloat16()
    exact = x.double() / x.double().square().mean(-1, keepdim=True).sqrt() * layer**-0.5
    bias = ((norm(x).double() - exact) * exact.sign()).mean() / exact.abs().mean()
    assert abs(bias) < 1e-4  # rounding 1/sqrt(7) to bfloat16 alone would make it 2.5e-3
