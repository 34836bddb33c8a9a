"""Nested state to tensors and JSON and back, through real safetensors bytes and real JSON text: nothing is lost."""

import json
import math
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from residlab.errors import ResidlabError
from residlab.training.state import flatten_state, unflatten_state

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
SHAPES = ((), (0,), (3,), (2, 0, 3), (2, 3))


def through_files(state):
    tensors, scalars = flatten_state(state)
    return unflatten_state(load(save(tensors)), json.loads(json.dumps(scalars, allow_nan=False)))


def same(a, b):
    """Equal in type, structure and every bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.detach().contiguous().cpu().view(-1).view(torch.uint8).tolist()
            == b.contiguous().view(-1).view(torch.uint8).tolist()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(x) is type(y) and same(a[x], b[x]) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return a == b


@st.composite
def tensors(draw):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 100
    values = torch.complex(values, values.flip(0) if shape else -values) if dtype.is_complex else values
    tensor = values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)
    return tensor.T if len(shape) == 2 and draw(st.booleans()) else tensor


states = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9) | st.sampled_from(["a", "a/0", "0", ""]), inner)
    ),
    max_leaves=8,
)


@given(states)
def test_nothing_is_lost(state):
    assert same(state, through_files(state))


def test_the_names_are_paths():
    flat, scalars = flatten_state({"optimizer": [{0: torch.zeros(2)}, torch.ones(())], "step": 7})
    assert list(flat) == ["/optimizer/0/0", "/optimizer/1"]
    assert "7" in json.dumps(scalars)


def test_paths_that_look_alike_are_kept_apart():
    state = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "/a": {"b": torch.tensor(3)}}
    state |= {0: torch.tensor(4), "0": torch.tensor(5), "__metadata__": torch.tensor(6)}
    assert same(state, through_files(state))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2])
def test_every_float(value):
    assert same([value], through_files([value]))


def test_what_is_shared_stays_shared_and_views_come_apart():
    shared, base = torch.arange(3.0), torch.arange(10.0)
    state = {
        "one": shared,
        "two": [shared],
        "whole": base,
        "half": base[5:],
        "strided": base[::2],
        "again": base.view(2, 5),
    }
    back = through_files(state)
    assert same(state, back)
    assert back["one"] is back["two"][0]
    back["whole"].zero_()
    assert back["half"].tolist() == [5, 6, 7, 8, 9]
    assert same(through_files({"half": base[5:]}), {"half": base[5:]})  # a view alone, too


def test_conjugates_and_negatives_are_resolved():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert same(through_files([z.conj(), z.conj().imag]), [z.conj().resolve_conj(), z.conj().imag.resolve_neg()])


def test_saving_does_not_change_what_is_saved():
    parameter = nn.Parameter(torch.randn(2, 3))
    flat, _ = flatten_state([parameter])
    assert flat["/0"].data_ptr() == parameter.data_ptr()  # no needless copy
    assert parameter.requires_grad
    assert not flat["/0"].requires_grad


def test_a_module_s_state_is_a_dict():
    state = nn.Linear(2, 3).state_dict()
    back = through_files(state)
    assert isinstance(state, OrderedDict)
    assert type(back) is dict
    assert same(dict(state), back)


class Number(int):
    pass


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": [1, {2}]}, "/a/1 is a builtins.set, which a checkpoint cannot hold; allowed are dict"),
        ({"a": b"x"}, "/a is a builtins.bytes"),
        (1j, "the state is a builtins.complex"),
        ([np.float64(1)], "/0 is a numpy.float64"),
        ([Number(1)], "Number, which a checkpoint cannot hold"),
        ([Path("x")], "which a checkpoint cannot hold"),
        ({(1, 2): 3}, "the key (1, 2) of the state is a tuple"),
        ({"a": {True: 3}}, "the key True of /a is a bool"),
        ([torch.eye(2).to_sparse()], "/0 is a torch.Tensor"),
        ([torch.empty(2, device="meta")], "/0 is a torch.Tensor"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(state, said):
    with pytest.raises(ResidlabError) as error:
        flatten_state(state)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("scalars", "said"),
    [
        ({"tensor": "/a"}, "needs a tensor /a, which is missing"),
        ({"dict": [["a"]]}, "the saved state is damaged"),
        ({"dict": [[None, 1]]}, "the saved state is damaged"),
        ({"float": "1.0"}, "the saved state is damaged"),
        ({"step": 3}, "the saved state is damaged: {'step': 3} is nothing that flatten_state writes"),
        ([{}], "the saved state is damaged"),
    ],
)
def test_damage_is_named(scalars, said):
    with pytest.raises(ResidlabError) as error:
        unflatten_state({}, scalars)
    assert said in str(error.value)
