"""Maps move with the image: UperNet and FieldNet on every backbone, bit for bit; on ordinary ones not."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from foreign_models import SWIN
from model_checks import narrow, perturb_norms, random_shifts
from test_model_shift_laws import some_images
from unchecked import in_own_process

import trueshift as ts
from trueshift import CircularConv2d, FieldNet, TokenGrid, Tokens, UperNet, circular_shift
from trueshift.ops.geometry.interpolate import enlarge
from trueshift.ops.geometry.resample import resample, start_at
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_pad
from trueshift.tasks import fields, pyramid
from trueshift.tasks.fields import SplitTokens
from trueshift.tasks.pyramid import PyramidPooling, UperNetDecoder
from trueshift.testing import hostile_images, photographs

MINI = ts.list_models("a_*mini*")
THEIRS = ["transformers/swin", "transformers/swinv2"]
SMALL_SWIN = {**SWIN, "depths": [1, 2, 1], "num_heads": [1, 2, 2], "drop_path_rate": 0.0}
IMAGE, FIELD = torch.rand(1, 3, 32, 32), torch.randn(1, 2, 32, 32)


def segmenter(name, classes=5, **arguments):
    """A network that answers in milliseconds, with norms as after training."""
    sizes = {"channels": 12, "auxiliary_channels": 8, **narrow(name)}
    return perturb_norms(UperNet(name, classes, **{**sizes, **arguments})).eval()


def field_net(name, in_chans=2, *more, **arguments):
    torch.manual_seed(0)
    sizes = {**SMALL_SWIN, "kernel_size": 3} if name in THEIRS else narrow(name)
    return perturb_norms(FieldNet(name, in_chans, *more, **{**sizes, "decoder_depth": 1, **arguments})).eval()


def some_fields(size=(32, 32), channels=2, every=1):
    """Hostile images as fields of both signs; "huge" overflows a float32 norm, as in any network."""
    named = {name: image for name, image in hostile_images(size, channels).items() if name != "huge"}
    return torch.stack(list(named.values())[::every]) - 0.25


def some_inputs(make, size=(32, 32), every=1):
    return some_images(size, every=every) if make is segmenter else some_fields(size, every=every)


@torch.no_grad()
def moved_wrongly(net, x, shifts, axes=(1, 1)):
    """The share of pairs of image and shift, along some axes, that do not answer with the moved map."""
    out, wrong = net(x), []
    for offset in random_shifts(x, shifts):
        offset = offset * torch.tensor(axes)
        again = net(circular_shift(x, offset, IMAGE_DIMS))
        wrong.append((again != circular_shift(out, offset, IMAGE_DIMS)).flatten(1).any(1))
    assert out.isfinite().all()
    return torch.cat(wrong).float().mean()


both = pytest.mark.parametrize("make", [segmenter, field_net])


@both
def test_grids_are_averaged_over_logits_of_classifiers_alone(make, tmp_path):
    """A classifier that averages is a backbone like any other, and has one grid then."""
    with pytest.raises(ValueError, match="grids=4: grids are averaged over the logits of classifiers; needs grids=1"):
        make("a_swin_mini", grids=4)
    folder = ts.create_model("a_swin_mini", in_chans=2, grids=4).save_pretrained(tmp_path / "classifier")
    net = {segmenter: UperNet, field_net: FieldNet}[make](ts.from_pretrained(folder), 2)
    assert net.encoder.config.grids == 1
    again = ts.from_pretrained(net.save_pretrained(tmp_path / "dense"))
    assert torch.equal(again(FIELD), net.eval()(FIELD))


@pytest.mark.parametrize(
    ("name", "make", "given"),
    [
        *((name, segmenter, {}) for name in MINI),
        *((name, field_net, {}) for name in [*MINI, *THEIRS]),
        *((name, field_net, {"criterion": "max_norm", "residual": True}) for name in THEIRS),
    ],
)
def test_maps_move_with_the_image(name, make, given):
    assert moved_wrongly(make(name, **given), some_inputs(make), 2) == 0


@pytest.mark.parametrize(("make", "name"), [(segmenter, "mvitv2_mini"), (field_net, "swinv2_mini")])
def test_maps_of_an_ordinary_network_with_an_anchor_move_with_the_image(make, name):
    net = make(name, anchor=True)
    assert moved_wrongly(net, some_inputs(make, every=3), 2) == 0
    if make is segmenter:
        ordinary = make(name)
        ordinary.load_state_dict(net.state_dict())
        x = IMAGE.roll((7, 3), (2, 3))
        frame = net.encoder.features(x)[0].grid.origin
        seen = ordinary(circular_shift(x, frame, IMAGE_DIMS))  # the frame as the ordinary network sees it, brought back
        assert torch.equal(net(x), circular_shift(seen, -frame, IMAGE_DIMS))


@both
def test_the_ordinary_network_does_not_move_with_the_image(make):
    """So that the tests above can fail."""
    assert moved_wrongly(make("swin_mini"), some_inputs(make, every=4), 2) > 0.5


@pytest.mark.parametrize(("make", "inside", "outside"), [(segmenter, 3, 5), (field_net, 1, 1), (field_net, 2, 7)])
def test_any_channels_and_unequal_sides(make, inside, outside):
    wide = {"img_size": (32, 64)} if make is segmenter else {"in_chans": inside, "out_chans": outside}
    net = make("a_swinv2_mini", **wide)
    x = some_fields((32, 64), inside, every=6)
    assert net(x).shape == (len(x), outside, 32, 64)
    assert moved_wrongly(net, x, 2) == 0


@pytest.mark.parametrize("name", [*MINI, *THEIRS])
def test_columns_alone(name):
    net = field_net(name, circular="width")
    x = some_fields((32, 64) if name in THEIRS else (16, 32), every=2)
    assert net.circular == "width"
    assert moved_wrongly(net, x, 2, (0, 1)) == 0
    assert moved_wrongly(net, x, 2, (1, 0)) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(
    ("name", "size"), [("a_swin_tiny", 224), ("a_swinv2_tiny", 256), ("a_cvt_13", 224), ("a_mvitv2_tiny", 224)]
)
def test_the_papers_backbones_at_their_sizes(name, size, columns):
    whole = (size, size * columns)
    net = perturb_norms(UperNet(name, 11, channels=64, img_size=whole)).eval()
    for few in some_images(whole, every=3).split(4):
        assert moved_wrongly(net, few, 2) == 0


@pytest.mark.parametrize(("make", "name"), [(segmenter, "a_cvt_mini"), (field_net, "a_swin_mini")])
def test_bf16_autocast(make, name):
    with torch.autocast("cpu", torch.bfloat16):
        assert moved_wrongly(make(name), some_inputs(make, every=6), 2) == 0


# -- parts of the decoders --------------------------------------------------------------------------------------------


def held_at_the_border(x, size, circular=True, margin=0):
    """Ordinary interpolation, in place of that around the circle."""
    return circular_pad(enlarge(x, size, circular=False), (margin, margin), (margin, margin))


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        *((segmenter, part) for part in ("nothing", "interpolation", "padding", "bins")),
        *((field_net, part) for part in ("nothing", "grids", "padding")),
    ],
)
@torch.no_grad()
def test_each_part_of_the_decoder_moves_with_the_image(make, broken, monkeypatch):
    """After an anchor any decoder would be exact: here there is none, and no window that spans the last grid.

    Then all but the bins of the pooling moves with the image, as long as it goes by the grids and around the circle.
    """
    if make is segmenter:
        net = segmenter("a_swin_mini", anchor=False, bins=(1, 2, 3) if broken == "bins" else (1,))
        net.decoder.anchor.forward = lambda tokens: tokens
        images = torch.stack(list(photographs(64).values()))
    else:
        net, images = field_net("a_swin_mini", anchor=False), torch.randn(4, 2, 64, 64)
    if broken == "interpolation":
        monkeypatch.setattr(pyramid, "enlarge", held_at_the_border)
    if broken == "grids":
        monkeypatch.setattr(fields, "start_at", lambda tokens, origin: tokens)
    if broken == "padding":
        for module in list(net.decoder.modules()):
            if isinstance(module, CircularConv2d):
                module.forward = lambda x, conv=module: F.conv2d(x, conv.weight, padding=1)
            if isinstance(module, fields.ConvBlock):
                module.pad_mode = "zeros"
        if make is segmenter:
            net.decoder.fusion_block.within_margin = lambda x: net.decoder.fusion_block(x[:, :, 1:-1, 1:-1])
    out, offset = net(images), torch.randint(1, 64, (len(images), 2))
    again = net(circular_shift(images, offset, IMAGE_DIMS))
    error = (again - circular_shift(out, offset, IMAGE_DIMS)).abs().max() / out.std()
    assert (error < 1e-3) if broken == "nothing" else (error > 0.02)


@pytest.mark.parametrize("classes", [1, 21])
def test_logits_are_the_same_numbers_on_every_path(classes):
    """Without a gradient, logits are moved some classes at a time; the margin of the finest map is padded differently
    while training, when a norm would count it twice."""
    net, images = segmenter("a_swin_mini", classes), torch.rand(2, 3, 32, 32)
    with_gradient = net(images)
    with torch.no_grad():
        found = [net(images)]
        net.decoder.training = True  # the flag alone: its norms stay as they are
        found.append(net(images))
    for each in found:
        torch.testing.assert_close(each, with_gradient, rtol=1e-4, atol=1e-4)


def test_means_are_spread_around_the_circle_as_interpolation_does_inside():
    means = torch.rand(1, 2, 3, 3)
    spread = PyramidPooling(1, 2, (3,), "circular", circular=True)._spread(means, (6, 9))
    middle = F.interpolate(means.repeat(1, 1, 3, 3), (18, 27), mode="bilinear")[:, :, 6:12, 9:18]
    torch.testing.assert_close(spread, middle, rtol=1e-5, atol=1e-5)


def test_a_token_is_split_into_those_it_was_merged_from():
    """Where the skip connection's tokens are: on the same patch of the field."""
    fine = TokenGrid.of_image(torch.zeros(3, 1, 16, 24)).advance(torch.tensor([[1, 0], [0, 1], [1, 1]]), 2)
    coarse = fine.advance(torch.tensor([[1, 1], [0, 1], [1, 0]]), (2, 2))
    tokens = Tokens(torch.rand(3, *coarse.shape, 5), coarse)
    split = SplitTokens(5, 5, (2, 2))
    with torch.no_grad():
        split.expand.weight.copy_(torch.eye(5).repeat(4, 1))
        split.expand.bias.zero_()
    skip = start_at(Tokens(torch.zeros(3, *fine.shape, 5), fine), coarse.origin)
    assert torch.equal(split(tokens.values), resample(tokens, skip.grid, "nearest").values)


# -- training ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_logits_in_the_images_frame():
    net, images = segmenter("a_swin_mini"), torch.rand(3, 3, 32, 32)
    masks = torch.randint(5, (3, 32, 32)).masked_fill(torch.rand(3, 32, 32) < 0.2, -100)
    torch.testing.assert_close(net(images, masks), F.cross_entropy(net(images), masks), rtol=1e-5, atol=1e-5)


def test_the_loss_does_not_change_when_image_and_mask_move_together():
    net = segmenter("a_swin_mini", drop_rate=0.0).train()
    images, masks = torch.stack(list(photographs(32).values())), torch.randint(5, (6, 32, 32))
    still = deepcopy(net)(images, masks)
    for offset in random_shifts(images, 3):
        moved = circular_shift(images, offset, IMAGE_DIMS), circular_shift(masks, offset)
        assert torch.equal(deepcopy(net)(*moved), still)


def test_every_weight_learns_from_labels_alone():
    net, images = segmenter("a_swin_mini").train(), torch.rand(2, 3, 32, 32)
    loss = net(images, torch.full((2, 32, 32), -100))
    loss.backward()
    assert loss == 0
    assert all(weight.grad is None or weight.grad.abs().sum() == 0 for weight in net.parameters())
    net.zero_grad()
    net(images, torch.randint(5, (2, 32, 32))).backward()
    assert not [name for name, weight in net.named_parameters() if weight.grad is None]


@pytest.mark.parametrize("name", ["a_mvitv2_mini", "swinv2_mini", THEIRS[1]])
def test_every_weight_learns_fields(name):
    """The same from activations that are computed again."""
    dropped = {"grid_drop_rate": 0.5} if name in MINI else {}
    net, x = field_net(name, **dropped).train(), torch.randn(2, 2, 32, 32)
    found = []
    for enable in (False, True):
        torch.manual_seed(0)
        net.zero_grad()
        net.set_grad_checkpointing(enable)
        net(x).square().mean().backward()
        assert not [name for name, weight in net.named_parameters() if weight.grad is None]
        assert all(weight.grad.any() for weight in net.decoder.parameters())
        found.append([weight.grad.clone() for weight in net.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("adaptive", [True, False])
def test_gradients_of_the_decoder(adaptive):
    decoder = UperNetDecoder([2, 3], 2, "circular" if adaptive else "zeros", adaptive, bins=(1, 3)).eval()
    perturb_norms(decoder).double()
    fine = TokenGrid.of_image(torch.zeros(1, 1, 16, 24)).advance(torch.tensor([[1, 2]]), 4)
    coarse = fine.advance(torch.tensor([[1, 0]]), 2)
    values = [torch.rand(1, *grid.shape, dim, dtype=torch.float64) for grid, dim in ((fine, 2), (coarse, 3))]

    def decoded(*values):
        return decoder([Tokens(value, grid) for value, grid in zip(values, (fine, coarse), strict=True)]).values

    assert torch.autograd.gradcheck(decoded, tuple(value.requires_grad_() for value in values), fast_mode=True)


# -- files, errors, one compiled graph --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "given"),
    [
        (segmenter, "a_swin_mini", {"bins": (1, 2), "criterion": {"align": "fixed"}}),
        (segmenter, "mvitv2_mini", {}),
        (field_net, "a_swinv2_mini", {"out_chans": 3, "residual": False}),
        (field_net, "cvt_mini", {"residual": True}),
    ],
)
def test_saved_and_loaded(tmp_path, make, name, given):
    net = make(name, **given)
    net.pretrained_cfg["label_names"] = ["sky", "road", "car", "tree", "sign"]
    again, x = ts.from_pretrained(net.save_pretrained(tmp_path)), torch.randn(1, net.encoder.in_chans, 32, 32)
    assert type(again) is type(net)
    assert again.config == net.config
    assert again.pretrained_cfg["label_names"][1] == "road"
    assert again.encoder.config.position_mode == net.encoder.config.position_mode
    assert replace(again.encoder.config, positions=None) == net.encoder.config
    assert torch.equal(again(x), net(x))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("make", "call", "error", "message"),
    [
        (segmenter, lambda net: net(torch.rand(1, 3, 33, 32)), ValueError, "multiple"),
        (segmenter, lambda net: UperNet("a_swin_mini", 5, head_align_corners=True), ValueError, "corners"),
        (segmenter, lambda net: UperNet("a_swin_mini", 0), ValueError, "at least 1"),
        (segmenter, lambda net: UperNet("a_swin_mini", 5, bins=()), ValueError, "bins"),
        (segmenter, lambda net: UperNet(net.encoder, 5, img_size=64), TypeError, "exists takes no arguments"),
        (segmenter, lambda net: UperNet("a_swin_mini", 5, chanels=16), TypeError, "no argument 'chanels'"),
        (segmenter, lambda net: UperNet(torch.nn.Identity(), 5), TypeError, "no backbone"),
        (segmenter, lambda net: net(IMAGE, torch.zeros(1, 16, 16).long()), ValueError, "one label per pixel"),
        (field_net, lambda net: net(torch.randn(1, 2, 33, 32)), ValueError, "multiple"),
        (field_net, lambda net: net(torch.randn(1, 3, 32, 32)), ValueError, "made for 2"),
        (field_net, lambda net: net(FIELD[0].numpy()), TypeError, r"ndarray: needs a tensor \[B, 2, H, W\]"),
        (field_net, lambda net: net(FIELD * torch.nan), ValueError, "NaN or infinity"),
        (field_net, lambda net: field_net(THEIRS[0])(torch.randn(1, 2, 36, 32)), ValueError, "multiple"),
        (field_net, lambda net: FieldNet("a_swin_mini", 2, 3, residual=True), ValueError, "as many out as in"),
        (field_net, lambda net: FieldNet("a_swin_mini", 2, 0), ValueError, "at least 1"),
        (field_net, lambda net: FieldNet("a_swin_mini", kernel_size=4), ValueError, "odd"),
        (field_net, lambda net: FieldNet("a_swin_mini", residul=True), TypeError, "no argument 'residul'"),
        (field_net, lambda net: FieldNet(net.encoder, 3), ValueError, "needs the 2 of the backbone"),
        (field_net, lambda net: FieldNet(net.encoder, 2, img_size=64), TypeError, "exists takes no arguments"),
    ],
)
def test_what_does_not_fit_is_refused(make, call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call(make("a_swin_mini"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "a_mvitv2_mini"])
@both
@in_own_process
def test_one_graph(make, name):
    torch.set_num_threads(1)
    net, x = make(name), torch.randn(4, 3 if make is segmenter else 2, 32, 32)
    compiled = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-3, atol=1e-3)
    assert (moved_wrongly(compiled, x, 4) == 0) == name.startswith("a_")
    net.train()
    masks = [torch.randint(5, (len(x), 32, 32))] if make is segmenter else []
    compiled(x, *masks).square().mean().backward()
    assert all(weight.grad is not None for weight in net.parameters())
