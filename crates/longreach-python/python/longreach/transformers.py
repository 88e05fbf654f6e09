"""Attention for the models of Hugging Face's `transformers`.

    longreach.transformers.register(cp)
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="longreach")
    batch = cp.shard_batch(batch)
    logits = model(**batch.inputs(), use_cache=False).logits
    loss = cp.loss(logits, batch["shift_labels"])

The model's documents are those that `cp.shard_batch` has found (padding and packed position_ids become documents); a
layer's `sliding_window` becomes a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import torch

from . import _shards
from ._documents import Sequence
from ._longreach import Error

if TYPE_CHECKING:
    from ._parallel import ContextParallel

__all__ = ["register"]

#: Positions, a side, at which a model's mask is compared with those that are known.
SAMPLES = 64


def register(cp: "ContextParallel", name: str = "longreach") -> None:
    """Makes `attn_implementation=name` mean attention over the ranks of `cp`; not collective.

    Refused by name, when they are met: dropout, softcap, attention sinks, position biases, 4-D masks, masks of the model's
    own making (chunked attention, prefixes, image blocks), KV caches and `generate`, and attention weights as output.
    Registering a name again replaces what it meant; models with different groups take different names.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise Error(
            "transformers 4.53 or newer is needed to register an attention with it, and there is none:"
            " pip install -U transformers"
        ) from error
    AttentionInterface.register(name, _attention(cp))
    AttentionMaskInterface.register(name, _masks(cp))


def _attention(cp: "ContextParallel") -> Callable[..., tuple[torch.Tensor, None]]:
    def longreach_attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Optional[torch.Tensor],
        scaling: Optional[float] = None,
        dropout: float = 0.0,
        sliding_window: Optional[int] = None,
        is_causal: Optional[bool] = None,
        position_ids: Optional[torch.Tensor] = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        _refuse(attention_mask, dropout, others)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if sliding_window is not None and not causal:
            raise Error(f"sliding_window is {sliding_window} in a layer that is not causal: that is not supported")
        # Torch's autocast leaves what rotary embeddings touch in float32.
        dtype = torch.get_autocast_dtype(query.device.type) if _autocast(query) else value.dtype
        q, k, v = (x.to(dtype) for x in (query, key, value))
        # transformers counts the token itself: it sees `sliding_window` keys.
        window = None if sliding_window is None else (sliding_window - 1, None)
        if torch.compiler.is_compiling():
            given = (None, None, None, None)
            out, _ = cp._compiled(
                q, k, v, "bhsd", "bshd", given, given, causal, window, None, scaling, position_ids
            )
            return out, None
        sequence = sequence_of(cp, position_ids, query.shape[2])
        out, _ = cp._attend(q, k, v, "bhsd", "bshd", sequence, None, causal, window, None, scaling)
        return out, None

    return longreach_attention


def _autocast(x: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


#: Arguments that models give to attention, and what is said of them.
_UNSUPPORTED = {
    "softcap": "softcap is not supported: use a model without it",
    "s_aux": "attention sinks (s_aux) are not supported: use a model without them",
    "position_bias": "position biases are not supported: use a model without them",
    "output_attentions": "attention weights (output_attentions) are never there: leave them out",
}


def _refuse(attention_mask: Any, dropout: float, others: dict[str, Any]) -> None:
    if dropout:
        raise Error(f"dropout is {dropout}: it is not supported; set the config's attention_dropout to 0")
    if attention_mask is not None:
        shape = list(getattr(attention_mask, "shape", []))
        raise Error(
            f"attention_mask has shape {shape}: give the model 2-D masks, or none; documents and padding come from"
            " cp.shard_batch"
        )
    for name, why in _UNSUPPORTED.items():
        given = others.get(name)
        if given is not None and given is not False:
            raise Error(why)


def sequence_of(cp: "ContextParallel", position_ids: Optional[torch.Tensor], rows: int) -> Sequence:
    """The sharded sequence that these are the positions of.

    Positions within documents, of all ranks together, tell a sequence's documents; so ranks that each find theirs again
    have found the same one, and where they have not, the engine's comparison of calls refuses.
    """
    if cp._is_alone:
        found = next(iter(cp._sequences), None)
        return found if found is not None and found.tokens == rows else Sequence(rows)
    for sequence in cp._sequences:
        held = cp.local_positions(sequence=sequence)
        held = held if held.ndim == 2 else held.unsqueeze(0)
        if held.shape[1] != rows:
            continue
        if position_ids is None:
            # The model keeps its positions from its attention: the last batch of as many rows is meant.
            return sequence
        given = position_ids.to(held.device)
        if (given.shape[0] == held.shape[0] or 1 in (given.shape[0], held.shape[0])) and bool((given == held).all()):
            return sequence
    raise cp._refusal(
        f"the model was given {rows} tokens with position_ids that are of no batch that cp.shard_batch gave (generate and"
        " KV caches are not supported): give it the batch's input_ids and position_ids"
    )


def _masks(cp: "ContextParallel") -> Callable[..., None]:
    from transformers.masking_utils import causal_mask_function

    def longreach_mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: Any = 0,
        mask_function: Optional[Callable[..., Any]] = None,
        attention_mask: Optional[torch.Tensor] = None,
        config: Any = None,
        **_: Any,
    ) -> None:
        """Looks at the mask that the model wants, in place of making one."""
        if q_length != kv_length or int(q_offset) or int(kv_offset):
            raise Error(
                f"{q_length} queries meet {kv_length} keys: KV caches and generate are not supported, and"
                " attention_mask must be the batch's that cp.shard_batch gave; pass use_cache=False"
            )
        if attention_mask is None:
            # Without it models take jumps in a rank's positions for packed documents.
            raise Error(
                "the model was given no attention_mask: give it the batch's, as in model(**batch.inputs());"
                " generate and KV caches are not supported"
            )
        if mask_function is not None and mask_function is not causal_mask_function:
            _check_known(mask_function, q_length, getattr(config, "sliding_window", None))
        # While a graph is traced there is nothing to compare; positions are compared when it runs.
        if not cp._is_alone and not torch.compiler.is_compiling():
            _check_padding(cp, attention_mask)

    return longreach_mask


@torch.compiler.disable
def _check_known(mask_function: Callable[..., Any], length: int, window: Optional[int]) -> None:
    """Refuses a mask of which attention is not told by other means."""
    step = max(1, length // SAMPLES)
    query, key = torch.arange(0, length, step)[:, None], torch.arange(0, length, step)[None]
    zero = torch.tensor(0)
    wanted = torch.as_tensor(mask_function(zero, zero, query, key)).cpu()
    causal = key <= query
    known = [causal, torch.ones_like(causal)] + ([] if window is None else [causal & (key > query - window)])
    if not any(torch.equal(wanted.expand_as(causal), mask) for mask in known):
        raise Error(
            "the model's mask is neither causal, full nor a sliding window, as of chunked attention, a prefix or image"
            " blocks: that is not supported"
        )


def _check_padding(cp: "ContextParallel", attention_mask: torch.Tensor) -> None:
    given = attention_mask.cpu().bool()
    for sequence in cp._sequences:
        real = _shards.real(cp, sequence)
        if real.shape[1] == given.shape[1] and bool((given == real).all()):
            return
    raise cp._refusal(
        "attention_mask is of no batch that cp.shard_batch gave: give shard_batch the whole one, and the model what comes"
        " back; generate and KV caches are not supported"
    )
