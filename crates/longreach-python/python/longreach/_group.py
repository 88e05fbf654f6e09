"""Process groups: who is in them, and the small things that they exchange."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._longreach import Error


def resolve(group: Any) -> dist.ProcessGroup:
    """The process group that `group` is: one itself, a DeviceMesh of one dimension, or None for all ranks."""
    if not dist.is_available() or not dist.is_initialized():
        raise Error(
            "torch.distributed is not initialised: call torch.distributed.init_process_group first"
            " (under torchrun it needs no arguments)"
        )
    if group is None:
        group = dist.group.WORLD
    if hasattr(group, "mesh_dim_names") and hasattr(group, "get_group"):
        if group.ndim != 1:
            names = group.mesh_dim_names
            example = names[-1] if names else "cp"
            raise Error(
                f"group is a DeviceMesh of {group.ndim} dimensions {names}: give one of them, as mesh[{example!r}]"
            )
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise Error(
            f"group is {group!r}: it must be a ProcessGroup that this rank is in, or a DeviceMesh of one dimension"
        )
    return group


def gather(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    """What every rank of the group gives, in rank order. Collective over the group."""
    given: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(given, mine, group=group)
    return given


def numbers(group: dist.ProcessGroup, mine: list[int]) -> list[list[int]]:
    """As `gather`, of a few whole numbers, as many on each rank."""
    device = _device(group)
    own = torch.tensor(mine, dtype=torch.int64, device=device)
    all_of_them = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, own, group=group)
    return [given.tolist() for given in all_of_them]


def _device(group: dist.ProcessGroup) -> torch.device:
    backends = dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if backends == "nccl" else torch.device("cpu")
