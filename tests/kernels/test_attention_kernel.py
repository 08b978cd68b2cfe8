"""Attention over all tokens by a kernel: what plain code computes, and only where it may."""

import pytest
import torch
from unchecked import in_own_process

from trueshift.ops import kernels
from trueshift.ops.nn.attention import attention

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def launches(monkeypatch):
    """How often the kernel is asked, where float32 may be multiplied in TF32."""
    calls, launch = [], kernels.attention.attention
    monkeypatch.setattr(kernels.attention, "attention", lambda *given: calls.append(given) or launch(*given))
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    yield calls
    torch.backends.cuda.matmul.allow_tf32 = before


def operands(images, queries, keys, channels):
    """Keys and values are views."""
    both = torch.randn(images, keys, 2 * channels, device=DEVICE)
    return torch.randn(images, queries, channels, device=DEVICE), *both.chunk(2, 2)


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "dim"), [(1, 1, 1, 16), (197, 50, 2, 64), (65, 130, 3, 24), (40, 64, 1, 128)]
)
@torch.no_grad()
def test_attention_in_one_kernel_is_attention(queries, keys, heads, dim, launches):
    given = operands(2, queries, keys, heads * dim)
    plain = attention(*(part.double() for part in given), heads, dim**-0.5)
    with kernels.switched(True):
        fused = attention(*given, heads, dim**-0.5)
        turned = attention(*(part.flip(0) for part in given), heads, dim**-0.5)
    assert len(launches) == 2
    torch.testing.assert_close(fused, plain.float(), atol=3e-3 if DEVICE == "cuda" else 2e-6, rtol=1e-5)
    assert torch.equal(turned.flip(0), fused)  # the same bits wherever an image is in the batch


@torch.no_grad()
def test_scores_of_any_size(launches):
    """Large ones do not overflow, and one key far above all others is the answer."""
    query, key, value = operands(1, 70, 90, 32)
    key[:, 80] = 1e4
    with kernels.switched(True):
        mixed = attention(query.abs(), key, value, 1, 1.0)
    assert launches
    torch.testing.assert_close(mixed, value[:, 80:81].expand_as(mixed), atol=1e-3, rtol=1e-3)


def test_not_where_it_may_not(launches):
    query, key, value = operands(1, 20, 10, 256)
    with kernels.switched(True):
        learned = attention(query.requires_grad_(), key, value, 2, 0.1)  # somebody may ask for a gradient
        learned.sum().backward()
        with torch.no_grad():
            attention(query, key, value, 1, 0.1)  # a head of 256 channels
            attention(query, key, value, 2, 0.1, dropped=0.5)
            attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), 2, 0.1)
            torch.backends.cuda.matmul.allow_tf32 = False  # as torch has it
            attention(query, key, value, 2, 0.1)
    assert query.grad is not None
    assert not launches


@pytest.mark.parametrize("way", ["new", "for everything", "not at all"])
@in_own_process
def test_tf32_in_the_newer_ways_to_ask_for_it(way):
    if way != "not at all" and hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch before 2.9 has one way
        where = torch.backends.cuda.matmul if way == "new" else torch.backends
        where.fp32_precision = "tf32"
        assert kernels.tf32_allowed()
    else:
        assert not kernels.tf32_allowed()
