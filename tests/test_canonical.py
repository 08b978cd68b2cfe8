"""Any model, made invariant from outside."""

import jaxtyping
import pytest
import timm
import torch
from torch import nn

import trueshift as ts
from trueshift.canonical import canonical_origin
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.testing import assert_equivariant, assert_invariant, photographs


def test_a_plain_vision_transformer_becomes_bit_invariant():
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10).eval()
    with pytest.raises(AssertionError, match="does not hold"):
        assert_invariant(plain, size=32, shifts=4)
    assert_invariant(ts.canonicalize(plain), size=32, shifts=16)


def test_dense_output_moves_with_the_image():
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 1)).eval()
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(plain, size=16, shifts=4)
    assert_equivariant(ts.canonicalize(plain, dense=True), size=16, shifts=6)


def test_every_part_of_a_structured_output_is_rolled_back():
    class Two(nn.Module):
        def forward(self, image, scale):
            return {"mask": image * scale, "parts": [image + 1, "label"]}

    image = torch.rand(2, 3, 8, 8)
    out = ts.canonicalize(Two(), dense=True)(image, scale=2)
    assert torch.equal(out["mask"], image * 2)
    assert torch.equal(out["parts"][0], image + 1)
    assert out["parts"][1] == "label"


def test_the_frame_is_usually_the_photograph_as_taken():
    photos = torch.stack(list(photographs(96).values()))
    model = ts.canonicalize(nn.Identity())
    kept = sum(
        int((model(circular_shift(photos, torch.randint(96, (6, 2)), IMAGE_DIMS)) == photos).flatten(1).all(1).sum())
        for _ in range(10)
    )
    assert kept >= 40  # of 60


def test_gradients_and_weights_pass_through():
    conv = nn.Conv2d(3, 4, 3)
    model = ts.canonicalize(conv)
    image = torch.rand(2, 3, 8, 8, requires_grad=True)
    model(image).square().sum().backward()
    first = image.grad.clone(), conv.weight.grad.clone()
    offset = torch.tensor([[3, 5], [1, 0]])
    moved = circular_shift(image.detach(), offset, IMAGE_DIMS).requires_grad_()
    conv.zero_grad()
    model(moved).square().sum().backward()
    assert torch.equal(circular_shift(moved.grad, -offset, IMAGE_DIMS), first[0])
    assert torch.equal(conv.weight.grad, first[1])
    assert canonical_origin(moved).requires_grad is False


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(torch.rand(1, 3, 8, 8)), ValueError, r"needs \[B, D, 8, 8\] or .*use dense=False"),
        (lambda m: m(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)), TypeError, "floating-point"),
        (lambda m: m(torch.full((1, 3, 8, 8), float("nan"))), ValueError, "NaN or infinity"),
        (lambda m: m(torch.rand(0, 3, 8, 8)), ValueError, "empty batch"),
    ],
)
def test_bad_input(call, error, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        call(ts.canonicalize(nn.Flatten(), dense=True))
