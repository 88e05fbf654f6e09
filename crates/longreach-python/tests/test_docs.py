"""What docs/pytorch.md says of numbers and names."""

import os
import re

from launch import HERE

import longreach
from longreach._longreach import Attention, Plan

DOCS = os.path.join(HERE, "..", "..", "..", "docs", "pytorch.md")


def text():
    with open(DOCS) as file:
        return file.read()


def test_the_example_of_memory():
    plan = Plan(
        Attention(131072, 131072, causal=True),
        pes=8,
        batch=1,
        q_heads=32,
        kv_heads=8,
        head_dim=128,
        value_dim=128,
        dtype="bfloat16",
        layout="zigzag",
        threads=1,
    )
    numbers = (plan.symmetric_bytes >> 20, plan.heap >> 20, plan.total_bytes >> 20, plan.stages)
    assert f"\n{numbers}\n" in text()
    assert f"\n{sum(plan.rows_fetched) / plan.ring_rows}\n" in text()


def test_names_are_there():
    names = set(re.findall(r"`longreach\.([a-zA-Z_.]+)", text()))
    assert len(names) > 8
    for name in names:
        found = longreach
        for part in name.split("."):
            found = getattr(found, part)
    for name in set(re.findall(r"`cp\.([a-z_]+)", text())):
        bases = longreach.ContextParallel.__mro__
        assert any(name in {**vars(base), **vars(base).get("__annotations__", {})} for base in bases), name
