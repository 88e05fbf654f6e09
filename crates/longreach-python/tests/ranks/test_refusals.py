"""Requests that are refused: the same words on every rank, and what to do."""

import os

import pytest
import torch
import torch.distributed as dist
from oracle import check, mask, near, random

import longreach
from longreach import Band, Diagonal, Error, Fixed, HeapTooSmall


def told(function):
    """The error's text, which is the same on all ranks."""
    with pytest.raises(Error) as raised:
        function()
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(raised.value))
    assert len(set(texts)) == 1, texts
    assert "\n" not in texts[0]
    return texts[0]


def test_arguments(cp):
    q = cp.shard(torch.randn(1, 12, 2, 8))
    attend = lambda *tensors, **call: lambda: cp.attention(*(tensors or (q, q, q)), **call)
    band = Band((0, 12), Fixed(0), Diagonal(1))
    for function, words in (
        (attend(layout="bhds"), "layout is 'bhds': it must be one of bshd"),
        (attend(layout="thd"), "layout thd has 3 dimensions"),
        (attend(window=3), "window is 3: it must be (left, right)"),
        (attend(window=(-2, 0)), "window is (-2, 0): its sides are whole numbers"),
        (attend(cu_seqlens=[0, 5, 3]), "cu_seqlens is [0, 5, 3]: it must begin with 0 and never decrease"),
        (attend(cu_seqlens=[]), "has no bounds"),
        (attend(cu_seqlens_padded=[0, 12]), "cu_seqlens_padded is given and cu_seqlens is not"),
        (attend(bands=[band], window=(1, 1)), "bands are the whole mask"),
        (attend(bands=[Band((0, 12), 0, Diagonal(1))]), "has the edge 0: it must be longreach.Fixed(key)"),
        (attend(q.to("meta"), q, q), "q is on meta"),
        (lambda: longreach.ContextParallel(device="cuda"), "today longreach's Python package runs on CPU tensors only"),
        (lambda: longreach.ContextParallel(heap="2 bananas"), "heap is '2 bananas': it must be bytes, or text"),
        (lambda: longreach.ContextParallel(sharding="zebra"), "zebra"),
        (lambda: longreach.ContextParallel("all"), "group is 'all': it must be a ProcessGroup"),
        (lambda: longreach.supports("teleportation"), "the support table has no feature 'teleportation': it has device"),
        (lambda: cp.local_indices(), "the sequence's length is missing"),
        (lambda: cp.shard(q, cu_seqlens=[0, 30]), "0..30 ends beyond the"),
        (lambda: cp.shard_batch({}), "the batch has no input_ids"),
    ):
        assert words in told(function)
    # None of them has hurt anybody.
    cp.attention(q, q, q)


def test_documents_that_the_tokens_were_not_sharded_by(cp):
    q = cp.shard(torch.randn(1, 48, 2, 8), cu_seqlens=[0, 20, 48])
    words = told(lambda: cp.attention(q, q, q))
    assert "was sharded with 2 documents and attention was asked for with no documents" in words
    cp.attention(q, q, q, cu_seqlens=[0, 20, 48])


def test_a_heap_that_is_too_small(engines):
    cp = longreach.ContextParallel(heap="64KiB", timeout=60)
    q, k, v, dout = random(1, 4001, 2, 2, 8)
    parts = [cp.shard(x) for x in (q, k, v)]
    with pytest.raises(HeapTooSmall) as raised:
        cp.attention(*parts)
    texts = [None] * cp.size
    dist.all_gather_object(texts, (str(raised.value), raised.value.heap))
    assert len(set(texts)) == 1
    need = raised.value.heap
    assert f"make ContextParallel with heap={need}, or call reserve()" in str(raised.value)
    # The world lives: with what the error says, or after reserve, the same call works.
    longreach.ContextParallel(heap=need, timeout=60).attention(*parts)
    before = cp.heap_bytes
    cp.reserve(4001, q_heads=2, kv_heads=2, head_dim=8, dtype=torch.float32)
    assert before < cp.heap_bytes <= need + (1 << 16)
    check(cp, q, k, v, dout, mask(4001))
    cp.close()


def shared_memory():
    """Mappings of memory that processes share, and sockets and descriptors of this one."""
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:" in line for line in maps)
    return mapped, len(os.listdir("/proc/self/fd"))


def test_steady_state_allocates_nothing_symmetric(cp):
    check(cp, *random(1, 500, 2, 1, 8), mask(500))
    before = cp.heap_bytes, shared_memory()
    assert before[1][0] > 0, "symmetric memory is seen there"
    for tokens in (5, 50, 500, 51):
        check(cp, *random(1, tokens, 2, 1, 8), mask(tokens))
    assert (cp.heap_bytes, shared_memory()) == before


def test_options_that_differ_between_ranks():
    rank = dist.get_rank()
    words = told(lambda: longreach.ContextParallel(heap=(1 + rank) << 20))
    assert words == "heap differs between ranks: rank 0 gave 1048576, rank 1 gave 2097152; all must give the same"


# Each of these ends a world, so each makes a group of its own.


def fresh(**options):
    cp = longreach.ContextParallel(dist.new_group(), heap="4MiB", timeout=20, **options)
    # A rank that fails while another one still makes its own fails that too.
    dist.barrier()
    return cp


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda q: q.double(), "elements of 64 bits"),
        (lambda q: q[:, :-1], "rows: team rank 1 holds 6 of them under layout zigzag"),
        (lambda q: q[..., :4], "head dimension"),
        (lambda q: q.bfloat16(), "all must be of one type"),
    ],
)
def test_tensors_of_one_rank(change, words):
    cp = fresh()
    q, k, v = (cp.shard(torch.randn(1, 6 * cp.size, 2, 8)) for _ in range(3))
    if cp.rank == 1:
        with pytest.raises(Error, match=words) as raised:
            cp.attention(change(q), k, v)
        assert not isinstance(raised.value, longreach.PeerFailed)
    else:
        with pytest.raises(longreach.PeerFailed, match=words) as raised:
            cp.attention(q, k, v)
        assert (raised.value.rank, raised.value.kind) == (1, "refused")
    dist.barrier()


def test_calls_that_differ_between_ranks():
    cp = fresh()
    q, k, v = (cp.shard(torch.randn(1, 24, 2, 8)) for _ in range(3))
    with pytest.raises(Error, match="scale") as raised:
        cp.attention(q, k, v, scale=1.5 if cp.rank else 0.5)
    assert "0.5" in str(raised.value) and "1.5" in str(raised.value)
    dist.barrier()


def test_a_group_goes_on_after_its_world_has_failed():
    cp = fresh()
    q, k, v, dout = random(1, 24, 2, 2, 8)
    part = cp.shard(q)
    with pytest.raises(Error):
        cp.attention(part.double() if cp.rank == 0 else part, part, part)
    with pytest.raises(Error):
        cp.attention(part, part, part)
    check(longreach.ContextParallel(cp.group, heap="4MiB", timeout=20), q, k, v, dout, mask(24))


def test_the_tolerance_fails_for_zeros_and_for_a_lost_key(cp):
    given = random(1, 40, 2, 2, 8)
    with pytest.raises(AssertionError, match="relative error"):
        check(cp, *given, mask(40) & (torch.arange(40)[None] != 39))
    with pytest.raises(AssertionError, match="relative error 1.00"):
        near(torch.zeros(3), torch.ones(3).double(), "zeros")
