"""Networks that go around along the width alone: columns as on a circle, rows as in an ordinary network."""

from itertools import product

import pytest
import timm
import torch
from model_checks import broken_pairs, column_shifts, everything, loss_and_gradients, narrow, perturb_norms
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

import trueshift as ts
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images

FAMILIES = ["a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"]
WIDE = (16, 32)


def some_images(size=WIDE, every: int = 1) -> torch.Tensor:
    """Hostile images, and one whose rows move around as its columns do: its columns look alike from different rows."""
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"}
    row, column = torch.meshgrid(*map(torch.arange, size), indexing="ij")
    diagonal = torch.rand(3, size[0], generator=torch.Generator().manual_seed(0))[:, (row + column) % size[0]]
    return torch.stack([*list(named.values())[::every], diagonal])


def shallow(name: str) -> dict[str, int | tuple[int, ...]]:
    """Narrow, and with as few blocks as show the property: of a Swin one whose windows are shifted."""
    return {**narrow(name), "depths": (2, 1, 1) if "swin" in name else (1, 1, 1)}


def one_axis(name: str, size=WIDE, **arguments):
    torch.manual_seed(0)
    sizes = {**shallow(name), "img_size": size, "num_classes": 5, "circular": "width", **arguments}
    return perturb_norms(ts.create_model(name, **sizes).eval())


def assert_unmoved(model, images: torch.Tensor, step: int = 1) -> None:
    broken, pairs = broken_pairs(everything(model), images, column_shifts(images, step))
    assert pairs == len(images) * len(range(0, images.shape[3], step))
    assert not broken


@pytest.mark.parametrize("name", FAMILIES)
def test_every_column_shift_of_hostile_images(name):
    assert_unmoved(one_axis(name), some_images(every=3))


NOT_DIVIDED = {"depths": (2, 2), "num_heads": (1, 2), "window_size": ((4, 4), (2, 4))}
OTHERWISE = [
    *product(FAMILIES, [{"size": (32, 64)}, {"border": "closed"}, {"criterion": "fixed", "anchor": True}]),
    *(("a_swin_mini", {"criterion": each}) for each in ("learned", "input_norm", "spot", {"name": "max_norm", "p": 4})),
    *(("a_swin_mini", {"size": size, **NOT_DIVIDED}) for size in ((20, 28), (28, 32), (16, 28))),
]


@pytest.mark.parametrize(("name", "arguments"), OTHERWISE, ids=str)
def test_made_otherwise(name, arguments):
    assert_unmoved(one_axis(name, **arguments), some_images(arguments.get("size", WIDE), every=9), 5)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_rows_are_ordinary(name):
    """They start at the first row of the image, and a shift of them changes the answer."""
    model, images = one_axis(name), torch.rand(2, 3, *WIDE)
    for tokens in model.features(images):
        assert not tokens.grid.origin[:, 0].any()
        assert tokens.grid.fixed_rows
    assert tokens.grid.origin[:, 1].any()
    moved = torch.cat([images.roll(rows, 2) for rows in (1, 2, 5)])
    assert ((model(moved) - model(images).repeat(3, 1)).abs().amax(1) > 1e-3).all()
    with pytest.raises(AssertionError, match="does not hold"):
        assert_invariant(model, images, shifts=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_and_half_precision(name):
    """Wherever the columns stand, loss and gradients are the same; in bf16 so are logits."""
    model, images = one_axis(name), torch.rand(3, 3, *WIDE)
    with torch.autocast("cpu", torch.bfloat16):
        assert_unmoved(model, images, 11)
    moved = ts.circular_shift(images, torch.tensor([[0, 3], [0, 16], [0, 29]]), (2, 3))
    assert all(map(torch.equal, loss_and_gradients(model, images), loss_and_gradients(model, moved)))


def test_the_mean_over_grids_leaves_rows_where_they_are():
    model = ts.mean_over_grids(one_axis("a_swin_mini"), 2).eval()
    assert model.model.patch_embed.nearby(2).tolist() == [[0, 0], [0, 1]]
    assert_invariant(model, torch.rand(2, 3, *WIDE), shifts=3, circular="width")


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_labels_of_pixels_roll_with_the_columns(name):
    torch.manual_seed(0)
    arguments = {**shallow(name), "img_size": WIDE, "channels": 8, "circular": "width"}
    net = perturb_norms(ts.UperNet(name, num_classes=3, **arguments).eval())
    images = some_images(every=6)
    labels = net(images)
    for shift in column_shifts(images):
        moved = ts.circular_shift(images, shift, (2, 3))
        assert torch.equal(net(moved), ts.circular_shift(labels, shift, (2, 3)))
    assert not torch.allclose(net(images.roll(3, 2)), labels.roll(3, 2), atol=1e-3)
    answer = net(torch.rand(1, 3, 4, 32).repeat(1, 1, 4, 1))  # which keeps its top and bottom
    assert not torch.allclose(answer[:, :, :4], answer[:, :, 4:8], atol=1e-4)


def test_any_model_from_outside():
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=WIDE, patch_size=8, depth=1, num_classes=3).eval()
    conv, images = torch.nn.Conv2d(3, 2, 3, padding=1), some_images(every=6)
    for model in (ts.canonicalize(vit, circular="width"), ts.adapt(vit, circular="width")):
        assert_invariant(model, images, shifts=3, circular="width")
        assert not ts.origin(model, images)[:, 0].any()
        with pytest.raises(AssertionError, match="does not hold"):
            assert_invariant(model, images, shifts=2)
    assert_invariant(ts.adapt(vit, circular="width", criterion="max_norm"), images, shifts=2, circular="width")
    assert_equivariant(ts.canonicalize(conv, dense=True, circular="width"), images, shifts=6, circular="width")
    assert torch.equal(ts.revert(ts.adapt(vit, circular="width"))(images), vit(images))


def test_weights_and_arguments_survive(tmp_path):
    image = torch.rand(1, 3, *WIDE)
    for name in ("a_swin_mini", "a_mvitv2_mini"):
        model = one_axis(name)
        again = ts.from_pretrained(model.save_pretrained(tmp_path / name)).eval()
        assert again.config.circular == "width"
        assert torch.equal(again(image), model(image))
        other = ts.adapt(model, circular="both").eval()  # tables become circular ones
        assert_invariant(other, image, shifts=2)
        assert_invariant(ts.adapt(other, circular="width"), image, shifts=2, circular="width")
    advice = "positions='circular' and circular='both' .*circular='width' .*create it with circular='both'"
    with pytest.raises(RuntimeError, match=advice):
        model.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="create it with circular='width'"):
        other.load_state_dict(model.state_dict())
    ordinary = MultiScaleVit(MultiScaleVitCfg(depths=(1, 1), embed_dim=(16, 32), num_heads=(1, 2)), (32, 32)).eval()
    shipped = ts.create_model("a_mvitv2_mini", pretrained=True, circular="width").eval()
    for linear in (ts.adapt(ordinary, circular="width"), shipped):
        assert_invariant(linear, torch.rand(1, 3, 32, 32), shifts=2, circular="width")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ts.create_model("a_swin_mini", circular="rows"), "circular 'rows': needs one of"),
        (lambda: ts.create_model("a_swin_mini", circular="width", anchor=False), "needs anchor=True"),
        (lambda: ts.canonicalize(torch.nn.Identity(), circular="height"), "circular 'height': needs one of"),
        (lambda: ts.AdaptiveTokenize(3, 8, circular="height"), "circular 'height': needs one of"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
