"""With fixed grids and the same weights, our networks are timm's (CvT: transformers'), in structure and in value."""

import pytest
import torch
from model_checks import broken_pairs, everything, random_shifts
from references import make_reference, weights_of
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg, checkpoint_filter_fn

import trueshift as ts
from trueshift.models.registry import FAMILIES

DEFAULT = ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "cvt_13", "mvitv2_tiny")
PAPER_SIZES = [name for family in FAMILIES for name in family.variants if "mini" not in name]
VARIANTS = [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in PAPER_SIZES]
TWO_STAGES = {"depths": (2, 2), "num_heads": (3, 6)}


def with_its_weights(name, **arguments):
    """One of our ordinary networks with the weights of its reference, and that."""
    reference = make_reference(name, **arguments)
    ours = ts.create_model(name, **arguments).eval()
    ours.load_state_dict(weights_of(reference), strict=True)
    return ours, reference


def assert_the_same(ours, reference, image):
    expected = reference(image)
    assert (ours(image) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_fixed_grids_and_the_same_weights_give_the_same_logits(name):
    ours, reference = with_its_weights(name)
    image = torch.randn(1, 3, *ours.config.size)
    assert_the_same(ours, reference, image)
    broken, _ = broken_pairs(everything(ts.adapt(ours)), image, random_shifts(image, 1))
    assert not broken


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (DEFAULT[0], {"img_size": (224, 448), "depths": (1, 1, 2, 1)}),
        (DEFAULT[0], {"img_size": (56, 56), "in_chans": 1, "depths": (1, 2), "num_heads": (3, 6)}),
        ("swinv2_tiny_window16_256", {"depths": (1, 1, 2, 2)}),
        (DEFAULT[1], {"img_size": 64, "window_size": 4, "pretrained_window_sizes": (8, 8)} | TWO_STAGES),
    ],
    ids=str,
)
@torch.no_grad()
def test_other_sizes_and_windows(name, arguments):
    ours, reference = with_its_weights(name, num_classes=11, **arguments)
    assert_the_same(ours, reference, torch.randn(2, ours.in_chans, *ours.config.size))


@torch.no_grad()
def test_mvit_at_another_size_is_timms_made_for_it():
    """timm's own raises there or reads its tables off-centre; ours interpolates them, as timm's loader does."""
    ours = ts.create_model("mvitv2_tiny", num_classes=5, depths=(1, 1, 1, 1)).eval()
    larger = MultiScaleVit(MultiScaleVitCfg(depths=(1, 1, 1, 1)), img_size=(256, 256), num_classes=5).eval()
    larger.load_state_dict(checkpoint_filter_fn(dict(ours.state_dict()), larger))
    image = torch.randn(1, 3, 256, 256)
    expected = larger(image)
    torch.testing.assert_close(ours(image), expected, rtol=1e-5, atol=1e-5)  # interpolated on the way
    ours.set_input_size(256)
    torch.testing.assert_close(ours(image), expected, rtol=1e-5, atol=1e-5)  # interpolated for good
    assert ours.config.img_size == (256, 256)


@pytest.mark.parametrize("name", DEFAULT[:2])
@torch.no_grad()
def test_set_input_size_is_timms(name):
    ours, reference = with_its_weights(name, num_classes=5, depths=(1, 2, 1, 1))
    for model in (reference, ours):
        model.set_input_size(img_size=(128, 128), window_size=(4, 4))
    mine, theirs = ({key: value.shape for key, value in model.state_dict().items()} for model in (ours, reference))
    assert mine == theirs
    image = torch.randn(1, 3, 128, 128)
    torch.testing.assert_close(ours(image), reference(image), rtol=1e-5, atol=1e-5)
