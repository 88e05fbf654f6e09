"""longreach.shmem: symmetric tensors, transfers, signals, teams."""

import gc

import pytest
import torch
import torch.distributed as dist

import longreach
from longreach import shmem


@pytest.fixture(autouse=True)
def begun():
    shmem.init(timeout=60)
    yield
    shmem.finalize()
    with pytest.raises(longreach.Error, match="shmem is not initialised: call longreach.shmem.init"):
        shmem.n_pes()


def neighbours():
    me, pes = shmem.my_pe(), shmem.n_pes()
    return (me - 1) % pes, (me + 1) % pes


def test_views_name_their_own_bytes():
    x = shmem.tensor((4, 1024))
    me = shmem.my_pe()
    for i in range(4):
        x[i] = 10 * me + i
    shmem.barrier()
    peer, _ = neighbours()
    for view, expected in ((x[2], 10 * peer + 2), (x[0], 10 * peer), (x[3][512:], 10 * peer + 3)):
        dst = torch.full(view.shape, -1.0)
        assert (shmem.get(dst, view, peer).on() == expected).all()
    whole = shmem.get(torch.empty(4, 1024), x, peer).on()
    assert whole[:, 5].tolist() == [10.0 * peer + i for i in range(4)]
    nothing = torch.empty(0)
    assert shmem.get(nothing, x[0, :0], peer).on() is nothing
    with pytest.raises(longreach.Error, match="strides .*: its elements must lie side by side"):
        shmem.get(torch.empty(4), x[:, 0], peer)
    shmem.barrier()
    shmem.free_tensor(x)
    with pytest.raises(longreach.Error, match="src is not in symmetric memory, or was freed"):
        shmem.get(torch.empty(1024), x[0], peer)


def test_a_signal_brings_its_bytes():
    left, right = neighbours()
    x, ready = shmem.tensor((3, 50), torch.int64), shmem.signal()
    for turn in range(1, 20):
        mine = torch.full((50,), 100 * shmem.my_pe() + turn)
        shmem.put_signal(x[turn % 3], mine, ready, turn, pe=right)
        shmem.signal_wait(ready, turn, deadline=20)
        assert (x[turn % 3] == 100 * left + turn).all()
        shmem.barrier()
    assert shmem.signal_value(ready) == 19
    shmem.signal_set(ready, 7, pe=right)
    shmem.barrier()
    assert shmem.signal_value(ready) == 19, "signals only grow"
    with pytest.raises(longreach.Error, match="the signal is 19 after 0.05 s and was to come to 20"):
        shmem.signal_wait(ready, 20, deadline=0.05)


def test_put_and_quiet():
    left, right = neighbours()
    x = shmem.tensor((2, 3), torch.bfloat16)
    source = torch.full((3,), float(shmem.my_pe() + 1), dtype=torch.bfloat16)
    shmem.put(x[1], source, pe=right)
    shmem.quiet()
    source.zero_()
    shmem.barrier()
    assert x.tolist() == [[0.0] * 3, [left + 1.0] * 3]


def test_teams():
    pes = shmem.n_pes()
    everyone = shmem.Team(range(pes - 1, -1, -1))
    assert everyone.ranks == list(range(pes - 1, -1, -1))
    x = shmem.tensor((8,), team=everyone)
    x.fill_(shmem.my_pe())
    shmem.barrier(everyone)
    for pe in range(pes):
        assert (shmem.get(torch.empty(8), x, pe).on() == pe).all(), "PEs are numbered by the group, whatever the team"
    shmem.barrier()
    if shmem.my_pe() < 2:
        pair = shmem.Team([0, 1])
        y = shmem.tensor((8,), team=pair)
        y.fill_(shmem.my_pe() + 5)
        shmem.barrier(pair)
        other = 1 - shmem.my_pe()
        assert (shmem.get(torch.empty(8), y, other).on() == other + 5).all()
        shmem.barrier(pair)
        if pes > 2:
            with pytest.raises(longreach.Error, match=r"pe is 2: src is of the team \[0, 1\]"):
                shmem.get(torch.empty(8), y, 2)


def test_init_is_counted_and_begins_again():
    shmem.init()
    shmem.finalize()
    assert shmem.my_pe() == dist.get_rank()
    with pytest.raises(longreach.Error, match="call finalize first"):
        shmem.init(dist.new_group())
    x = shmem.tensor((4,))
    shmem.finalize()
    shmem.init()
    with pytest.raises(longreach.Error, match="not in symmetric memory"):
        shmem.get(torch.empty(4), x, 0)
    y = shmem.tensor((4,))
    y += 1
    shmem.barrier()
    assert (shmem.get(torch.empty(4), y, neighbours()[0]).on() == 1).all()
    shmem.barrier()


def test_nothing_collective_is_collected():
    if shmem.my_pe() == 0:
        # Only here: were it collective, the others would have to take part.
        gc.collect()
    x = shmem.tensor((100,))
    del x
    if shmem.my_pe() == 0:
        gc.collect()
    shmem.barrier()


def test_what_does_not_fit_is_refused():
    x = shmem.tensor((4,))
    for call, words in (
        (lambda: shmem.get(torch.empty(3), x, 0), "dst is [3] of torch.float32 and src [4]"),
        (lambda: shmem.get(torch.empty(4), x, 99), "pe is 99: there are PEs 0.."),
        (lambda: shmem.get(torch.empty(4), torch.empty(4), 0), "src is not in symmetric memory"),
        (lambda: shmem.put(torch.empty(4), x, 0), "dst is not in symmetric memory"),
        (lambda: shmem.get(torch.empty(4), x, 0, stream=1), "today shmem works on CPU tensors only"),
        (lambda: shmem.free_tensor(x[1:]), "tensor is a view of a symmetric tensor"),
    ):
        with pytest.raises(longreach.Error) as raised:
            call()
        assert words in str(raised.value)
    with pytest.raises(longreach.Error, match="size of a symmetric allocation differs between PEs"):
        shmem.tensor((4 + shmem.my_pe(),))
