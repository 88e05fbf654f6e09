"""Attention where Megatron and TransformerEngine take theirs.

`DotProductAttention` is a module that is called as TransformerEngine's of that name, and `attn_forward_func_with_cp` a
function with TransformerEngine's keywords. Tensors are in TransformerEngine's order under context parallelism: each
sequence, or each packed document with its padding, is cut into 2 x ranks chunks of one length, and rank r holds the
chunks r and 2 x ranks - 1 - r. TransformerEngine is not needed.

What is not supported is refused by name: dropout, biases, ALiBi, FP8, softmax types but "vanilla", arbitrary masks,
inference, hierarchical groups ("a2a+p2p"). The communication types "p2p", "all_gather" and "a2a" are accepted and make no
difference: ranks fetch the rows that they need.
"""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import _call, _group
from ._longreach import Error
from ._parallel import ContextParallel
from ._te_order import batched, packed

__all__ = ["DotProductAttention", "attn_forward_func_with_cp", "use"]

_used: "weakref.WeakKeyDictionary[dist.ProcessGroup, ContextParallel]" = weakref.WeakKeyDictionary()

_COMMUNICATION = ("p2p", "all_gather", "a2a")
_MASKS = (
    "no_mask",
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
)


def use(cp: ContextParallel) -> None:
    """Makes `cp` the one that attention over its group works with. Not collective.

    A group for which nothing is used gets a ContextParallel with the usual heap when it is first set, which is collective
    over the group.
    """
    if cp.sharding != "zigzag":
        raise Error(f"sharding is {cp.sharding!r}: TransformerEngine's order of tokens is zigzag, make it with that")
    _used[cp.group] = cp


def _of(cp_group: Any, cp_comm_type: Any) -> ContextParallel:
    if isinstance(cp_group, (list, tuple)) or isinstance(cp_comm_type, (list, tuple)):
        raise Error("cp_group is a list: hierarchical context parallelism (a2a+p2p) is not supported, give one group")
    if cp_comm_type not in _COMMUNICATION:
        raise Error(f"cp_comm_type is {cp_comm_type!r}: it must be one of {', '.join(_COMMUNICATION)}")
    group = _group.resolve(cp_group)
    if group not in _used:
        use(ContextParallel(group))
    return _used[group]


def _unsupported(**given: Any) -> None:
    """Refuses each argument that is not as it would be without it."""
    for name, (value, without, why) in given.items():
        if not any(value is other or (isinstance(value, type(other)) and value == other) for other in without):
            shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
            raise Error(f"{name} is {shown}: {why}")


def _attend(
    cp: ContextParallel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qkv_format: str,
    cu_seqlens: tuple[Any, Any],
    padded: tuple[Any, Any],
    attn_mask_type: str,
    window_size: Any,
    scale: Optional[float],
) -> torch.Tensor:
    if attn_mask_type not in _MASKS:
        raise Error(f"attn_mask_type is {attn_mask_type!r}: it must be one of {', '.join(_MASKS)}")
    if qkv_format not in ("bshd", "sbhd", "thd"):
        raise Error(f"qkv_format is {qkv_format!r}: it must be bshd, sbhd or thd")
    _call.check_layout(qkv_format, query=q, key=k, value=v)
    causal = "causal" in attn_mask_type
    if qkv_format == "thd":
        queries, keys = (packed(cp.size, side, *ends) for side, ends in zip(("q", "kv"), zip(cu_seqlens, padded)))
        held = [sequence.tokens // cp.size for sequence in (queries, keys)]
    else:
        views = [_call.as_bshd(x, qkv_format).shape for x in (q, k)]
        queries, keys = (
            batched(cp.size, side, shape[1], shape[0], bounds, "padding" in attn_mask_type)
            for side, shape, bounds in zip(("q", "kv"), views, cu_seqlens)
        )
        held = [shape[1] for shape in views]
    if causal and "bottom_right" not in attn_mask_type and queries != keys:
        raise Error(
            f"attn_mask_type is {attn_mask_type!r} and keys are not as queries: the diagonal would begin top-left, which is"
            f" not supported; use {attn_mask_type}_bottom_right"
        )
    window = None if window_size is None else tuple(window_size)
    total = q.shape[0]
    if qkv_format == "thd":
        if total < held[0] or k.shape[0] < held[1]:
            raise Error(
                f"query has {total} rows and key {k.shape[0]} on this rank: cu_seqlens are of {held[0]} and {held[1]}"
            )
        # Rows beyond the last document belong to nobody.
        q, k, v = q[: held[0]], k[: held[1]], v[: held[1]]
    out, _ = cp._attend(
        q, k, v, qkv_format, qkv_format, queries, None if keys == queries else keys, causal, window, None, scale
    )
    if qkv_format == "thd" and total > held[0]:
        out = F.pad(out, (0, 0, 0, 0, 0, total - held[0]))
    return out


class DotProductAttention(torch.nn.Module):
    """Core attention, called as TransformerEngine's DotProductAttention.

    Takes this rank's [s, b, h, d] ("sbhd"), [b, s, h, d] ("bshd") or [t, h, d] ("thd") tensors, and returns the output with
    the last two dimensions as one. Arguments that it does not support must be as they are when left out.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: Optional[int] = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Optional[tuple[int, int]] = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: Optional[int] = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Optional[list[int]] = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: Optional[float] = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        **others: Any,
    ) -> None:
        super().__init__()
        _unsupported(
            attention_dropout=(attention_dropout, (0.0, 0), "dropout is not supported, give 0"),
            softmax_type=(softmax_type, ("vanilla",), "only vanilla is supported"),
            return_max_logit=(return_max_logit, (False,), "the largest score is not there, leave it out"),
            **{name: (value, (None, False), "this argument is not known") for name, value in others.items()},
        )
        self.heads = num_attention_heads // tp_size
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, attn_mask_type, window_size
        self.softmax_scale = softmax_scale
        self.cp: Optional[ContextParallel] = None
        if cp_group is not None:
            self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Optional[list[int]] = None, cp_stream: Any = None, cp_comm_type: str = "p2p"
    ) -> None:
        """Sets the group whose ranks hold the sequence. Collective over the group the first time that it is set for any
        module, unless `use` has been called; `cp_stream` is not used."""
        del cp_stream
        cp = _of(cp_group, cp_comm_type)
        ranks = dist.get_process_group_ranks(cp.group)
        if cp_global_ranks is not None and list(cp_global_ranks) != ranks:
            raise Error(f"cp_global_ranks are {list(cp_global_ranks)} and cp_group has {ranks}: give the same")
        self.cp = cp

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Any = None,
        qkv_format: Optional[str] = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        cu_seqlens_q_padded: Any = None,
        cu_seqlens_kv_padded: Any = None,
        max_seqlen_q: Optional[int] = None,
        max_seqlen_kv: Optional[int] = None,
        attn_mask_type: Optional[str] = None,
        window_size: Optional[tuple[int, int]] = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Any = None,
        alibi_slopes: Any = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: Optional[bool] = None,
        fp8_output: Optional[bool] = False,
        num_splits: Optional[int] = 1,
        **others: Any,
    ) -> torch.Tensor:
        """This rank's rows of the output, [..., heads * value_dim]. Collective over the group."""
        # Lengths and padding are told by the bounds; how a kernel is to do it, by nobody.
        del max_seqlen_q, max_seqlen_kv, fast_zero_fill, pad_between_seqs, num_splits
        if self.cp is None:
            raise Error("no group is set: call set_context_parallel_group, or give cp_group")
        _unsupported(
            attention_mask=(attention_mask, (None,), "masks are not tensors here, use attn_mask_type and cu_seqlens"),
            core_attention_bias_type=(core_attention_bias_type, ("no_bias",), "biases are not supported"),
            core_attention_bias=(core_attention_bias, (None,), "biases are not supported"),
            alibi_slopes=(alibi_slopes, (None,), "ALiBi is not supported"),
            inference_params=(inference_params, (None,), "inference with a KV cache is not supported"),
            fp8_output=(fp8_output, (False, None), "FP8 is not supported"),
            **{name: (value, (None, False), "this argument is not known") for name, value in others.items()},
        )
        form = qkv_format or self.qkv_format
        if query_layer.shape[-2] != self.heads:
            raise Error(f"query_layer has {query_layer.shape[-2]} heads and the module {self.heads}: give those of this rank")

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            assert self.cp is not None
            return _attend(
                self.cp,
                q,
                k,
                v,
                form,
                (cu_seqlens_q, cu_seqlens_kv),
                (cu_seqlens_q_padded, cu_seqlens_kv_padded),
                attn_mask_type or self.attn_mask_type,
                window_size or self.window_size,
                self.softmax_scale,
            ).flatten(-2)

        if checkpoint_core_attention:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(attend, query_layer, key_layer, value_layer, use_reentrant=False)
        return attend(query_layer, key_layer, value_layer)


def attn_forward_func_with_cp(
    is_training: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: Any = None,
    cu_seqlens_kv: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_kv: Optional[int] = None,
    cu_seqlens_q_padded: Any = None,
    cu_seqlens_kv_padded: Any = None,
    dropout_p: float = 0.0,
    cp_group: Any = None,
    cp_global_ranks: Optional[list[int]] = None,
    cp_stream: Any = None,
    cp_comm_type: str = "p2p",
    softmax_scale: Optional[float] = None,
    qkv_format: str = "bshd",
    attn_mask_type: str = "causal",
    attn_bias_type: str = "no_bias",
    attn_bias: Any = None,
    deterministic: bool = False,
    use_fused_attention: bool = False,
    window_size: Optional[tuple[int, int]] = None,
    fp8: bool = False,
    fp8_meta: Any = None,
    quantizers: Any = None,
    pad_between_seqs: bool = False,
    use_flash_attn_3: bool = False,
    softmax_type: str = "vanilla",
    softmax_offset: Any = None,
    fp8_output: bool = False,
    layer_number: int = 1,
    return_max_logit: bool = False,
    **others: Any,
) -> torch.Tensor:
    """TransformerEngine's function of that name: this rank's rows of the output, as q. Collective over the group (whose
    ContextParallel is made the first time, unless `use` has been called)."""
    # Which kernel computes it, and for what, makes no difference here.
    del is_training, max_seqlen_q, max_seqlen_kv, cp_global_ranks, cp_stream, deterministic
    del use_fused_attention, pad_between_seqs, use_flash_attn_3, layer_number
    _unsupported(
        dropout_p=(dropout_p, (0.0, 0), "dropout is not supported, give 0"),
        attn_bias_type=(attn_bias_type, ("no_bias",), "biases are not supported"),
        attn_bias=(attn_bias, (None,), "biases are not supported"),
        fp8=(fp8, (False, None), "FP8 is not supported"),
        fp8_meta=(fp8_meta, (None,), "FP8 is not supported"),
        quantizers=(quantizers, (None,), "FP8 is not supported"),
        fp8_output=(fp8_output, (False, None), "FP8 is not supported"),
        softmax_type=(softmax_type, ("vanilla",), "only vanilla is supported"),
        softmax_offset=(softmax_offset, (None,), "attention sinks are not supported"),
        return_max_logit=(return_max_logit, (False,), "the largest score is not there, leave it out"),
        **{name: (value, (None, False), "this argument is not known") for name, value in others.items()},
    )
    return _attend(
        _of(cp_group, cp_comm_type),
        q,
        k,
        v,
        qkv_format,
        (cu_seqlens_q, cu_seqlens_kv),
        (cu_seqlens_q_padded, cu_seqlens_kv_padded),
        attn_mask_type,
        window_size,
        softmax_scale,
    )
