"""The feedforward sublayer: SwiGLU or GELU."""

from torch import Tensor, nn

from residlab.models.config import ModelConfig


class Feedforward(nn.Module):
    """``(silu(x W_gate) * x W_up) W_down`` (Shazeer 2020), or ``gelu(x W_up) W_down``.

    Parameters
    ----------
    config
        The model's: ``feedforward`` names the function, ``gelu-tanh`` GPT-2's approximation of the second.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.feedforward_width
        self.W_gate = nn.Linear(config.width, inner, bias=config.bias) if config.feedforward == "swiglu" else None
        self.W_up = nn.Linear(config.width, inner, bias=config.bias)
        self.W_down = nn.Linear(inner, config.width, bias=config.bias)
        self.approximate = "tanh" if config.feedforward == "gelu-tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        up = self.W_up(x)
        if self.W_gate is None:
            return self.W_down(nn.functional.gelu(up, approximate=self.approximate))  # type: ignore[no-any-return]
        return self.W_down(nn.functional.silu(self.W_gate(x)) * up)  # type: ignore[no-any-return]
