"""What a ContextParallel does for training beside attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Union

import torch
import torch.distributed as dist

from . import _loss, _verify


class Training:
    """Loss, gradients, and whether they are right."""

    group: dist.ProcessGroup
    rank: int
    _is_alone: bool

    def loss(self, logits: torch.Tensor, shift_labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
        """Cross entropy of this rank's tokens, divided by the number of labels of all ranks. Collective.

        Its value is that of the whole batch, on every rank; its gradient is this rank's share, which `sync_gradients`
        adds up. `logits` are [..., vocabulary] and `shift_labels` [...], as `shard_batch` gives them.
        """
        return _loss.loss(self.group, logits, shift_labels, ignore_index, self._is_alone)

    def sync_gradients(self, parameters: Union[torch.nn.Module, Iterable[torch.Tensor]]) -> None:
        """Adds the gradients of a module, or of parameters, up over the group, in float32. Collective.

        DDP and FSDP over all ranks of a job, of which this group's are some, average gradients over all of them: there
        leave this out and multiply the loss by this group's `size`. Where they average over the data-parallel ranks only
        (a mesh of data x context parallel), call this before the optimizer's step.
        """
        if not self._is_alone:
            _loss.sync_gradients(self.group, parameters)

    def verify(
        self, step_fn: Callable[[Any], Any], batch: Any, *, tolerance: float = 1e-3, show: bool = True
    ) -> dict[str, float]:
        """One training step with and without context parallelism: is my gradient right? Collective.

        `step_fn(batch)` does what a training step does up to `sync_gradients`, with this ContextParallel, and returns the
        model, or a dict of tensors to compare. It is called twice, the first time with all of this object's functions
        working on the whole batch on each rank, as if there was one rank.

        Prints, on rank 0, and returns each tensor's ||with - without|| / ||without||; fails where one is above
        `tolerance`.
        """
        return _verify.verify(self, step_fn, batch, tolerance, show)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, this object's functions work on whole sequences on each rank, as if there was one rank."""
        before, self._is_alone = self._is_alone, True
        try:
            yield
        finally:
            self._is_alone = before
