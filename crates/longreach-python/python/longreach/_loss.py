"""What training needs beside attention: the loss over all ranks' tokens, and gradients over all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ._longreach import Error

#: Elements that are summed at once.
BUCKET = 1 << 24


def loss(
    group: dist.ProcessGroup, logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, alone: bool
) -> torch.Tensor:
    if logits.shape[:-1] != labels.shape:
        raise Error(
            f"logits are {list(logits.shape)} and the shifted labels {list(labels.shape)}: labels must be of the"
            " logits' shape without its last dimension"
        )
    flat = logits.reshape(-1, logits.shape[-1]).float()
    # A rank may have no label at all; the sum is then 0 and still has a graph.
    own = F.cross_entropy(flat, labels.reshape(-1), ignore_index=ignore_index, reduction="sum")
    count = (labels != ignore_index).sum()
    total = torch.stack([own.detach().double(), count.double()])
    if not alone:
        dist.all_reduce(total, group=group)
    whole, count = total.unbind()
    share = own / count.clamp(min=1).to(own.dtype)
    # The value is that of all ranks; the gradient is this rank's share, which sync_gradients adds up.
    return share + ((whole / count.clamp(min=1)).to(share.dtype) - share.detach())


def sync_gradients(group: dist.ProcessGroup, parameters: Union[torch.nn.Module, Iterable[torch.Tensor]]) -> None:
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    wanted = [p for p in parameters if p.requires_grad]
    if not wanted:
        return
    # A rank may have no gradient where others have one: it then has zeros.
    has = torch.tensor([p.grad is not None for p in wanted], dtype=torch.int32, device=wanted[0].device)
    dist.all_reduce(has, op=dist.ReduceOp.MAX, group=group)
    bucket: list[torch.Tensor] = []
    for parameter, some in zip(wanted, has.tolist()):
        if not some:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        if sum(grad.numel() for grad in bucket) >= BUCKET:
            _sum(group, bucket)
            bucket = []
    _sum(group, bucket)


def _sum(group: dist.ProcessGroup, grads: list[torch.Tensor]) -> None:
    if not grads:
        return
    # Summed in float32 and rounded once, whatever the gradients are kept in.
    flat = torch.cat([grad.reshape(-1).float() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))
