"""Exact attention over sequences too long for one device, in PyTorch.

    import torch.distributed as dist, longreach

    dist.init_process_group("gloo")
    cp = longreach.ContextParallel(dist.group.WORLD, device="cpu", heap="2GiB")
    batch = cp.shard_batch(batch)
    out = cp.attention(q, k, v, causal=True)

Today it runs on CPU tensors, with the ranks as processes of one machine (Linux).
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "longreach needs PyTorch 2.6 or newer, and this Python has none: `pip install torch`, or install"
        " longreach into the environment that has it"
    ) from error

from . import functional, megatron, shmem, transformers
from ._documents import Band, Diagonal, Fixed, Sequence
from ._longreach import Error, HeapTooSmall, PeerFailed
from ._parallel import ContextParallel
from ._sdpa import context_parallel
from ._support import Support, show_versions, support_table, supports
from ._longreach import version as _version

__version__ = _version()

__all__ = [
    "Band",
    "ContextParallel",
    "Diagonal",
    "Error",
    "Fixed",
    "HeapTooSmall",
    "PeerFailed",
    "Sequence",
    "Support",
    "context_parallel",
    "functional",
    "megatron",
    "shmem",
    "show_versions",
    "support_table",
    "supports",
    "transformers",
]
