"""The configuration's door: what is refused, with which words, and the way to JSON and back."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.models.config import NORMS, BHyTOptions, ModelConfig, norm_options

SMALL = {"depth": 2, "width": 32, "heads": 4, "vocabulary": 50}


def test_what_is_left_out_is_filled_in():
    config = ModelConfig(**SMALL)
    assert (config.kv_heads, config.head_dim, config.feedforward_width) == (4, 8, 88)  # 8/3 of 32 is 85.3
    assert ModelConfig(**SMALL, feedforward="gelu").feedforward_width == 128


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"depth": 0}, "depth must be a whole number >= 1; got 0"),
        ({"depth": True}, "depth must be a whole number >= 1; got True"),
        ({"width": 32.0}, "width must be a whole number"),
        ({"heads": 5}, "heads must divide width = 32, or head_dim be given; got 5"),
        ({"kv_heads": 3}, "kv_heads must divide heads = 4; got 3"),
        ({"head_dim": 7}, 'head_dim must be even for position = "rope"; got 7'),
        ({"feedforward": "relu"}, "feedforward must be one of swiglu, gelu, gelu-tanh; got 'relu'"),
        ({"position": "alibi"}, "position must be one of rope, learned"),
        ({"initialization": "xavier"}, "initialization must be one of gpt2, gpt2-scaled, orthogonal"),
        ({"initialization": "orthogonal-shared-qk", "kv_heads": 2}, "so kv_heads must equal heads = 4; got 2"),
        ({"temperature_base": 0.0}, "temperature_base must be a finite number > 0; got 0.0"),
        ({"init_std": float("nan")}, "init_std must be a finite number > 0; got nan"),
        ({"residual": 1}, "residual must be true or false; got 1"),
        ({"norm": "bhyt3"}, "norm must be one of layernorm, rmsnorm, peri-ln, lns, dyt, bhyt*, bhyt; got 'bhyt3'"),
        ({"norm": {"kind": "rmsnorm", "lam": 2}}, "norm rmsnorm has no option lam; it has eps"),
        ({"norm": 3}, "norm must be made by norm_options"),
        ({"nrom": "bhyt"}, "model has no option nrom; it has depth, width"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values, said):
    with pytest.raises(ResidlabError) as error:
        ModelConfig.from_dict({**SMALL, **values})
    assert said in str(error.value)


def test_a_missing_value_is_named():
    with pytest.raises(ResidlabError, match="model needs heads, vocabulary"):
        ModelConfig.from_dict({"depth": 2, "width": 32})


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("bhyt", {"p": 0.99, "kappa": 10}, "say the same thing"),
        ("bhyt", {"p": 1.0}, r"p must be in \[0, 1\); got 1.0"),
        ("bhyt", {"lam_attention": 0}, "lam_attention must be a finite number > 0"),
        ("bhyt", {"learn_lam": "no"}, "learn_lam must be true or false; got 'no'"),
        ("bhyt", {"averaged": "keys"}, "averaged must be one of context, position, rows"),
        ("bhyt", {"averaged": "position", "tokens": 128}, 'tokens = 128 belongs to averaged = "context"'),
        (
            "bhyt",
            {"refresh": "never"},
            'refresh must be "forward", "frozen", "construction" or a number of steps; got "never"',
        ),
        ("bhyt", {"refresh": 0}, "refresh must be a whole number >= 1"),
        ("bhyt*", {"refresh": "frozen"}, "norm bhyt\\* has no option refresh"),
        ("rmsnorm", {"p": 0.9}, "norm rmsnorm has no option p"),
        ("rmsnorm", {"eps": -1e-6}, "eps must be a finite number >= 0"),
        ("None", {}, "norm must be one of"),
    ],
)
def test_a_wrong_norm_is_refused(kind, options, said):
    with pytest.raises(ResidlabError, match=said):
        norm_options(kind, **options)


def test_a_probability_becomes_kappa():
    assert norm_options("bhyt", p=0.75).kappa == 2.0


def test_nothing_changes_after_the_door():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig(**SMALL).depth = 3


@given(
    kind=st.sampled_from(sorted(NORMS)),
    heads=st.sampled_from([1, 2, 4, 8]),
    group=st.sampled_from([1, 2]),
    feedforward=st.sampled_from(["swiglu", "gelu", "gelu-tanh"]),
    residual=st.booleans(),
    beta=st.floats(0.5, 2.0),
)
def test_json_and_back_is_the_same(kind, heads, group, feedforward, residual, beta):
    config = ModelConfig(
        depth=3,
        width=16 * heads,
        heads=heads,
        kv_heads=max(heads // group, 1),
        vocabulary=99,
        norm=norm_options(kind),
        feedforward=feedforward,
        residual=residual,
        temperature_base=beta,
    )
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_bare_name_is_a_norm():
    assert ModelConfig.from_dict({**SMALL, "norm": "bhyt"}).norm == BHyTOptions()


def test_the_attention_scale_carries_temperature_and_logit_scale():
    config = ModelConfig(**SMALL, temperature_base=1.5, logit_scale=2.0)
    assert config.attention_scale(3) == pytest.approx(2 * 1.5**3 / 8**0.5, rel=1e-15)


def test_an_option_added_later_changes_no_hash_at_its_default():
    config = ModelConfig(depth=1, width=8, heads=1, vocabulary=4)
    assert config.to_dict()["norm"] == {"kind": "rmsnorm", "eps": 1e-5}
    scaled = ModelConfig(
        depth=1, width=8, heads=1, vocabulary=4, norm=norm_options("rmsnorm", gain_attention=0.2, gain_feedforward=1.0)
    )
    assert scaled.to_dict()["norm"] == {"kind": "rmsnorm", "eps": 1e-5, "gain_attention": 0.2}
    assert ModelConfig.from_dict(scaled.to_dict()) == scaled


@pytest.mark.parametrize("values", [{"temperature_base": 1e200}, {"logit_scale": 1e308, "temperature_base": 2.0}])
def test_logits_scales_beyond_float64_are_refused(values):
    with pytest.raises(ResidlabError, match=r"logit_scale \* temperature_base\*\*depth must be a finite number"):
        ModelConfig(depth=4, width=32, heads=2, vocabulary=50, **values)
