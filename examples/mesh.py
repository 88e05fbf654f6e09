"""Data x context x tensor parallelism on a mesh of ranks.

    torchrun --nproc-per-node 8 examples/mesh.py --cp 2 --tp 2

Each of the `dp` groups has a batch of its own; its tokens are spread over `cp` ranks, and the heads over `tp` ranks. What
comes out is compared with one process that computes everything.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import longreach

HEADS, DIM, WIDTH, WORDS, TOKENS = 4, 8, 32, 53, 301


class Fork(torch.autograd.Function):
    """What all tensor-parallel ranks take in: its gradient is what each of them adds."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return reduced(grad, ctx.group), None


class Layer(torch.nn.Module):
    """An attention layer of which each rank has some heads, between embeddings that all have."""

    def __init__(self, cp, tp):
        super().__init__()
        self.cp, self.tp = cp, tp
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        whole = [torch.randn(WIDTH, HEADS, 3 * DIM) / WIDTH**0.5, torch.randn(HEADS, DIM, WIDTH) / WIDTH**0.5]
        rank, ranks = (0, 1) if tp is None else (dist.get_rank(tp), dist.get_world_size(tp))
        mine = slice(rank * HEADS // ranks, (rank + 1) * HEADS // ranks)
        self.qkv = torch.nn.Parameter(whole[0][:, mine].clone())
        self.out = torch.nn.Parameter(whole[1][mine].clone())

    def forward(self, batch):
        x = self.embed(batch["input_ids"])
        forked = x if self.tp is None else Fork.apply(x, self.tp)
        q, k, v = torch.einsum("bsw,whd->bshd", forked, self.qkv).chunk(3, dim=-1)
        attended = self.cp.attention(q, k, v, sequence=batch.sequence)
        y = torch.einsum("bshd,hdw->bsw", attended, self.out)
        if self.tp is not None:
            # Each rank has added up its own heads only. Its gradient is the same on all ranks.
            y = y + (reduced(y.detach(), self.tp) - y.detach())
        return (x + y) @ self.embed.weight.T


def reduced(x, group):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


def step(model, whole):
    batch = model.cp.shard_batch(whole)
    loss = model.cp.loss(model(batch), batch["shift_labels"])
    loss.backward()
    # Over the ranks that hold the sequence: sums, since the loss is divided by all of its tokens.
    model.cp.sync_gradients(model)
    return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cp", type=int, default=2, help="ranks that a sequence is spread over")
    parser.add_argument("--tp", type=int, default=2, help="ranks that the heads are spread over")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    dp = dist.get_world_size() // (options.cp * options.tp)
    mesh = init_device_mesh("cpu", (dp, options.cp, options.tp), mesh_dim_names=("dp", "cp", "tp"))
    # Collective over each group of ranks that hold a sequence together.
    cp = longreach.ContextParallel(mesh["cp"], heap="16MiB")
    model = Layer(cp, mesh.get_group("tp"))

    batches = torch.randint(0, WORDS, (dp, 1, TOKENS), generator=torch.Generator().manual_seed(1))
    loss = step(model, {"input_ids": batches[mesh.get_local_rank("dp")]})
    # Over the batches: means, as DDP makes them.
    for parameter in model.parameters():
        parameter.grad = reduced(parameter.grad, mesh.get_group("dp")) / dp
    loss = reduced(loss, mesh.get_group("dp")) / dp

    alone = Layer(cp, None)
    with cp.alone():
        expected = sum(step(alone, {"input_ids": batch}) for batch in batches) / dp
    mine = slice(mesh.get_local_rank("tp") * HEADS // options.tp, (mesh.get_local_rank("tp") + 1) * HEADS // options.tp)
    pairs = {
        "embed": (model.embed.weight.grad, alone.embed.weight.grad / dp),
        "qkv": (model.qkv.grad, alone.qkv.grad[:, mine] / dp),
        "out": (model.out.grad, alone.out.grad[mine] / dp),
    }
    assert abs(float(loss - expected)) <= 1e-5 * float(expected), (loss, expected)
    for name, (got, right) in pairs.items():
        assert (got - right).norm() <= 1e-5 * right.norm(), name
    if dist.get_rank() == 0:
        print(f"{dp} x {options.cp} x {options.tp} ranks: loss {loss:.4f}, gradients as of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
