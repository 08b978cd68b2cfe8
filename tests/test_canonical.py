"""Any model made invariant from outside, and networks whose output lies on the image made equivariant."""

from unittest.mock import patch

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import transformers as hf
from torch import nn
from transformers.models.mask2former import modeling_mask2former

import trueshift as ts
from trueshift.canonical import canonical_origin, to_image_frame
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images, photographs

NAMED = {**hostile_images(32), **photographs(32)}
IMAGES = torch.stack([NAMED[name] for name in ("two bright pixels", "tiles that fit", "mirror", "huge", "rocket")])
STAGES = ["stage1", "stage2", "stage3", "stage4"]
SWIN = hf.SwinConfig(
    image_size=32,
    **{"patch_size": 4, "embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2},
    out_features=STAGES,
)


def vit():
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=16, num_heads=2)


def dpt():
    plain = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    neck = {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8}
    return hf.DPTForDepthEstimation(hf.DPTConfig(**plain, **neck, image_size=32, patch_size=16, readout_type="ignore"))


def segformer():
    sizes = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "sr_ratios": [2, 2, 1, 1]}
    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig(**sizes, decoder_hidden_size=8, num_labels=5))


def mask2former():
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 16}
    sizes |= {"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "dim_feedforward": 16}
    config = hf.Mask2FormerConfig(backbone_config=SWIN, num_queries=6, num_labels=5, **sizes)
    with patch.object(modeling_mask2former, "requires_backends"):  # its loss alone needs scipy
        return hf.Mask2FormerForUniversalSegmentation(config)


def unet():
    return smp.Unet("tu-mobilenetv3_small_050", encoder_weights=None, classes=5, decoder_channels=(16, 16, 8, 8, 8))


OUTPUTS = {  # which part of the output lies on the image, and at what stride
    dpt: ("predicted_depth", 1),
    segformer: ("logits", 4),
    mask2former: ("masks_queries_logits", 4),
    unet: (None, 1),
}


@pytest.mark.parametrize("make", OUTPUTS, ids=lambda make: make.__name__)
@torch.no_grad()
def test_maps_move_with_the_image(make):
    ordinary, (name, stride) = make().eval(), OUTPUTS[make]

    def maps(model):
        def forward(image):
            output = model(image) if name is None else model(pixel_values=image)[name]
            return output if output.dim() == 4 else output[:, None]

        return forward

    enlarged = ts.canonicalize(ordinary, dense="pixel")
    assert_equivariant(maps(enlarged), IMAGES, shifts=3)
    with pytest.raises(AssertionError):  # also where its maps are too small to be compared
        assert_equivariant(maps(ordinary), IMAGES, shifts=1)
    cells = ts.canonicalize(ordinary, dense=True)

    def tokens(image):
        grid = ts.TokenGrid((stride, stride), ts.origin(cells, image) % stride, (32, 32))
        return ts.Tokens(maps(cells)(image).permute(0, 2, 3, 1), grid)

    assert tokens(IMAGES).values.shape[1] == 32 // stride
    assert_equivariant(tokens, IMAGES, shifts=3)
    whole = IMAGES.roll((4, -8), (2, 3))  # by whole cells: the plain law
    assert torch.equal(maps(cells)(IMAGES[-2:]).roll((4 // stride, -8 // stride), (2, 3)), maps(cells)(whole[-2:]))


@torch.no_grad()
def test_what_has_no_place_stays_and_output_classes_are_kept():
    model = ts.canonicalize(mask2former().eval(), dense=True)
    before, after = model(pixel_values=IMAGES), model(pixel_values=IMAGES.roll((5, -3), (2, 3)))
    assert type(before).__name__ == "Mask2FormerForUniversalSegmentationOutput"
    assert torch.equal(before.class_queries_logits, after.class_queries_logits)


def test_a_guarantee_that_ended_at_a_foreign_decoder_is_restored():
    """Our backbone below smp's decoder, as README advertises it."""
    narrow = {"encoder_depth": 3, "decoder_channels": (8, 8, 8), "embed_dim": (16, 32, 64)}
    model = smp.Unet("tu-a_cvt_mini_32", encoder_weights=None, **narrow).eval()
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(model, IMAGES, shifts=2)
    assert_equivariant(ts.canonicalize(model, dense=True), IMAGES, shifts=3)


def test_maps_of_an_adapted_network():
    """In the frame that its own patch embedding chooses."""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = ts.adapt(vit(), criterion="max_norm"), nn.Conv2d(19, 4, 3, padding=1)

        def forward(self, image):  # pixels are read beside the features
            (maps,) = self.encoder.forward_intermediates(image, indices=1, intermediates_only=True)
            return self.head(torch.cat([nn.functional.interpolate(maps, scale_factor=8), image], 1))

    model = ts.canonicalize(Decoder(), dense=True).eval()
    assert_equivariant(model, IMAGES, shifts=4)
    assert torch.equal(ts.origin(model, IMAGES), ts.origin(model.model, IMAGES))


@pytest.mark.parametrize(("circular", "dense"), [("both", True), ("both", "pixel"), ("width", True)])
def test_maps_of_images_that_repeat(circular, dense):
    """The plain law, not up to a period, whatever the model says of its frame; labels of pixels too."""

    class Labels(nn.Conv2d):
        def forward(self, image):
            scores = super().forward(image)
            return scores, scores.argmax(1), scores.mean((2, 3))

    model = ts.canonicalize(Labels(3, 5, 5, padding=2), dense, circular)
    names = ("constant", "one bright row", "one bright column", "tiles that fit", "mirror")
    images = torch.stack([NAMED[name] for name in names])
    scores, labels, mean = model(images)
    for rows, columns in ((1, 0), (0, 1), (5, 9), (31, 16)):
        shift = (rows * (circular == "both"), columns)
        moved = model(images.roll(shift, (2, 3)))
        assert torch.equal(moved[0], scores.roll(shift, (2, 3)))
        assert torch.equal(moved[1], labels.roll(shift, (1, 2)))
        assert torch.equal(moved[2], mean)


class Maps(nn.Module):
    """A user's module around a network, which says nothing of its layout."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        return [self.model.forward_features(image)]


MAPS = {
    "features only": ({"features_only": True}, lambda model: model),
    "as many channels as columns": ({"num_classes": 0, "global_pool": "", "embed_dim": 4}, nn.DataParallel),
    "forward_features": ({}, Maps),
}


@pytest.mark.parametrize("dense", [True, "pixel"])
@pytest.mark.parametrize(("arguments", "around"), MAPS.values(), ids=MAPS)
@torch.no_grad()
def test_maps_with_channels_last_are_rolled_along_their_sides(dense, arguments, around):
    """As timm's Swin gives them; at these sizes channels could be taken for columns."""
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (1, 1), "num_heads": (1, 2), "embed_dim": 32}
    swin = timm.create_model("swin_tiny_patch4_window7_224", **sizes | arguments).eval()
    model, image = ts.canonicalize(around(swin), dense), photographs(32)["rocket"][None]
    offset = (8, 16) if dense is True else (5, 9)
    found, moved = model(image), model(circular_shift(image, offset, IMAGE_DIMS))
    for here, after in zip(*(each if isinstance(each, list) else [each] for each in (found, moved)), strict=True):
        assert here.shape[1] == here.shape[2]
        step = 32 // here.shape[1]
        assert torch.equal(after, circular_shift(here, (offset[0] // step, offset[1] // step), (1, 2)))


def test_points_and_boxes():
    """Of the brightest pixel, found by a function that sees one frame only."""

    class Brightest(nn.Module):
        def forward(self, image):
            place = image.mean(1).flatten(1).argmax(1)
            corner = torch.stack([place % 32, place // 32], 1)[:, None].float()
            return {"points": corner + 0.5, "boxes": torch.cat([corner - 3, corner + 6], 2)}

    def back(output, origin, size):
        fraction = origin / torch.tensor(size)
        return {
            "points": ts.move_points(output["points"], origin, size),
            "share": ts.move_points(output["points"] / 32, fraction, (1, 1)),
            "boxes": ts.move_boxes(output["boxes"], origin, size),
        }

    model, image = ts.canonicalize(Brightest(), dense=back), photographs(32)["rocket"][None]
    for shift in ((0, 0), (11, 0), (0, 30), (17, 23)):
        moved = image.roll(shift, (2, 3))
        found, expected = model(moved), Brightest()(moved)
        assert torch.equal(found["points"], expected["points"])
        torch.testing.assert_close(found["share"] * 32, expected["points"])
        assert torch.equal(found["boxes"][..., :2], expected["boxes"][..., :2] % 32)
        assert torch.equal(found["boxes"][..., 2:] - found["boxes"][..., :2], torch.full((1, 1, 2), 9.0))
    below = ts.move_points(torch.tensor([[[-1e-9, 1.0]]]), torch.tensor([[0, 0]]), (32, 32))
    assert below.tolist() == [[[0.0, 1.0]]]  # and never the size itself


def test_a_plain_vision_transformer_becomes_bit_invariant():
    assert_invariant(ts.canonicalize(vit().eval()), size=32, shifts=16)
    with pytest.raises(AssertionError, match="does not hold"):
        assert_invariant(vit().eval(), size=32, shifts=4)


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


def test_maps_of_every_kind_go_back():
    image, origin = torch.rand(2, 3, 16, 8), torch.tensor([[3, 1], [9, 6]])
    frame = circular_shift(image, origin, IMAGE_DIMS)
    finer = frame.repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = to_image_frame([frame, frame[:, 0], (frame > 0.5, finer), torch.ones(2, 5, 7)], origin, (16, 8))
    assert torch.equal(found[0], image)
    assert torch.equal(found[1], image[:, 0])
    assert torch.equal(found[2][0], image > 0.5)
    assert torch.equal(found[2][1], image.repeat_interleave(2, 2).repeat_interleave(2, 3))
    assert torch.equal(found[3], torch.ones(2, 5, 7))
    labels = torch.randint(9, (2, 1, 4, 2))
    pixels = labels.repeat_interleave(4, 2).repeat_interleave(4, 3)
    enlarged = to_image_frame(labels, origin, (16, 8), enlarge=True)
    assert torch.equal(enlarged, circular_shift(pixels, -origin, IMAGE_DIMS))


FLAT, SMALL = nn.Flatten(), torch.rand(1, 3, 8, 8)
SIDES = "needs sides that divide 8 and 8; use dense=False, or a function"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ts.canonicalize(FLAT, True)(SMALL), ValueError, r"needs \[B, D, 8, 8\] or .*use dense=False"),
        (lambda: ts.canonicalize(FLAT)(SMALL.to(torch.uint8)), TypeError, "floating-point"),
        (lambda: ts.canonicalize(FLAT)(SMALL / 0), ValueError, "NaN or infinity"),
        (lambda: ts.canonicalize(FLAT)(SMALL[:0]), ValueError, "empty batch"),
        (lambda: ts.canonicalize(FLAT, "pixels"), ValueError, r"dense 'pixels': needs one of .*'pixel'.*or a function"),
        (lambda: ts.canonicalize(FLAT)(), TypeError, "first argument, or as pixel_values"),
        *(
            (lambda dense=dense: ts.canonicalize(nn.AdaptiveAvgPool2d(3), dense)(SMALL), ValueError, SIDES)
            for dense in (True, "pixel")
        ),
    ],
)
def test_bad_input(call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call()


def test_masks_move_with_their_own_image():
    """In one tensor, or in a list of those of each image, as Mask2Former takes them; on flat images they stay."""

    class Overlap(nn.Module):
        def forward(self, image, masks):
            pairs = zip(masks, image, strict=True)
            return image, torch.stack([(each.float() * one.mean(0)).sum((1, 2))[0] for each, one in pairs])

    image = torch.rand(2, 3, 16, 16)
    model = ts.canonicalize(Overlap(), dense=True)
    for masks in ([one[:2] > 0.5 for one in image], [one[:1].repeat(3, 1, 1) > 0.5 for one in image]):
        torch.testing.assert_close(model(image, masks=masks)[1], Overlap()(image, masks)[1])
    with pytest.raises(ValueError, match=r"shape .3, 16, 16. for 2 images: needs one map for each"):
        model(image, torch.rand(3, 16, 16))

    class Both(nn.Module):
        def forward(self, image, mask):
            return image + mask[:, None]

    mask = torch.rand(1, 32, 32)
    assert torch.equal(ts.canonicalize(Both(), dense=True)(torch.zeros(1, 3, 32, 32), mask=mask)[:, 0], mask)
