"""Memory on paper against what autograd keeps, what optimizers keep, and what a process has resident."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.memory import activation_bytes, optimizer_bytes, step_memory
from residlab.training.optimizers import SETTINGS, OptimizerConfig, clip, make_optimizer
from residlab.training.state import flatten_state

WORKER = Path(__file__).with_name("memory_worker.py")
SIZES = {"depth": 3, "width": 40, "heads": 4, "head_dim": 8, "vocabulary": 100, "context": 32, "feedforward_width": 72}
PLAIN = {"kv_heads": 2}
GPT = {"feedforward": "gelu", "position": "learned", "bias": True, "tied_embeddings": False}
BARE = {"residual": False}
BATCH = 5


def kept_by_autograd(config, bfloat16):
    """Count each storage once that a forward saves, but for those of weights and token ids."""
    model = Transformer(config, seed=0)
    ids = torch.randint(0, config.vocabulary, (BATCH, config.context + 1))
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), ids)}
    storages = {}

    def see(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage  # alive, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            logits = model(ids[:, :-1])
        nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [PLAIN, GPT, BARE], ids=["plain", "gpt", "bare"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("layernorm", {}),
        ("rmsnorm", {}),
        ("lns", {}),
        ("peri-ln", {"embedding_norm": True}),
        ("dyt", {"embedding_scale": True, "bias": True}),
        ("bhyt*", {"centred": True}),
        ("bhyt*", {"learn_lam": False}),
        ("bhyt", {"centred": True, "averaged": "position"}),
        ("bhyt", {"averaged": "rows"}),
        ("bhyt", {"refresh": 5}),
    ],
)
def test_activations_are_counted_to_the_byte(kind, options, shape, bfloat16):
    config = ModelConfig(**SIZES, **shape, norm=norm_options(kind, **options))
    assert activation_bytes(config, BATCH, bfloat16=bfloat16) == kept_by_autograd(config, bfloat16)


@pytest.mark.parametrize(
    "optimizer", [*({"kind": kind} for kind in SETTINGS), {"kind": "signgd", "momentum": 0.0}], ids=str
)
def test_the_optimizer_is_counted_to_the_byte(optimizer):
    if optimizer["kind"] == "kl-shampoo":
        pytest.importorskip("heavyball")
    config = ModelConfig(**SIZES, norm=norm_options("bhyt"))
    model = Transformer(config, seed=0)
    made = make_optimizer(model, OptimizerConfig(**optimizer))
    for _ in range(3):
        made.zero_grad()
        model(torch.randint(0, 100, (2, 32))).square().mean().backward()
        clip(model, 1.0)
        made.step()
    kept = {name: tensor for name, tensor in flatten_state(made.state_dict())[0].items() if tensor.ndim}  # no counts
    copies = sum(p.nbytes for part in made.parts if hasattr(part, "real") for p in part.parameters.values())
    measured = copies + sum(tensor.nbytes for tensor in kept.values())
    assert optimizer_bytes(made.config, made.assignments) == measured
    weights = sum(p.nbytes for p in model.parameters())
    counted = step_memory(TrainConfig(model=config, steps=1, optimizer=made.config))
    assert (counted.weights, counted.gradients, counted.optimizer) == (weights, weights, measured)


LARGE = TrainConfig(
    model=ModelConfig(depth=2, width=256, heads=4, vocabulary=257, context=128, norm=norm_options("bhyt")),
    steps=2,
    batch=16,
    evaluation_tokens=300,
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not run: glibc only")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LARGE, id="activations"),
        pytest.param(replace(LARGE, batch=2, model=replace(LARGE.model, width=512, head_dim=128)), id="checkpoint"),
    ],
)
def test_what_a_process_has_resident_is_within_15_percent(config):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [sys.executable, WORKER, json.dumps(config.to_dict())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    counted = step_memory(config)
    assert counted.peak > 80e6
    assert int(done.stdout) == pytest.approx(counted.peak, rel=0.15)


def test_processes_and_accumulation_share_the_batch():
    alone = step_memory(LARGE)
    four = step_memory(LARGE, processes=4)
    parts = step_memory(LARGE, processes=4, strategy="fsdp")
    halves = step_memory(replace(LARGE, accumulation=2))
    assert (four.logits, halves.logits) == (alone.logits // 4, alone.logits // 2)
    assert (four.weights, four.optimizer) == (alone.weights, alone.optimizer)
    assert (parts.weights, parts.optimizer) == (alone.weights // 4, alone.optimizer // 4)
    assert parts.activations == four.activations < alone.activations
    assert halves.early_gradients == halves.gradients > alone.early_gradients
    assert str(alone).startswith("about 1")


@pytest.mark.parametrize("sizes", [{"width": 10**12}, {"vocabulary": 10**30}, {"width": 10**30}])
def test_a_model_that_no_memory_holds_is_refused(sizes):
    model = ModelConfig(**{"depth": 1, "heads": 2, "width": 16, "vocabulary": 257, "context": 32, **sizes})
    with pytest.raises(ResidlabError, match="is too large for any memory"):
        step_memory(TrainConfig(model=model, steps=1))
