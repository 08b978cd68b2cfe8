"""Attention over all tokens by a kernel: what plain code computes, and only where it may."""

import pytest
import torch
from unchecked import in_own_process

import trueshift as ts
from trueshift.ops import kernels
from trueshift.ops.nn.attention import attention

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def launches(monkeypatch):
    """How often the kernel is asked."""
    from trueshift.ops.kernels import attention as module

    calls, launch = [], module.attention
    monkeypatch.setattr(module, "attention", lambda *given: calls.append(given) or launch(*given))
    return calls


def operands(images, queries, keys, channels):
    return [torch.randn(images, length, channels, device=DEVICE) for length in (queries, keys, keys)]


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "dim"), [(1, 1, 1, 16), (197, 50, 2, 64), (65, 130, 3, 24), (40, 64, 1, 128)]
)
@torch.no_grad()
def test_attention_in_one_kernel_is_attention(queries, keys, heads, dim, launches):
    query, key, value = operands(2, queries, keys, heads * dim)
    with kernels.switched(False):
        plain = attention(query.double(), key.double(), value.double(), heads, dim**-0.5)
    with kernels.switched(True):
        fused = attention(query, key, value, heads, dim**-0.5)
    assert len(launches) == 1
    torch.testing.assert_close(fused, plain.float(), atol=3e-3 if DEVICE == "cuda" else 2e-6, rtol=1e-5)


@torch.no_grad()
def test_scores_of_any_size():
    """Large ones do not overflow, and one key far above all others is the answer."""
    query, key, value = operands(1, 70, 90, 32)
    key[:, 80] = 1e4
    query = query.abs()
    with kernels.switched(True):
        mixed = attention(query, key, value, 1, 1.0)
    torch.testing.assert_close(mixed, value[:, 80:81].expand_as(mixed), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_views_and_rows_of_a_batch():
    """Operands may be views; an image gets the same bits wherever it is in the batch."""
    query, key, value = operands(3, 33, 20, 32)
    whole = torch.cat([key, value], 2)
    key, value = whole.chunk(2, 2)
    with kernels.switched(True):
        mixed = attention(query, key, value, 2, 0.25)
        turned = attention(*(part.flip(0) for part in (query, key, value)), 2, 0.25)
    assert torch.equal(mixed.flip(0), turned)


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


@pytest.mark.usefixtures("quick_interpreter")  # overflows are looked for above, in the same kernel
@torch.no_grad()
def test_a_whole_cvt(launches, both_ways):
    sizes = {"embed_dim": (16, 32, 64), "depths": (1, 1, 1), "img_size": 16}
    model = ts.create_model("a_cvt_mini_32", num_classes=10, **sizes).eval().to(DEVICE)
    plain, fused = both_ways(model, torch.randn(2, 3, 16, 16, device=DEVICE))
    assert len(launches) == 3
    torch.testing.assert_close(fused, plain, atol=2e-2 if DEVICE == "cuda" else 1e-4, rtol=1e-3)


@pytest.mark.parametrize("way", ["new", "for everything", "not at all"])
@in_own_process
def test_tf32_in_the_newer_ways_to_ask_for_it(way):
    if way != "not at all" and hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch before 2.9 has one way
        where = torch.backends.cuda.matmul if way == "new" else torch.backends
        where.fp32_precision = "tf32"
        assert kernels.tf32_allowed()
    else:
        assert not kernels.tf32_allowed()
