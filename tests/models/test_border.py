"""A closed border: the anchored frame has an edge, as an image has for an ordinary network."""

import pytest
import torch

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
    return create_model(f"a_{name}", border="closed", num_classes=10, **more).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_do_not_change_under_circular_shifts(name):
    assert_invariant(closed(name), images(), shifts=3)


@pytest.mark.parametrize("name", FAMILIES)
def test_features_move_with_the_image(name):
    assert_equivariant(closed(name).features, images(), shifts=2)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_that_chooses_its_frame_alone_is_the_ordinary_one_in_that_frame(name):
    torch.manual_seed(0)
    ordinary = create_model(name, num_classes=10).eval()
    model = adapt(ordinary, border="closed", criterion=IN_FRAME)
    x = images()
    frame = model.patch_embed.choose(x).offset
    torch.testing.assert_close(model(x), ordinary(circular_shift(x, frame, IMAGE_DIMS)))


@pytest.mark.parametrize("name", FAMILIES)
def test_an_ordinary_network_with_an_anchor_is_exact_and_the_same_in_the_frame_found(name):
    torch.manual_seed(0)
    ordinary = create_model(name, num_classes=10).eval()
    model = create_model(name, num_classes=10, anchor=True).eval()
    model.load_state_dict(ordinary.state_dict())
    x = images()
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
    weight, bias = torch.randn(3 * x.shape[3], x.shape[3]), torch.randn(2, 16, 16)
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


def test_a_closed_border_needs_the_anchor():
    with pytest.raises(ValueError, match="needs anchor=True"):
        create_model("a_swin_mini", border="closed", anchor=False)
    with pytest.raises(ValueError, match="needs one of"):
        create_model("a_swin_mini", border="open")
