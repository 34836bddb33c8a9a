"""The libraries' optimizers, each behind the same door and without its traps.

    optimizer     library            what is done about it
    AdamW         torch              fused where torch can
    Muon          torch              on a CPU, its Newton-Schulz iteration in float32 instead of bfloat16, which CPUs
                                     multiply ten times slower
    SignSGD       pytorch_optimizer  decay decoupled
    SOAP          pytorch_optimizer  in float64, since in float32 a gradient of low rank is rounding noise in the other
                                     directions, which it scales up to whole steps and beyond (a thousandfold was seen);
                                     its first step only initialises
    Shampoo       pytorch_optimizer  in float64, since in float32 ``L = eps I + G G^T`` of a G of low rank comes out of
                                     the SVD with a zero, whose root is infinite; no momentum (it would rewrite the
                                     gradients); roots at every step (it would stand still until the first); gradients
                                     over 1e4 would defeat float64 as well: clip
    KLShampoo     heavyball          keeps gradients, which it would drop; not compiled; its noise (1e-9, which keeps
                                     the factors from vanishing) comes from a generator of its own, seeded by the step;
                                     float64 parameters get a float64 state, without which it crashes; its first step
                                     only initialises, to factors of 0.1: clip, or the second is as long as the gradient

What a part keeps between steps is all in `Part.state_dict`: no pickle, no random state.
"""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError, install
from residlab.training.optimizer_config import Kind, OptimizerConfig
from residlab.training.sharding import divided_like

Role = Literal["matrix", "embedding", "output", "other"]


@dataclass(frozen=True)
class Assignment:
    """One parameter, who updates it, and how."""

    name: str
    parameter: nn.Parameter
    role: Role
    by: Kind
    lr: float
    weight_decay: float


def library(name: str) -> Any:
    """Import an optional library.

    Raises
    ------
    ResidlabError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ResidlabError(f"{name} is missing: {install('training')} ({error})") from error


class Part:
    """One library's optimizer over named parameters.

    Parameters
    ----------
    optimizer
        Its groups in their final order, each with its base learning rate.
    names
        Of its parameters, in the order of the groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
        self.optimizer = optimizer
        own = (parameter for group in optimizer.param_groups for parameter in group["params"])
        self.parameters: dict[str, Tensor] = dict(zip(names, own, strict=True))
        self.base = [float(group["lr"]) for group in optimizer.param_groups]

    def step(self, number: int) -> None:
        """Update the parameters; ``number`` counts the calls, from 1."""
        self.optimizer.step()

    def set_lr(self, factor: float) -> None:
        """Set each group's learning rate to ``factor`` times its base."""
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = factor * base

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step; the tensors are the optimizer's own.

        Settings are not in it: they belong to the configuration.
        """
        return {
            "shapes": {name: list(parameter.shape) for name, parameter in self.parameters.items()},
            "state": {
                name: dict(self.optimizer.state[parameter])
                for name, parameter in self.parameters.items()
                if self.optimizer.state.get(parameter)
            },
            "groups": [
                {key: value for key, value in group.items() if self._moves(key)}
                for group in self.optimizer.param_groups
            ],
        }

    def _moves(self, key: str) -> bool:
        """Whether an entry of a group is state: what the optimizer added, rather than a setting."""
        return key != "params" and key not in self.optimizer.defaults

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, bit for bit (torch's own loading casts to the parameter's dtype).

        Of a parameter that is divided among processes, the saved state is whole; each process takes its part.

        Raises
        ------
        ResidlabError
            If it belongs to other parameters.
        """
        shapes = {name: list(parameter.shape) for name, parameter in self.parameters.items()}
        if saved["shapes"] != shapes:
            names = sorted(shapes.keys() | saved["shapes"].keys())
            name = next(name for name in names if shapes.get(name) != saved["shapes"].get(name))
            raise ResidlabError(
                f"the saved optimizer does not fit the model: {name} has shape {shapes.get(name, 'none')} here "
                f"and {saved['shapes'].get(name, 'none')} there"
            )
        if len(saved["groups"]) != len(self.optimizer.param_groups):
            raise ResidlabError(
                f"the saved optimizer has {len(saved['groups'])} groups; here are {len(self.optimizer.param_groups)}"
            )
        self.optimizer.state.clear()
        for group, entries in zip(self.optimizer.param_groups, saved["groups"], strict=True):
            for key in [key for key in group if self._moves(key)]:
                del group[key]
            group.update(_copied(entries))
            on_device = group.get("fused") or group.get("capturable")
            here = {id(parameter) for parameter in group["params"]}
            for name, state in saved["state"].items():
                parameter = self.parameters[name]
                if id(parameter) in here:
                    # AdamW counts its steps on the CPU, unless one kernel does everything.
                    copied = {
                        key: _copied(value, None if key == "step" and not on_device else parameter)
                        for key, value in state.items()
                    }
                    self.optimizer.state[parameter] = copied


def _copied(value: Any, beside: Tensor | None = None) -> Any:
    """Return copies of nested tensors, on the device of ``beside`` and divided as it is."""
    if isinstance(value, Tensor):
        if beside is None:
            return value.detach().clone()
        return divided_like(value.detach().to(beside.device, copy=True), beside)
    if isinstance(value, dict):
        return {key: _copied(item, beside) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_copied(item, beside) for item in value)
    return value


class Float32Muon(torch.optim.Muon):
    """torch's Muon, but orthogonalising in float32 at least."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                update = newton_schulz(parameter.grad.lerp(average, momentum), group["ns_coefficients"], group["eps"])
                rows, columns = parameter.shape
                alike = group["adjust_lr_fn"] == "match_rms_adamw"
                scale = 0.2 * max(rows, columns) ** 0.5 if alike else max(1, rows / columns) ** 0.5
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(update.to(parameter.dtype), alpha=-lr * scale)


def newton_schulz(G: Tensor, coefficients: tuple[float, float, float], eps: float, steps: int = 5) -> Tensor:
    """Push singular values of ``G / max(||G||_F, eps)`` towards 1: ``steps`` times ``s -> a s + b s**3 + c s**5``.

    In float32 at least. With Muon's coefficients those that start above 0.003 end between 0.68 and 1.21.
    """
    a, b, c = coefficients
    tall = G.shape[0] > G.shape[1]
    X = (G.T if tall else G).to(torch.promote_types(G.dtype, torch.float32))
    X = X / X.norm().clamp(min=eps)
    for _ in range(steps):
        A = X @ X.T
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.T if tall else X


class Float64Part(Part):
    """An optimizer that works on float64 copies of parameters and gradients, brought up to date at every step.

    Parameters
    ----------
    make
        Returns the optimizer of the copies.
    parameters, names
        The real ones.

    Raises
    ------
    ResidlabError
        If the device has no float64.
    """

    def __init__(
        self,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        parameters: Sequence[Tensor],
        names: list[str],
    ) -> None:
        self.real = parameters
        if any(parameter.device.type == "mps" for parameter in parameters):
            raise ResidlabError("soap and shampoo need float64, which mps lacks: use cpu or cuda, or another optimizer")
        super().__init__(make([nn.Parameter(parameter.detach().double()) for parameter in parameters]), names)

    def step(self, number: int) -> None:
        """Update the parameters."""
        with torch.no_grad():
            for parameter, copy in zip(self.real, self.parameters.values(), strict=True):
                copy.copy_(parameter)
                copy.grad = None if parameter.grad is None else parameter.grad.double()
            self.optimizer.step()
            for parameter, copy in zip(self.real, self.parameters.values(), strict=True):
                parameter.copy_(copy)
                copy.grad = None


class ShampooPart(Float64Part):
    """Shampoo, which takes the roots of its sums only now and then: after 1, 2, 4, ... steps, then every ``frequency``.

    The library's own way of doing so makes no update at all before step ``frequency``.
    """

    def __init__(self, frequency: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.frequency = frequency

    def step(self, number: int) -> None:
        """Update the parameters."""
        early = number < self.frequency and number & (number - 1) == 0
        every = 1 if early or number % self.frequency == 0 else number + 1  # which never divides the number
        self.optimizer.preconditioning_compute_steps = every  # type: ignore[attr-defined]
        super().step(number)


class HeavyballPart(Part):
    """An optimizer of heavyball's."""

    def step(self, number: int) -> None:
        """Update the parameters, with noise that ``number`` decides."""
        utils = library("heavyball.utils")
        before, utils.compile_mode = utils.compile_mode, None
        try:
            with _own_generators(number, [parameter.device for parameter in self.parameters.values()]):
                self.optimizer.step()
        finally:
            utils.compile_mode = before

    def set_lr(self, factor: float) -> None:
        """Set the learning rates, both of each: heavyball takes a lone change for a slip and warns."""
        super().set_lr(factor)
        for group in self.optimizer.param_groups:
            if "base_lr" in group:
                group["base_lr"] = group["lr"]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes from step to step, heavyball's sets as sorted lists."""
        inner: dict[str, Any] = self.optimizer.inner_group  # type: ignore[attr-defined]
        return {**_with_sets_as(list, super().state_dict()), "inner": dict(inner)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(_with_sets_as(set, {key: value for key, value in saved.items() if key != "inner"}))
        self.optimizer.inner_group = dict(saved["inner"])  # type: ignore[attr-defined]


def _with_sets_as(kind: type[list[int]] | type[set[int]], value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: kind(sorted(item)) if key == "is_initialized" else _with_sets_as(kind, item)
            for key, item in value.items()
        }
    return value


@contextmanager
def _own_generators(seed: int, devices: list[torch.device]) -> Iterator[None]:
    """Seed the global generators of those devices, and put them back as they were."""
    indices = {device.index or 0 for device in devices if device.type == "cuda"}
    generators = [torch.default_generator, *(torch.cuda.default_generators[index] for index in sorted(indices))]
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


# --- Making them


def adamw_part(config: OptimizerConfig, assignments: list[Assignment]) -> Part:
    """Return AdamW over those parameters: matrices with the settings of matrices, the rest with theirs."""

    def settings(a: Assignment) -> tuple[bool, float, float]:
        return a.role != "matrix", -a.weight_decay, a.lr

    ordered = sorted(assignments, key=settings)
    groups = []
    for (rest, decay, lr), members in itertools.groupby(ordered, settings):
        betas, eps = (config.rest_betas, config.rest_eps) if rest else (config.betas, config.eps)
        parameters = [a.parameter for a in members]
        groups.append({"params": parameters, "lr": lr, "weight_decay": -decay, "betas": betas, "eps": eps})
    fused = {a.parameter.device.type for a in ordered} <= {"cpu", "cuda", "mps"}
    return Part(torch.optim.AdamW(groups, fused=fused), [a.name for a in ordered])


def matrix_part(config: OptimizerConfig, inside: list[Assignment]) -> Part:
    """Return the optimizer of matrices that the configuration names (not AdamW)."""
    parameters, names = [a.parameter for a in inside], [a.name for a in inside]
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    second_order = {"shampoo_beta": config.factor_beta, "precondition_frequency": config.frequency, "eps": config.eps}
    if config.kind == "muon":
        muon: dict[str, Any] = {"momentum": config.momentum, "eps": config.eps, "adjust_lr_fn": config.scale}
        on_cpu = any(parameter.device.type == "cpu" for parameter in parameters)
        return Part((Float32Muon if on_cpu else torch.optim.Muon)(parameters, **muon, **common), names)
    if config.kind == "kl-shampoo":
        ordered = sorted(inside, key=lambda a: str(a.parameter.dtype))
        groups = [
            {"params": [a.parameter for a in members], "storage_dtype": "float64" if "64" in dtype else "float32"}
            for dtype, members in itertools.groupby(ordered, lambda a: str(a.parameter.dtype))
        ]
        kl_shampoo = library("heavyball").KLShampoo(
            groups,
            betas=(config.momentum, 0.0),  # the second is not used
            max_precond_dim=config.max_dimension,
            merge_dims=False,
            consume_grad=False,
            **second_order,
            **common,
        )
        return HeavyballPart(kl_shampoo, [a.name for a in ordered])
    pytorch_optimizer = library("pytorch_optimizer")
    if config.kind == "signgd":
        sign = pytorch_optimizer.SignSGD(parameters, momentum=config.momentum, weight_decouple=True, **common)
        return Part(sign, names)
    if config.kind == "soap":
        soap = {"betas": config.betas, "max_precondition_dim": config.max_dimension, **second_order, **common}
        return Float64Part(lambda copies: pytorch_optimizer.SOAP(copies, **soap), parameters, names)
    shampoo = {"momentum": 0.0, "preconditioning_compute_steps": 1, "weight_decouple": True, "matrix_eps": config.eps}
    assert config.frequency is not None
    make = functools.partial(pytorch_optimizer.Shampoo, **shampoo, **common)
    return ShampooPart(config.frequency, make, parameters, names)
