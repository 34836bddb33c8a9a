"""Small random models of transformers, a second or less each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,  # a layer's number matters to layer-norm scaling
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers():
    """No progress bars, no reports of loading among the output of tests."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On models this small threads only wait for each other, long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make() -> Callable[..., Any]:
    """``make("Llama", tie_word_embeddings=True)``: random weights, random gains, evaluation mode."""
    import transformers

    def build(family: str, **settings: Any) -> Any:
        torch.manual_seed(0)
        how = {name: settings.pop(name) for name in ("attn_implementation", "dtype") if name in settings}
        name = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
        config = getattr(transformers, name)(**{**SIZES, **settings})
        model = getattr(transformers, f"{family}ForCausalLM")._from_config(config, **how)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "norm" in parameter_name:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return model.eval()

    return build


@pytest.fixture(scope="session")
def ids() -> torch.Tensor:
    return torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1))
