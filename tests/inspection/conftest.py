"""Small random models of transformers in folders, with a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCABULARY = 260
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 256,
    "eos_token_id": None,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def byte_tokenizer(begin: bool) -> Any:
    """A token for each byte, ids 0 to 255 in some order, and ``<s>``, 256."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)} | {"<s>": 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """``build("llama", num_hidden_layers=2)``: random weights, of which gains are random too, evaluation mode."""

    def make(kind: str, **settings: Any) -> Any:
        torch.manual_seed(0)
        config = transformers.CONFIG_MAPPING[kind](**{**SIZES, **settings})
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or "ln_" in name:
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return model.eval()

    return make


@pytest.fixture(scope="session")
def save(build: Callable[..., Any]) -> Callable[..., Path]:
    """``save(folder, "llama")``: a checkpoint as the hub has them; ``edit`` may change the model first."""

    def write(
        folder: Path,
        kind: str = "llama",
        *,
        tokenizer: bool = True,
        begin: bool = False,
        edit: Callable[[Any], None] = lambda model: None,
        shard: str = "1GB",
        **settings: Any,
    ) -> Path:
        model = build(kind, **settings)
        with torch.no_grad():
            edit(model)
        model.save_pretrained(folder, max_shard_size=shard)
        if tokenizer:
            byte_tokenizer(begin).save_pretrained(folder)
        return folder

    return write
