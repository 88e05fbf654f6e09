"""One training step twice: is my gradient right?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ._longreach import Error

if TYPE_CHECKING:
    from ._training import Training


def verify(
    cp: "Training", step_fn: Callable[[Any], Any], batch: Any, tolerance: float, show: bool
) -> dict[str, float]:
    with cp.alone():
        without = _tensors(step_fn(batch))
    with_it = _tensors(step_fn(batch))
    missing = without.keys() ^ with_it.keys()
    if missing:
        raise Error(f"the two steps give different tensors: {', '.join(sorted(missing))} of one of them only")
    errors = {name: _relative(with_it[name], without[name]) for name in without}
    if show and cp.rank == 0:
        width = max((len(name) for name in errors), default=0)
        print(f"{'tensor':{width}}  relative error")
        for name, error in errors.items():
            print(f"{name:{width}}  {error:.2e}{'' if error <= tolerance else '  above ' + format(tolerance, '.0e')}")
    wrong = [name for name, error in errors.items() if not error <= tolerance]
    if wrong:
        raise Error(
            f"{len(wrong)} of {len(errors)} tensors differ by more than {tolerance:.0e} with context parallelism:"
            f" {', '.join(wrong[:5])}{', ...' if len(wrong) > 5 else ''}"
        )
    return errors


def _tensors(given: Any) -> dict[str, torch.Tensor]:
    if isinstance(given, torch.nn.Module):
        found = {name: p.grad.detach().clone() for name, p in given.named_parameters() if p.grad is not None}
        given.zero_grad(set_to_none=True)
    elif isinstance(given, dict):
        found = {name: tensor.detach().clone() for name, tensor in given.items()}
    else:
        raise Error(f"step_fn returned a {type(given).__name__}: it must return the model, or a dict of tensors")
    if not found:
        raise Error("step_fn left no gradients to compare: call backward and sync_gradients in it")
    return found


def _relative(with_it: torch.Tensor, without: torch.Tensor) -> float:
    if with_it.shape != without.shape:
        raise Error(f"a tensor is {list(with_it.shape)} with context parallelism and {list(without.shape)} without")
    reference = without.double()
    return float((with_it.double() - reference).norm() / reference.norm().clamp(min=1e-30))
