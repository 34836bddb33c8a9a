"""The feedforward sublayer: SwiGLU or GELU."""

from torch import Tensor, nn

from residlab.models.arithmetic import TORCH, Arithmetic
from residlab.models.config import ModelConfig


class Feedforward(nn.Module):
    """``(silu(x W_gate) * x W_up) W_down`` (Shazeer 2020), or ``gelu(x W_up) W_down``.

    Parameters
    ----------
    config
        The model's: ``feedforward`` names the function, ``gelu-tanh`` GPT-2's approximation of the second.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> feedforward = Feedforward(ModelConfig(depth=2, width=64, heads=4, vocabulary=256))
    >>> feedforward(torch.zeros(3, 64)).shape, tuple(feedforward.W_gate.weight.shape)  # 8/3 of 64, rounded up to 8
    (torch.Size([3, 64]), (176, 64))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.feedforward_width
        self.W_gate = nn.Linear(config.width, inner, bias=config.bias) if config.feedforward == "swiglu" else None
        self.W_up = nn.Linear(config.width, inner, bias=config.bias)
        self.W_down = nn.Linear(inner, config.width, bias=config.bias)
        self.approximate = "tanh" if config.feedforward == "gelu-tanh" else "none"

    def forward(self, x: Tensor, arithmetic: Arithmetic = TORCH) -> Tensor:
        """Map (..., width) to (..., width)."""
        up = arithmetic.linear(self.W_up, x)
        if self.W_gate is None:
            return arithmetic.linear(self.W_down, arithmetic.gelu(up, self.approximate))
        return arithmetic.linear(self.W_down, arithmetic.swiglu(arithmetic.linear(self.W_gate, x), up))
