"""How the weights of a `Transformer` start.

    initialization          W_Q W_K W_V W_gate W_up      W_O W_down                         embeddings, output
    gpt2                    N(0, std**2)                  N(0, std**2)                       N(0, std**2)
    gpt2-scaled             N(0, std**2)                  N(0, std**2 / (2 depth))           N(0, std**2)
    orthogonal              scaled semi-orthogonal        scaled semi-orthogonal             N(0, std**2)
    orthogonal-shared-qk    the same, then W_K := W_Q     the same                           N(0, std**2)

``std`` is `ModelConfig.init_std`. Biases start at zero, gains at one. Sources: Radford et al. 2019 (the division by the
number of residual branches, two a block); Ji et al., arXiv 2605.25880 (orthogonal; the shared start is ours).
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from residlab.models.transformer import Transformer


@torch.no_grad()
def scaled_orthogonal_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a matrix, (out, in), with a Haar-distributed semi-orthogonal one times ``sqrt(out / min(out, in))``.

    That factor makes an isotropic input of unit variance come out with unit variance. QR in float32 at least, with the
    signs of R's diagonal taken out, without which the law is not Haar's.

    Raises
    ------
    ValueError
        If ``weight`` is not a matrix.

    Examples
    --------
    >>> W = scaled_orthogonal_(torch.empty(8, 2))
    >>> torch.allclose(W.T @ W, 4 * torch.eye(2), atol=1e-5)  # unit variance in, unit variance out
    True
    """
    if weight.ndim != 2:
        raise ValueError(f"scaled_orthogonal_ fills a matrix; got shape {tuple(weight.shape)}")
    rows, columns = weight.shape
    precise = torch.promote_types(weight.dtype, torch.float32)
    tall = (max(rows, columns), min(rows, columns))
    Q, R = torch.linalg.qr(torch.randn(tall, dtype=precise, device=weight.device, generator=generator))
    Q = Q * R.diagonal().sign()
    return weight.copy_((Q if rows >= columns else Q.T) * (rows / min(rows, columns)) ** 0.5)


@torch.no_grad()
def initialize(model: "Transformer", seed: int | None = None) -> None:
    """Draw all weights anew, from ``seed`` or else from torch's global generator, as the model's configuration says.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> config = ModelConfig(depth=2, width=32, heads=2, vocabulary=50, initialization="orthogonal-shared-qk")
    >>> attention = Transformer(config, seed=0).blocks[0].attention  # calls initialize(model, seed=0)
    >>> torch.equal(attention.W_Q.weight, attention.W_K.weight)
    True
    """
    config = model.config
    device = model.embedding.weight.device
    if device.type == "meta":
        return
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    orthogonal = config.initialization.startswith("orthogonal")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0, config.init_std, generator=generator)
        elif isinstance(module, nn.Linear):
            if module is model.output:
                module.weight.normal_(0, config.init_std, generator=generator)
            elif orthogonal:
                scaled_orthogonal_(module.weight, generator)
            else:
                closes_branch = name.endswith(("W_O", "W_down"))
                scaled = closes_branch and config.initialization == "gpt2-scaled"
                std = config.init_std * ((2 * config.depth) ** -0.5 if scaled else 1)
                module.weight.normal_(0, std, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
    if config.initialization == "orthogonal-shared-qk":
        for block in model.layers:
            block.attention.W_K.weight.copy_(block.attention.W_Q.weight)
