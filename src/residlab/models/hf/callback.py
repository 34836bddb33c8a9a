"""Keeping the constants of a swapped model in step with its weights while transformers' ``Trainer`` trains it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from residlab.models.hf.swap import refresh_constants


class RefreshConstants(TrainerCallback):  # type: ignore[misc]
    """Calls `refresh_constants` after each step of the optimizer: ``Trainer(..., callbacks=[RefreshConstants()])``.

    Needed with ``swap_norms(model, "bhyt", refresh=n)``; with another policy it does nothing.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from residlab.models.hf import swap_norms
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    >>> report = swap_norms(model, "bhyt", tokens=128, refresh=100)
    >>> callbacks = [RefreshConstants()]  # for transformers.Trainer(model, ..., callbacks=callbacks)
    """

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Refresh where the policy's n divides the number of steps made."""
        if model is not None:
            refresh_constants(model, state.global_step)
