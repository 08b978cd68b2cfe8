"""Logits do not change and features move with the image, bit for bit, in whole models."""

from itertools import product

import pytest
import torch
from model_checks import (
    all_shifts,
    broken_pairs,
    column_shifts,
    everything,
    loss_and_gradients,
    narrow,
    perturb_norms,
    random_shifts,
)
from unchecked import in_own_process

import trueshift as ts
from trueshift.testing import hostile_images, photographs

MINI = ts.list_models("a_*mini*")
PAPER = {
    "a_swin_tiny": (224, 224),
    "a_swinv2_tiny": (256, 256),
    "a_cvt_13": (224, 224),
    "a_mvitv2_tiny": (224, 224),
    "a_swinv2_tiny_window16_256": (256, 256),  # windows span the last two stages
    "a_swin_tiny_patch4_window7_224": (224, 448),  # and here the last one, along the height only
}


def some_images(size: tuple[int, int], every: int = 1) -> torch.Tensor:
    """Hostile images and photographs; "huge" overflows a float32 norm, as in any network."""
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"}
    named |= photographs(size[0]) if size[0] == size[1] else {}
    return torch.stack(list(named.values())[::every])


def small(name: str, perturbed: bool = True, **arguments) -> ts.models.Backbone:
    """A narrow network, with norms as after training."""
    model = ts.create_model(name, **narrow(name), **arguments).eval()
    return perturb_norms(model) if perturbed else model


def assert_unmoved(model: ts.models.Backbone, images: torch.Tensor, shifts: int) -> None:
    broken, pairs = broken_pairs(everything(model), images, random_shifts(images, shifts))
    assert pairs == shifts * len(images)
    assert not broken


# in one family; in the slow run of all, with fresh norms and of hostile images, too
@pytest.mark.parametrize(
    ("name", "perturbed"),
    [("a_swin_mini", True), *(pytest.param(*each, marks=pytest.mark.slow) for each in product(MINI, (False, True)))],
)
def test_every_shift(name, perturbed, request):
    slow = request.node.get_closest_marker("slow")
    for image in (photographs(32)["coffee"], *(some_images((32, 32), every=4) if slow else ())):
        copies = image.expand(64, -1, -1, -1)
        broken, pairs = broken_pairs(everything(small(name, perturbed)), copies, all_shifts(copies))
        assert pairs == 1024
        assert not broken


@pytest.mark.parametrize("name", MINI)
@pytest.mark.parametrize("perturbed", [False, True])
def test_hostile_images(name, perturbed):
    assert_unmoved(small(name, perturbed), some_images((32, 32)), 3)


@pytest.mark.slow  # test_same_as_reference moves one image of each
@pytest.mark.parametrize(("name", "size"), PAPER.items())
def test_the_papers_sizes_over_200_pairs(name, size):
    """Fresh norms are tried above: what they tie does not depend on the size."""
    model, images = ts.create_model(name, img_size=size).eval(), some_images(size)
    assert 5 * len(images) >= 200
    assert_unmoved(perturb_norms(model), images, 5)


@pytest.mark.parametrize("name", MINI)
def test_rectangular_images_and_bf16_autocast(name):
    assert_unmoved(small(name, img_size=(32, 64)), some_images((32, 64), every=5), 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert_unmoved(small(name), some_images((32, 32), every=4), 2)


OTHERWISE = [
    {"border": "closed"},
    {"criterion": "spot", "border": "closed"},
    {"criterion": "learned"},
    {"criterion": {"tokenize": "fixed"}, "anchor": True},
    {"criterion": "fixed", "anchor": True, "border": "circular"},
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *product(MINI, OTHERWISE),
        ("a_swin_mini", {"criterion": ts.MaxNorm(float("inf"))}),
        ("a_mvitv2_mini", {"criterion": {"merge": "input_norm"}}),
        ("a_cvt_mini", {"cls_token": (False,) * 3}),
        ("a_cvt_mini", {"cls_token": (True,) * 3, "global_pool": "avg"}),
    ],
    ids=str,
)
def test_made_otherwise(name, arguments):
    assert_unmoved(small(name, **arguments), some_images((32, 32), every=6), 2)


@pytest.mark.parametrize("name", MINI)
def test_training_mode_and_gradients(name):
    """The loss and the gradient of every weight are the same wherever the images of a batch are."""
    model, images = small(name), some_images((32, 32), every=9)
    before = loss_and_gradients(model, images)
    moved = ts.circular_shift(images, next(random_shifts(images, 1)), (2, 3))
    for a, b in zip(before, loss_and_gradients(model, moved), strict=True):
        assert torch.equal(a, b)
    assert sum(bool(grad.any()) for grad in before[1:]) > 0.9 * len(before)  # a bias of keys has none
    learned = small(name, criterion="learned").train()  # whose choices are soft in training, and not exact
    learned(images).sum().backward()
    assert all(parameter.grad is not None for parameter in learned.parameters())


@pytest.mark.parametrize("name", MINI)
@torch.no_grad()
def test_without_the_anchor_choices_agree_where_they_are_clear(name):
    """Then logits agree to rounding. Where a choice was closer than 1e-5 it may differ."""
    model = small(name, anchor=False)
    images = some_images((32, 32), every=2)
    before = ts.explain(model, images)
    clear = torch.stack([(d.margin > 1e-5) & ~d.tied for d in before.decisions]).all(0)
    assert clear.sum() >= 4
    logits = model(images)
    for shift in random_shifts(images, 2):
        moved = ts.circular_shift(images, shift, (2, 3))
        after = ts.explain(model, moved)
        # without an anchor any token, and any window, may come first
        for old, new in zip(before.grids + before.windows, after.grids + after.windows, strict=True):
            if old is not None:
                away = (old.origin - shift - new.origin) % torch.tensor(old.stride)
                assert not away[clear].any()
        difference = (model(moved) - logits).abs().amax(1)
        assert (difference[clear] <= 1e-5 * logits.abs().amax(1)[clear]).all()


@pytest.mark.parametrize("name", MINI)
@torch.no_grad()
def test_the_ordinary_network_fails_the_same_checks(name):
    model = small(name.removeprefix("a_"))
    image = photographs(32)["coffee"][None]
    broken, _ = broken_pairs(everything(model), image, random_shifts(image, 4))
    assert len({pair.shift for pair in broken if pair.what == "logits"}) == 4
    assert {pair.what for pair in broken} >= {"logits", "values of stage 0", "origins"}


# -- in one compiled graph --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "circular"), [*((name, "both") for name in MINI), ("a_swin_mini", "width")])
@in_own_process
@torch.no_grad()
def test_one_graph(name, circular):
    torch.set_num_threads(1)
    model, images = small(name, circular=circular), some_images((32, 32), every=4)
    compiled = torch.compile(everything(model), fullgraph=True)
    shifts = random_shifts(images, 4) if circular == "both" else column_shifts(images, 9)
    broken, _ = broken_pairs(compiled, images, shifts)
    assert not broken
    photos = torch.stack(list(photographs(32).values()) * 2)
    torch.testing.assert_close(compiled(photos)[0], model(photos), rtol=1e-3, atol=1e-3)
