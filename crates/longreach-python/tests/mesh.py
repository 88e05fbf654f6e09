"""Four ranks as data parallel x context parallel; run by test_mesh.py."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import longreach


def attend(cp, tensors):
    q, k, v = (cp.shard(x).requires_grad_() for x in tensors)
    out = cp.attention(q, k, v)
    out.sum().backward()
    return cp.unshard(out.detach()), cp.unshard(k.grad)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    try:
        longreach.ContextParallel(mesh, heap="1MiB")
        raise AssertionError("a mesh of two dimensions was taken")
    except longreach.Error as error:
        assert "group is a DeviceMesh of 2 dimensions ('dp', 'cp'): give one of them" in str(error)
    # Each half has data of its own.
    torch.manual_seed(mesh.get_local_rank("dp"))
    tensors = [torch.randn(1, 41, 2, 8) for _ in range(3)]
    rows = longreach.ContextParallel(mesh["cp"], heap="4MiB", timeout=60)
    assert (rows.rank, rows.size) == (mesh.get_local_rank("cp"), 2)
    columns = longreach.ContextParallel(mesh.get_group("dp"), heap="4MiB", timeout=60)
    everyone = longreach.ContextParallel(heap="4MiB", timeout=60, sharding="contiguous")
    # Ranks in an order of their own.
    turned = longreach.ContextParallel(dist.new_group([3, 1, 0, 2]), heap="4MiB", timeout=60)
    with rows.alone():
        expected = attend(rows, tensors)
    for got, want in zip(attend(rows, tensors), expected):
        assert torch.allclose(got, want, atol=1e-5)
    shared = [torch.randn(1, 41, 2, 8, generator=torch.Generator().manual_seed(7)) for _ in range(3)]
    with rows.alone():
        expected = attend(rows, shared)
    for cp in (rows, columns, everyone, turned):
        for got, want in zip(attend(cp, shared), expected):
            assert torch.allclose(got, want, atol=1e-5)
    # Two groups' calls between each other, whatever the other half does.
    if mesh.get_local_rank("dp") == 0:
        attend(rows, shared)
    print("done\n", end="")
    dist.barrier()


main()
