"""The decoder layers of transformers into which our norms fit, and where their norms stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from residlab.errors import ResidlabError


@dataclass(frozen=True)
class Family:
    """One architecture of transformers.

    Attributes
    ----------
    name
        That of its classes; ``module`` is where they are.
    gain_offset
        What the gain is more than the stored weight: Gemma stores ``w`` and multiplies by ``1 + w``.
    feedforward_site
        The name of the norm in front of the feedforward.
    normed_outputs
        Whether each sublayer has a norm behind it as well.
    """

    name: str
    gain_offset: float = 0.0
    feedforward_site: str = "post_attention_layernorm"
    normed_outputs: bool = False
    attention_site: str = "input_layernorm"

    @property
    def module(self) -> str:
        """Where the classes are defined."""
        return f"transformers.models.{self.name.lower()}.modeling_{self.name.lower()}"

    @property
    def model_name(self) -> str:
        """The class of whole models."""
        return f"{self.name}ForCausalLM"

    def classes(self) -> tuple[Any, Any, Any]:
        """Return transformers' classes: model, decoder layer, configuration."""
        module = import_module(self.module)
        model = getattr(module, self.model_name)
        return model, getattr(module, f"{self.name}DecoderLayer"), model.config_class

    def sites(self, layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield name and module of the norms in front of the two sublayers."""
        for name in (self.attention_site, self.feedforward_site):
            yield name, layer.get_submodule(name)

    def gain(self, norm: nn.Module) -> Tensor:
        """Return what a norm of this family multiplies by, a new tensor."""
        assert isinstance(norm.weight, Tensor)
        return norm.weight.detach() + self.gain_offset


_GEMMA2 = {"gain_offset": 1.0, "feedforward_site": "pre_feedforward_layernorm", "normed_outputs": True}
FAMILIES = (
    Family("Llama"),
    Family("Mistral"),
    Family("Qwen2"),
    Family("Qwen3"),
    Family("Gemma", gain_offset=1.0),
    Family("Gemma2", **_GEMMA2),  # type: ignore[arg-type]
    Family("Gemma3", **_GEMMA2),  # type: ignore[arg-type]
)


def family_of(hf_model: object) -> Family:
    """Return the family of a model.

    Raises
    ------
    ResidlabError
        If it has none: subclasses and wrappers may compute something else.
    """
    cls = type(hf_model)
    for family in FAMILIES:
        if (cls.__module__, cls.__name__) == (family.module, family.model_name):
            return family
    names = ", ".join(family.model_name for family in FAMILIES)
    raise ResidlabError(
        f"norms can be swapped in transformers' {names}; got {cls.__module__}.{cls.__qualname__}. "
        "Swap before the model is wrapped, sharded, compiled or given adapters"
    )
