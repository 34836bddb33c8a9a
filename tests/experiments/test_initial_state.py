"""What models are like at their start, and what optimizers' updates are made of."""

import numpy as np
import pytest
import torch

from residlab.experiments.initial_state import initial_state
from residlab.experiments.update_spectra import update_spectrum


def test_a_shared_start_looks_at_itself_and_keeps_tokens_apart():
    apart, shared = (
        initial_state(shared=s, depth=3, tokens=48, width=64, heads=2, feedforward="swiglu") for s in (False, True)
    )
    assert shared.participation.min() > 0.5 > 0.2 > apart.participation.max()
    assert shared.similarity[-1] < 0.05 < 0.2 < apart.similarity[-1]
    assert abs(apart.similarity[0]) < 0.05  # different random tokens
    assert (shared.gradient[:-1] > shared.gradient[1:]).all()


def test_without_a_gate_gradients_hardly_grow():
    gated, ungated = (
        initial_state(shared=True, logit_scale=2.0, depth=6, tokens=48, feedforward=kind).gradient
        for kind in ("swiglu", "gelu")
    )
    assert gated[0] / gated[-1] > 4 > 1.6 > ungated[0] / ungated[-1]


def test_with_residual_connections_tokens_stay_apart_too():
    kept = initial_state(shared=False, depth=3, tokens=48, width=64, heads=2, residual=True)
    removed = initial_state(shared=False, depth=3, tokens=48, width=64, heads=2)
    assert kept.similarity[-1] < removed.similarity[-1]


def test_muon_s_update_is_nearly_flat_and_a_sign_is_led_by_few():
    ids = torch.randint(0, 257, (4, 32), generator=torch.Generator().manual_seed(0))
    muon, sign = (update_spectrum(kind, ids, width=32) for kind in ("muon", "signgd"))
    assert np.square(muon).mean() == pytest.approx(1)
    assert (np.diff(muon) <= 0).all()
    assert muon[0] < 1.6 < sign[0]
