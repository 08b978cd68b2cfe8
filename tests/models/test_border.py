"""A closed border: the anchored frame has an edge, as an image has for an ordinary network."""

import pytest
import torch
from model_checks import narrow

from trueshift import adapt, canonicalize, create_model
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.ops.nn.window_attention import window_attention
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images

FAMILIES = ["swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini"]
IN_FRAME = {"align": "fixed", "merge": "fixed", "pool": "fixed"}  # only the tokenizer chooses


def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.stack([*list(hostile_images(32).values())[::10], *torch.rand(1, 3, 32, 32)])


def closed(name: str, **more):
    torch.manual_seed(0)
    return create_model(f"a_{name}", border="closed", num_classes=10, **narrow(name), **more).eval()


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_in_the_frame_found_it_is_the_ordinary_network(name):
    """One that chooses its frame alone, and an ordinary one with an anchor, which is exact too."""
    torch.manual_seed(0)
    ordinary, x = create_model(name, num_classes=10, **narrow(name)).eval(), images()
    model = adapt(ordinary, border="closed", criterion=IN_FRAME)
    frame = model.patch_embed.choose(x).offset
    torch.testing.assert_close(model(x), ordinary(circular_shift(x, frame, IMAGE_DIMS)))
    model = create_model(name, num_classes=10, anchor=True, **narrow(name)).eval()
    model.load_state_dict(ordinary.state_dict())
    assert_invariant(model, x, shifts=2)
    torch.testing.assert_close(model(x), canonicalize(ordinary)(x))
    assert torch.equal(model.train().patch_embed(x).values, ordinary.train().patch_embed(x).values)


@pytest.mark.parametrize("name", FAMILIES)
def test_in_training_the_frame_is_the_image_s_own(name):
    model = closed(name, grid_drop_rate=1.0).train()
    offset = model.patch_embed.choose(images()).offset
    assert (offset < 2).all()
    assert (offset > 0).any()


def attend(x, start, shift, border):
    torch.manual_seed(0)
    weight, bias = 0.3 * torch.randn(3 * x.shape[3], x.shape[3]), torch.randn(2, 16, 16)
    return window_attention(x, lambda t: t @ weight.T, bias, None, start, (4, 4), shift, border, 0.0)


@pytest.mark.parametrize("shift", [(0, 0), (2, 2)])
def test_windows_do_not_reach_across_the_border(shift):
    torch.manual_seed(0)
    x = torch.randn(16, 8, 12, 8)
    start = torch.stack([torch.arange(16) // 4, torch.arange(16) % 4], 1)
    changed = x.clone()
    changed[:, :4, :] += 1  # rows at one side of the border, which wrap around into the windows of the last rows
    last = [image for image in range(16) if start[image, 0] + shift[0] not in (0, 4)]
    for border in (True, False):
        differs = (attend(changed, start, shift, border) != attend(x, start, shift, border))[last, -1].flatten(1).any(1)
        assert differs.any() != border


# -- windows that do not divide the grid -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swin", "swinv2"])
@pytest.mark.parametrize("more", [{}, {"border": "closed"}, {"criterion": "fixed", "anchor": True}], ids=str)
def test_every_multiple_of_the_coarsest_stride_is_exact(name, more):
    torch.manual_seed(0)
    model = create_model(f"a_{name}_mini", num_classes=5, depths=(2, 2), num_heads=(1, 2), embed_dim=16, **more).eval()
    assert model.size_multiple == (4, 4)
    for size in [(20, 28), (4, 12)]:
        x = torch.rand(2, 3, *size)
        x[1] = x[1].round()  # few values, many ties
        assert_invariant(model, x, shifts=2)
    assert_equivariant(model.features, x, shifts=2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [*((side, side) for side in range(224, 513, 32)), (256, 480), (480, 224)], ids=str)
@pytest.mark.parametrize("name", ["a_swin_tiny", "a_swinv2_tiny"])
def test_all_usual_sizes_are_exact(name, size):
    torch.manual_seed(0)
    model = create_model(name, img_size=size, num_classes=5, embed_dim=24, depths=(1, 1, 2, 1)).eval()
    assert model.size_multiple == (32, 32)
    x = torch.rand(1, 3, *size)
    assert_invariant(model, x, shifts=2)
    assert_equivariant(model.features, x, shifts=1)


@pytest.mark.parametrize("shift", [(0, 0), (2, 2)])
@pytest.mark.parametrize("started", [False, True])
def test_windows_at_the_end_of_a_grid_are_cut_off(shift, started):
    """Each token attends to those between the same two cuts, which the border is one of; nothing else counts."""
    torch.manual_seed(0)
    height, width, side = 9, 6, 4
    x = torch.randn(2, height, width, 8)
    start = torch.tensor([[1, 3], [0, 2]]) if started else None
    out = attend(x, start, shift, False)
    for image, row, column in [(0, 0, 0), (0, 8, 5), (1, 4, 3), (1, 8, 0)]:
        first = (start[image] if started else torch.zeros(2, dtype=torch.int64)) + torch.tensor(shift)
        near = [
            [other for other in range(length) if (other - begin) // side == (at - begin) // side]
            for at, length, begin in ((row, height, int(first[0]) % side), (column, width, int(first[1]) % side))
        ]
        changed = x.clone()
        changed[image] += 1
        for r in near[0]:
            for c in near[1]:
                changed[image, r, c] = x[image, r, c]
        assert torch.allclose(attend(changed, start, shift, False)[image, row, column], out[image, row, column])
        changed = x.clone()
        changed[image, near[0][-1], near[1][0]] += 1
        assert not torch.allclose(attend(changed, start, shift, False)[image, row, column], out[image, row, column])


def test_windows_are_cut_off_behind_an_anchor_only():
    with pytest.raises(ValueError, match=r"needs whole windows.*or anchor=True"):
        create_model("swin_mini", img_size=40)
    model = create_model("a_swin_mini", criterion={"align": "learned"}, num_classes=5).train()
    with pytest.raises(ValueError, match="learned choice of windows"):
        model(torch.rand(1, 3, 40, 40))
