r"""By how much a small relative error grows on its way through a network.

Each token's vector behind one module is moved by a random vector of a small relative size, and the change is followed:

.. math:: g(\text{site}) = \frac1\epsilon
          \Bigl(\frac1T \sum_t \frac{\lVert y_t - x_t\rVert^2}{\lVert x_t\rVert^2}\Bigr)^{1/2}

with x and y what the site reads without and with the change. To first order it is the root mean square of the relative
derivative in random directions: what rounding and quantization noise, which have no direction, become.

Source: chapter 18; what it should be is in `residlab.theory.error_growth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.probes.activations import observe_inputs


@torch.no_grad()
def relative_growth(
    model: nn.Module,
    ids: Tensor,
    sites: Mapping[str, nn.Module],
    *,
    source: nn.Module,
    size: float = 1e-6,
    seed: int = 0,
) -> dict[str, float]:
    """Return ``g`` at each site, in the order in which the forward comes to them.

    Parameters
    ----------
    model
        In float64: with fewer digits rounding is what would be measured.
    ids
        What it reads, (B, T).
    sites
        Modules by name, whose first input is looked at.
    source
        The module whose output, (B, T, d), is moved.
    size
        epsilon.
    seed
        Of the random direction of each token.

    Raises
    ------
    ResidlabError
        If the model is not in float64, or the size is not in (0, 0.1).

    Examples
    --------
    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4, bias=False), nn.Identity()).double()
    >>> _ = nn.init.eye_(model[1].weight)
    >>> sites = {"linear": model[1], "behind": model[2]}
    >>> found = relative_growth(model, torch.arange(8)[None], sites, source=model[0])
    >>> round(found["behind"] / found["linear"], 6)  # an isometry lets no relative error grow
    1.0
    """
    if any(parameter.dtype != torch.float64 for parameter in model.parameters()):
        raise ResidlabError("relative_growth needs a model in float64: model.double()")
    if not 0 < size < 0.1:
        raise ResidlabError(f"size must be in (0, 0.1); got {size!r}")

    def read() -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}

        def keep(name: str, x: Tensor) -> None:
            seen[name] = x.clone()

        with observe_inputs(sites, keep):
            model(ids)
        return seen

    def move(_module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
        generator = torch.Generator(output.device).manual_seed(seed)
        direction = torch.randn(output.shape, dtype=output.dtype, device=output.device, generator=generator)
        moved: Tensor = output + size * output.norm(dim=-1, keepdim=True) * direction / output.shape[-1] ** 0.5
        return moved

    before = read()
    handle = source.register_forward_hook(move)
    try:
        after = read()
    finally:
        handle.remove()
    return {
        name: float(((after[name] - x).norm(dim=-1) / x.norm(dim=-1)).square().mean().sqrt()) / size
        for name, x in before.items()
    }
