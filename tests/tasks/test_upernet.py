"""Labels move with the image: UperNet on every backbone, bit for bit; and on ordinary ones it is the usual UperNet."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from model_checks import narrow, perturb_norms, random_shifts
from test_model_shift_laws import some_images

import trueshift as ts
from trueshift import CircularConv2d, UperNet, circular_shift
from trueshift.ops.geometry.grid import Tokens
from trueshift.ops.geometry.interpolate import enlarge
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_pad
from trueshift.tasks import pyramid
from trueshift.tasks.pyramid import PyramidPooling, UperNetDecoder
from trueshift.testing import photographs

MINI = ts.list_models("a_*mini*")
IMAGE = torch.rand(1, 3, 32, 32)
PAPER = {"a_swin_tiny": 224, "a_swinv2_tiny": 256, "a_cvt_13": 224, "a_mvitv2_tiny": 224}


def small(name, classes=5, **arguments):
    """A network that answers in milliseconds, with norms as after training."""
    sizes = {"channels": 12, "auxiliary_channels": 8, **narrow(name)}
    return perturb_norms(UperNet(name, classes, **{**sizes, **arguments})).eval()


@torch.no_grad()
def moved_wrongly(net, images, shifts):
    """The share of pairs of image and shift that do not answer with the moved logits."""
    logits, wrong = net(images), []
    for offset in random_shifts(images, shifts):
        again = net(circular_shift(images, offset, IMAGE_DIMS))
        wrong.append((again != circular_shift(logits, offset, IMAGE_DIMS)).flatten(1).any(1))
    assert logits.isfinite().all()
    return torch.cat(wrong).float().mean()


@pytest.mark.parametrize("name", MINI)
def test_logits_move_with_the_image(name):
    assert moved_wrongly(small(name), some_images((32, 32)), 2) == 0


@pytest.mark.parametrize("name", ["swin_mini", "mvitv2_mini"])
def test_logits_of_an_ordinary_network_with_an_anchor_move_with_the_image(name):
    net = small(name, anchor=True)
    assert moved_wrongly(net, some_images((32, 32), every=3), 2) == 0
    ordinary = small(name)
    ordinary.load_state_dict(net.state_dict())
    x = IMAGE.roll((7, 3), (2, 3))
    frame = net.encoder.features(x)[0].grid.origin
    seen = ordinary(circular_shift(x, frame, IMAGE_DIMS))  # the frame as the ordinary network sees it, brought back
    assert torch.equal(net(x), circular_shift(seen, -frame, IMAGE_DIMS))


def test_logits_of_wide_images_move_with_them():
    assert moved_wrongly(small("a_swin_mini", img_size=(32, 64)), some_images((32, 64), every=6), 2) == 0


@pytest.mark.parametrize(("name", "dims"), [("a_swin_tiny", 24), ("a_mvitv2_tiny", (24, 48, 96, 192))])
def test_two_of_the_papers_backbones(name, dims):
    """A quarter of their channels; as they are at all their sizes in the slow test below."""
    net = perturb_norms(UperNet(name, 11, channels=16, embed_dim=dims)).eval()
    assert moved_wrongly(net, some_images((224, 224), every=30), 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize(("name", "size"), PAPER.items())
def test_the_papers_backbones_at_their_sizes(name, size, shape):
    """224 and 448 (SwinV2: 256 and 512), and twice as wide as high."""
    whole = (size * shape[0], size * shape[1])
    net = perturb_norms(UperNet(name, 11, channels=64, img_size=whole)).eval()
    for few in some_images(whole, every=3 if whole[0] == size else 8).split(4):
        assert moved_wrongly(net, few, 2) == 0


def test_the_ordinary_network_does_not_move_with_the_image():
    """So that the tests above can fail."""
    assert moved_wrongly(small("swin_mini"), some_images((32, 32), every=4), 2) > 0.5


def held_at_the_border(x, size, circular=True, margin=0):
    """Ordinary interpolation, in place of that around the circle."""
    return circular_pad(enlarge(x, size, circular=False), (margin, margin), (margin, margin))


@pytest.mark.parametrize("broken", ["nothing", "interpolation", "padding", "bins"])
@torch.no_grad()
def test_each_part_of_the_decoder_moves_with_the_image(broken, monkeypatch):
    """Behind an anchor any decoder would be exact: here there is none, and no window that spans the last grid.

    Then all but the bins of the pooling moves with the image, as long as it goes around the circle.
    """
    net = small("a_swin_mini", anchor=False, bins=(1, 2, 3) if broken == "bins" else (1,))
    net.decoder.anchor.forward = lambda tokens: tokens
    images = torch.stack(list(photographs(64).values()))
    if broken == "interpolation":
        monkeypatch.setattr(pyramid, "enlarge", held_at_the_border)
    if broken == "padding":
        for module in list(net.decoder.modules()):
            if isinstance(module, CircularConv2d):
                module.forward = lambda x, conv=module: F.conv2d(x, conv.weight, padding=1)
        net.decoder.fusion_block.within_margin = lambda x: net.decoder.fusion_block(x[:, :, 1:-1, 1:-1])
    logits, offset = net(images), torch.randint(1, 64, (len(images), 2))
    again = net(circular_shift(images, offset, IMAGE_DIMS))
    error = (again - circular_shift(logits, offset, IMAGE_DIMS)).abs().max() / logits.std()
    assert (error < 1e-3) if broken == "nothing" else (error > 0.02)


def test_without_the_anchor_of_the_tokenizer_it_holds_to_rounding():
    net, images = small("a_swin_mini", anchor=False), torch.stack(list(photographs(32).values()))
    with torch.no_grad():
        logits = net(images)
        for offset in random_shifts(images, 4):
            again = net(circular_shift(images, offset, IMAGE_DIMS))
            torch.testing.assert_close(again, circular_shift(logits, offset, IMAGE_DIMS), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["a_swin_mini", pytest.param("a_cvt_mini", marks=pytest.mark.slow)])
def test_bf16_autocast(name):
    with torch.autocast("cpu", torch.bfloat16):
        assert moved_wrongly(small(name), some_images((32, 32), every=6), 2) == 0


def test_logits_with_and_without_gradient_are_the_same_numbers():
    """Without one, logits are moved some classes at a time."""
    for classes in (1, 21):
        net, images = small("a_swin_mini", classes), torch.rand(2, 3, 32, 32)
        with torch.no_grad():
            plain = net(images)
        torch.testing.assert_close(plain, net(images).detach(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_margin_of_the_finest_map_is_the_same_both_ways():
    """While training it is a copy of the border; otherwise it comes out of a wider one."""
    net, images = small("a_swin_mini"), torch.rand(2, 3, 32, 32)
    wider = net.in_own_frame(images)[0]
    net.decoder.training = True  # the flag alone: its norms stay as they are
    torch.testing.assert_close(net.in_own_frame(images)[0], wider, rtol=1e-4, atol=1e-4)


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_logits_in_the_images_frame():
    net, images = small("a_swin_mini"), torch.rand(3, 3, 32, 32)
    masks = torch.randint(5, (3, 32, 32)).masked_fill(torch.rand(3, 32, 32) < 0.2, -100)
    torch.testing.assert_close(net(images, masks), F.cross_entropy(net(images), masks), rtol=1e-5, atol=1e-5)


def test_the_loss_does_not_change_when_image_and_mask_move_together():
    net = small("a_swin_mini", drop_rate=0.0).train()
    images, masks = torch.stack(list(photographs(32).values())), torch.randint(5, (6, 32, 32))
    still = deepcopy(net)(images, masks)
    for offset in random_shifts(images, 3):
        moved = circular_shift(images, offset, IMAGE_DIMS), circular_shift(masks, offset)
        assert torch.equal(deepcopy(net)(*moved), still)


def test_every_weight_learns_from_labels_alone():
    net, images = small("a_swin_mini").train(), torch.rand(2, 3, 32, 32)
    loss = net(images, torch.full((2, 32, 32), -100))
    loss.backward()
    assert loss == 0
    assert all(weight.grad is None or weight.grad.abs().sum() == 0 for weight in net.parameters())
    net.zero_grad()
    net(images, torch.randint(5, (2, 32, 32))).backward()
    assert not [name for name, weight in net.named_parameters() if weight.grad is None]


@pytest.mark.parametrize("adaptive", [True, False])
def test_gradients_of_the_decoder(adaptive):
    torch.set_default_dtype(torch.float64)
    try:
        decoder = UperNetDecoder([2, 3], 2, "circular" if adaptive else "zeros", adaptive, bins=(1, 3)).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    perturb_norms(decoder)
    image = torch.zeros(1, 1, 16, 24)
    fine = Tokens.of_image(image).grid.advance(torch.tensor([[1, 2]]), 4)
    coarse = fine.advance(torch.tensor([[1, 0]]), 2)
    values = [torch.rand(1, *grid.shape, dim, dtype=torch.float64) for grid, dim in ((fine, 2), (coarse, 3))]

    def decoded(*values):
        levels = [Tokens(value, grid) for value, grid in zip(values, (fine, coarse), strict=True)]
        return decoder(levels).values

    assert torch.autograd.gradcheck(decoded, tuple(value.requires_grad_() for value in values), fast_mode=True)


# -- pooling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [((6, 9), 3), ((7, 7), 2), ((8, 5), 6), ((14, 7), 3)])
def test_means_are_spread_around_the_circle_as_interpolation_does_inside(size, count):
    pooling = PyramidPooling(1, 2, (count,), "circular", circular=True)
    means = torch.rand(1, 2, count, count)
    spread = pooling._spread(means, size)
    around = F.interpolate(means.repeat(1, 1, 3, 3), (3 * size[0], 3 * size[1]), mode="bilinear")
    middle = around[:, :, size[0] : 2 * size[0], size[1] : 2 * size[1]]
    torch.testing.assert_close(spread, middle, rtol=1e-5, atol=1e-5)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net: net(torch.rand(1, 3, 33, 32)), ValueError, "multiple"),
        (lambda net: UperNet("a_swin_mini", 5, head_align_corners=True), ValueError, "corners"),
        (lambda net: UperNet("a_swin_mini", 0), ValueError, "at least 1"),
        (lambda net: UperNet("a_swin_mini", 5, bins=()), ValueError, "bins"),
        (lambda net: UperNet(net.encoder, 5, img_size=64), TypeError, "exists takes no arguments"),
        (lambda net: UperNet("a_swin_mini", 5, chanels=16), TypeError, "no argument 'chanels'"),
        (lambda net: UperNet(torch.nn.Identity(), 5), TypeError, "no backbone"),
        (lambda net: net(IMAGE, torch.zeros(1, 16, 16, dtype=torch.int64)), ValueError, "one label per pixel"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message, our_errors):
    with pytest.raises(error, match=message):
        call(small("a_swin_mini"))


# -- in one compiled graph --------------------------------------------------------------------------------------------

PROGRAM = """
import torch, trueshift as ts
from model_checks import perturb_norms, random_shifts
from trueshift.testing import photographs

torch.manual_seed(0)
torch.set_num_threads(1)
net = perturb_norms(ts.UperNet("{name}", 3, channels=8, auxiliary_channels=8, {narrow})).eval()
images = torch.stack(list(photographs(32).values()))
compiled = torch.compile(net, fullgraph=True)
with torch.no_grad():
    logits = compiled(images)
    torch.testing.assert_close(logits, net(images), rtol=1e-3, atol=1e-3)
    for offset in random_shifts(images, 4):
        again = compiled(ts.circular_shift(images, offset, (2, 3)))
        assert torch.equal(again, ts.circular_shift(logits, offset, (2, 3))) == net.adaptive
net.train()
loss = compiled(images, torch.randint(3, (len(images), 32, 32)))
loss.backward()
assert all(weight.grad is not None for weight in net.parameters())
print("ok", loss.item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_swin_mini", "swin_mini", "a_mvitv2_mini"])
def test_one_graph(name, run_unchecked):
    sizes = f"embed_dim={narrow(name)['embed_dim']}"
    assert "ok" in run_unchecked(PROGRAM.format(name=name, narrow=sizes))
