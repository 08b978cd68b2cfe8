"""A closed border: the anchored frame has an edge, as an image has for an ordinary network."""

import pytest
import torch
from model_checks import narrow

from trueshift import adapt, canonicalize, create_model
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.ops.nn.window_attention import window_attention
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images

IN_FRAME = {"align": "fixed", "merge": "fixed", "pool": "fixed"}  # only the tokenizer chooses


@pytest.mark.parametrize("name", ["swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini"])
@torch.no_grad()
def test_in_the_frame_found_it_is_the_ordinary_network(name):
    """One that chooses its frame alone, and an ordinary one with an anchor, which is exact too."""
    x = torch.stack([*list(hostile_images(32).values())[::10], *torch.rand(1, 3, 32, 32)])
    ordinary = create_model(name, num_classes=10, **narrow(name)).eval()
    model = adapt(ordinary, border="closed", criterion=IN_FRAME)
    frame = model.patch_embed.choose(x).offset
    torch.testing.assert_close(model(x), ordinary(circular_shift(x, frame, IMAGE_DIMS)))
    offset = model.train().patch_embed.choose(x).offset  # in training the frame is the image's own
    assert (offset < 2).all()
    assert (offset > 0).any()
    model = create_model(name, num_classes=10, anchor=True, **narrow(name)).eval()
    model.load_state_dict(ordinary.state_dict())
    assert_invariant(model, x, shifts=2)
    torch.testing.assert_close(model(x), canonicalize(ordinary)(x))
    assert torch.equal(model.train().patch_embed(x).values, ordinary.train().patch_embed(x).values)


@pytest.mark.parametrize("name", ["swin", "swinv2"])
@pytest.mark.parametrize("more", [{}, {"border": "closed"}, {"criterion": "fixed", "anchor": True}], ids=str)
def test_every_multiple_of_the_coarsest_stride_is_exact(name, more):
    model = create_model(f"a_{name}_mini", num_classes=5, depths=(2, 2), num_heads=(1, 2), embed_dim=16, **more).eval()
    assert model.size_multiple == (4, 4)
    for size in [(20, 28), (4, 12)]:
        x = torch.rand(2, 3, *size)
        x[1] = x[1].round()  # few values, many ties
        assert_invariant(model, x, shifts=2)
    assert_equivariant(model.features, x, shifts=2)


@pytest.mark.parametrize("shift", [(0, 0), (2, 2)])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("height", "width", "border"), [(9, 6, False), (8, 8, True)], ids=["windows that do not fit", "closed"]
)
def test_windows_end_at_the_border(shift, started, height, width, border):
    """Each token attends to those between the same two cuts, which the border is one of; nothing else counts."""
    side, start = 4, torch.tensor([[1, 3], [0, 2]]) if started else None
    x, weight, bias = torch.randn(2, height, width, 8), 0.3 * torch.randn(24, 8), torch.randn(2, 16, 16)

    def attended(values):
        one = window_attention(values, lambda t: t @ weight.T, bias, None, start, (4, 4), shift, border, 0.0)
        return one[image, row, column]

    for image, row, column in [(0, 0, 0), (0, height - 1, width - 1), (1, 4, 3), (1, height - 1, 0)]:
        first = (start[image] if started else torch.zeros(2, dtype=torch.int64)) + torch.tensor(shift)
        rows, columns = (
            [other for other in range(length) if (other - begin) // side == (at - begin) // side]
            for at, length, begin in ((row, height, int(first[0]) % side), (column, width, int(first[1]) % side))
        )
        near = torch.zeros(height, width, 1, dtype=torch.bool)
        near[torch.tensor(rows)[:, None], torch.tensor(columns)] = True
        assert torch.allclose(attended(torch.where(near, x, x + 1)), attended(x))
        changed = x.clone()
        changed[image, rows[-1], columns[0]] += 1
        assert not torch.allclose(attended(changed), attended(x))


def test_windows_are_cut_off_behind_an_anchor_only():
    with pytest.raises(ValueError, match=r"needs whole windows.*or anchor=True"):
        create_model("swin_mini", img_size=40)
    model = create_model("a_swin_mini", criterion={"align": "learned"}, num_classes=5).train()
    with pytest.raises(ValueError, match="learned choice of windows"):
        model(torch.rand(1, 3, 40, 40))
