"""Six optimizers behind one door: `make_optimizer` sorts a model's parameters and hands them to their libraries.

    kind          on matrices                                                       library
    adamw         Loshchilov & Hutter, arXiv 1711.05101                             torch
    signgd        sign of the averaged gradient (arXiv 1802.04434)                  pytorch_optimizer
    muon          Newton-Schulz orthogonalised momentum (K. Jordan 2024)            torch
    soap          Adam in Shampoo's eigenbasis (arXiv 2409.11321)                   pytorch_optimizer
    shampoo       L^(-1/4) G R^(-1/4), sums of G G^T and G^T G (arXiv 1802.09568)   pytorch_optimizer
    kl-shampoo    S^(-1/2) M T^(-1/2), covariances nearest in KL (arXiv 2509.03378) heavyball

What a kind takes is the matrices inside the model: 2-D parameters with no side of 1. Everything else goes to AdamW
whatever the kind, so that kinds differ in what they do to matrices only: embedding tables, the output layer, gains,
biases, ``lam``, ``alpha``, ``embedding_scale``, and tensors of three and more axes. (Besides, the sign of an average
never stops moving the rows of tokens that no longer occur.)

Weight decay is decoupled, ``p -= lr weight_decay p``, and falls on matrices only: those inside, the output layer's, and
tensors of more axes. Embedding tables are left alone, and an output layer tied to one with them, because decay would
shrink the rows of rare tokens, which nothing pulls back.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from residlab.checks import is_real
from residlab.errors import ResidlabError
from residlab.training.optimizer_config import SETTINGS, Kind, OptimizerConfig
from residlab.training.parts import Assignment, Part, Role, adamw_part, matrix_part
from residlab.training.sharding import gathered, is_sharded

__all__ = [
    "ENTRYWISE",
    "SETTINGS",
    "Assignment",
    "Kind",
    "OptimizerConfig",
    "TrainingOptimizer",
    "assign",
    "clip",
    "grad_norm",
    "make_optimizer",
]

ENTRYWISE: tuple[Kind, ...] = ("adamw", "signgd")
"""The kinds that need no whole matrix, and so take parameters that are divided among processes."""

# --- Which parameter goes where


def assign(model: nn.Module, config: OptimizerConfig, heads: Iterable[str] | None = None) -> list[Assignment]:
    """Return the trainable parameters of any module, each once, with who updates it; see `make_optimizer`.

    Examples
    --------
    >>> from residlab.training.optimizer_config import OptimizerConfig
    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6))
    >>> {one.name: one.by for one in assign(model, OptimizerConfig(kind="muon"))}
    {'0.weight': 'adamw', '1.weight': 'muon', '1.bias': 'adamw'}
    """
    roles = _roles(model, heads)
    assignments = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not parameter.is_floating_point():
            raise ResidlabError(f"optimizers take real parameters; {name} is {parameter.dtype}")
        axes = parameter.ndim
        role = roles.get(id(parameter)) or ("matrix" if axes == 2 and min(parameter.shape) > 1 else "other")
        inside = role == "matrix"
        if inside and config.kind in ("soap", "shampoo", "kl-shampoo") and max(parameter.shape) > config.max_dimension:
            raise ResidlabError(
                f"{config.kind} takes matrices of sides up to max_dimension = {config.max_dimension}; "
                f"{name} has shape {tuple(parameter.shape)}"
            )
        decays = role != "embedding" and axes >= 2 and (axes > 2 or min(parameter.shape) > 1)
        assignments.append(
            Assignment(
                name=name,
                parameter=parameter,
                role=role,
                by=config.kind if inside else "adamw",
                lr=cast(float, config.lr if inside else config.rest_lr),
                weight_decay=config.weight_decay if decays else 0.0,
            )
        )
    if not assignments:
        raise ResidlabError("the model has no parameter that requires a gradient")
    if config.kind != "adamw" and all(assignment.role != "matrix" for assignment in assignments):
        raise ResidlabError(f"{config.kind} takes matrices, and the model has none outside embeddings and output")
    return assignments


def _roles(model: nn.Module, heads: Iterable[str] | None) -> dict[int, Role]:
    """Return the roles that a module decides; of a tied output layer, the embedding's."""
    modules = dict(model.named_modules())
    if heads is None:
        heads = [name for name in ("output", "lm_head") if isinstance(modules.get(name), nn.Linear)]
    roles: dict[int, Role] = {}
    for name in heads:
        if name not in modules:
            raise ResidlabError(f"heads must name modules of the model; it has no {name!r}")
        roles.update((id(p), "output") for p in modules[name].parameters() if p.ndim == 2)
    for name, module in modules.items():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            if module.sparse:
                raise ResidlabError(f"{name} makes sparse gradients, which no optimizer here takes: sparse=False")
            roles[id(module.weight)] = "embedding"
    return roles


# --- The optimizer


class TrainingOptimizer:
    """One or two libraries' optimizers that step as one; made by `make_optimizer`.

    Attributes
    ----------
    config
        What it was made from.
    assignments
        Which parameter is updated by whom.
    steps
        Calls of `step` so far.
    factor
        The present factor of all learning rates.

    Examples
    --------
    >>> from residlab.training.optimizer_config import OptimizerConfig
    >>> model = nn.Linear(4, 6)
    >>> optimizer = make_optimizer(model, OptimizerConfig(kind="muon", lr=0.02))
    >>> optimizer.set_lr(0.5)
    >>> [group["lr"] for group in optimizer.param_groups]  # Muon's, and AdamW's on the bias
    [0.01, 0.0005]
    """

    def __init__(self, config: OptimizerConfig, assignments: list[Assignment], parts: list[Part]) -> None:
        self.config, self.assignments, self.parts = config, assignments, parts
        self.steps, self.factor = 0, 1.0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts, as in torch."""
        return [group for part in self.parts for group in part.optimizer.param_groups]

    def step(self) -> None:
        """Update all parameters that have a gradient; gradients are left as they are.

        A parameter whose gradient is None stays. One whose gradient is zero moves by decay and by what its average
        still holds. Whether gradients are finite is not asked: see `grad_norm`.
        """
        self.steps += 1
        for part in self.parts:
            part.step(self.steps)

    def zero_grad(self) -> None:
        """Drop all gradients: they are None until the next backward."""
        for assignment in self.assignments:
            assignment.parameter.grad = None

    def set_lr(self, factor: float) -> None:
        """Set every learning rate to ``factor`` times what the configuration says.

        Raises
        ------
        ResidlabError
            If the factor is negative or not finite.
        """
        if not is_real(factor) or factor < 0:
            raise ResidlabError(f"the factor of the learning rate must be a finite number >= 0; got {factor!r}")
        self.factor = float(factor)
        for part in self.parts:
            part.set_lr(self.factor)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, in types that `flatten_state` takes; tensors are live, not copies."""
        return {
            "kind": self.config.kind,
            "steps": self.steps,
            "factor": self.factor,
            "parts": [part.state_dict() for part in self.parts],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where `state_dict` was called, bit for bit; tensors are copied, settings stay this configuration's.

        Raises
        ------
        ResidlabError
            If it was another kind's or another model's.
        """
        if saved.get("kind") != self.config.kind:
            raise ResidlabError(f"the saved optimizer is {saved.get('kind')}; this one is {self.config.kind}")
        if len(saved["parts"]) != len(self.parts):
            raise ResidlabError("the saved optimizer does not fit the model: one of them has matrices only")
        for part, state in zip(self.parts, saved["parts"], strict=True):
            part.load_state_dict(state)
        self.steps = saved["steps"]
        self.set_lr(saved["factor"])

    def describe(self) -> str:
        """Return a table of parameters: shape, role, by whom, learning rate (before the factor), decay."""
        rows = [("parameter", "shape", "role", "by", "lr", "decay")]
        for a in self.assignments:
            shape = "scalar" if a.parameter.numel() == 1 else "×".join(map(str, a.parameter.shape))
            rows.append((a.name, shape, a.role, a.by, f"{a.lr:g}", f"{a.weight_decay:g}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, *, heads: Iterable[str] | None = None
) -> TrainingOptimizer:
    """Return the optimizer of any module's trainable parameters.

    Parameters
    ----------
    model
        On the device and in the dtype in which it is trained.
    config
        Which, and with what.
    heads
        Modules whose matrices are output layers; by default ``output`` and ``lm_head`` at the top, where they are
        linear layers.

    Raises
    ------
    ResidlabError
        If a parameter cannot be taken (complex, sparse gradients, a side beyond ``max_dimension``), there is none, the
        library is missing, or parameters are divided among processes and the kind is not in `ENTRYWISE`.

    Notes
    -----
    Averages are kept in the parameter's dtype, except those of SOAP and Shampoo (float64) and of KL-Shampoo (float32 at
    least). A bfloat16 parameter loses steps below half its last digit (KL-Shampoo rounds them stochastically): to train
    in bfloat16, keep parameters in float32 under autocast. ``soap`` and ``kl-shampoo`` move no matrix at their first
    step, which starts their factors.

    Examples
    --------
    >>> from residlab.training.optimizer_config import OptimizerConfig
    >>> model = nn.Linear(4, 6)
    >>> optimizer = make_optimizer(model, OptimizerConfig(kind="signgd", lr=0.01, momentum=0.0))
    >>> before = model.weight.detach().clone()
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    >>> (before - model.weight).detach().abs().round(decimals=4).unique()  # the rate, whatever the gradient
    tensor([0.0100])
    """
    if config.kind not in ENTRYWISE and any(map(is_sharded, model.parameters())):
        raise ResidlabError(
            f"{config.kind} needs whole matrices, and fsdp divides them among processes: "
            f"use {' or '.join(ENTRYWISE)}, or the strategy ddp"
        )
    assignments = assign(model, config, heads)
    inside = [a for a in assignments if a.role == "matrix"]
    rest = [a for a in assignments if a.role != "matrix"]
    if config.kind == "adamw":
        parts = [adamw_part(config, assignments)]
    else:
        parts = [matrix_part(config, inside)] + ([adamw_part(config, rest)] if rest else [])
    return TrainingOptimizer(config, assignments, parts)


# --- Gradients


def grad_norm(parameters: nn.Module | Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients together, 0-d, in float32 at least; zero if there is none.

    Over all parts of gradients that are divided among processes. No synchronisation with the device. In float32,
    entries beyond 1.8e19 give infinity and those under 1e-23 vanish.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer(torch.tensor([3.0, 4.0])).backward()
    >>> round(grad_norm(layer).item(), 6)
    5.0
    """
    gradients = [p.grad for p in _parameters(parameters) if p.grad is not None]
    half = (torch.float16, torch.bfloat16)
    return gathered(torch.nn.utils.get_total_norm([g.float() if g.dtype in half else g for g in gradients]))


def clip(parameters: nn.Module | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients by ``min(1, max_norm / norm)`` and return the norm from before.

    A norm that is not finite scales nothing: the caller, who decides what then, sees the gradients as they were.

    Raises
    ------
    ResidlabError
        If ``max_norm`` is not a finite number > 0.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer(torch.tensor([3.0, 4.0])).backward()
    >>> round(clip(layer.parameters(), max_norm=0.5).item(), 6), layer.weight.grad  # the norm was 5
    (5.0, tensor([[0.3000, 0.4000]]))
    """
    if not is_real(max_norm) or max_norm <= 0:
        raise ResidlabError(f"max_norm must be a finite number > 0; got {max_norm!r}")
    parameters = _parameters(parameters)
    norm = grad_norm(parameters)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0.0, 0.0, 0.0))
    return norm


def _parameters(source: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    return list(source.parameters() if isinstance(source, nn.Module) else source)
