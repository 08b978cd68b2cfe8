"""The kernels of the exact selection compute what the plain code computes, bit for bit, under the same shift laws."""

import pytest
import torch

import trueshift as ts
from trueshift.layers.frame import FrameFinder
from trueshift.ops import kernels
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.ops.selection.choose import choose
from trueshift.ops.selection.content_hash import origin_keys
from trueshift.ops.selection.gram_energy import patch_energy
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.ops.selection.seam import seam_scores, start_on_seam
from trueshift.testing import hostile_images

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGES = 64 if DEVICE == "cuda" else 12
# the interpreter is slow; on a GPU all are taken
FEW = ("constant", "one bright pixel", "row stripes 2", "denormal beside one", "faint contrast")


def images_of(size, channels=1):
    images = hostile_images(size, channels)
    noise = torch.randn(channels, *size)
    chosen = [image for name, image in images.items() if DEVICE == "cuda" or name in FEW]
    return torch.stack([*chosen, noise * 1e-30, noise * 1e30]).to(DEVICE)


def whole(below, *shape):
    return torch.randint(below, shape, device=DEVICE)


def assert_equal(*results):
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "channels", "size"),
    [
        (4, 4, 0, 3, (32, 8)),
        (4, 4, 0, 2, (16, 24)),  # fewer rows than lanes
        (7, 4, 2, 3, (8, 16)),
        (7, 4, 3, 1, (8, 40)),
        (2, 2, 0, 1, (16, 16)),
        (3, 2, 1, 2, (18, 14)),
        (11, 4, 3, 1, (8, 8)),  # wider than the image
    ],
)
def test_energies(kernel, stride, padding, channels, size, both_ways):
    image = torch.randn(2 if DEVICE == "cuda" else 1, *size, channels, device=DEVICE)
    image[0] = image[0] * 1e-20 + 3e-20
    weight, bias = torch.randn(8, channels, kernel, kernel, device=DEVICE), torch.randn(8, device=DEVICE)
    assert_equal(*both_ways(patch_energy, image, weight, bias, (stride, stride), (padding, padding)))


def test_energies_and_seams_of_narrow_types(both_ways):
    pixels = torch.randn(1, 2, 8, 16, device=DEVICE).bfloat16().permute(0, 2, 3, 1)
    weight = torch.randn(8, 2, 4, 4, device=DEVICE)
    for x in (pixels, pixels[:, :, ::2]):  # images in one piece, and not
        assert_equal(*both_ways(patch_energy, x, weight, None, (4, 4), (0, 0)))
        assert_equal(*both_ways(seam_scores, x))


def test_seams_of_hostile_images_by_shared_or_own_integers(both_ways):
    pixels = images_of((8, 12)).permute(0, 2, 3, 1)
    shared = Pixels(pixels)
    with kernels.switched(True):
        shared.planes((4, 4), (4, 4))
        also = seam_scores(pixels, shared)
    assert_equal(*both_ways(seam_scores, pixels), also)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_of_the_images_that_need_them(dtype):
    pixels = images_of((6, 10), 2).to(dtype).permute(0, 2, 3, 1)
    needed = torch.arange(len(pixels), device=DEVICE) % 4 == 1
    with kernels.switched(True):
        found = origin_keys(pixels, needed)
    assert torch.equal(found[needed], origin_keys(pixels)[needed])


@pytest.mark.parametrize(("phases", "rows"), [(2, 6), (1, 1)])  # the last: of fixed rows
def test_choices_among_scores_that_tie(phases, rows, both_ways):
    first, second = (whole(below, IMAGES, phases, 4).double() for below in (3, 2))
    keys = whole(5, IMAGES, rows, 8)
    for scores in ((first,), (first, second), (-first,)):
        plain, fused = both_ways(choose, scores, lambda needed: keys)
        assert torch.equal(plain.offset, fused.offset)


@pytest.mark.parametrize(("stride", "height"), [((1, 1), 6), ((2, 4), 6), ((1, 4), 1)])  # the last: of fixed rows
def test_starts_on_seams_that_tie(stride, height, both_ways):
    rows, columns = whole(3, IMAGES, height).double(), whole(4, IMAGES, 8).double()
    keys, offset = whole(9, IMAGES, height, 8), torch.stack([whole(step, IMAGES) for step in stride], 1)
    assert_equal(*both_ways(start_on_seam, rows, columns, offset, stride, lambda needed: keys))


composed = pytest.mark.usefixtures("quick_interpreter")  # overflows are looked for above, in each kernel alone


@composed
@pytest.mark.parametrize(("kernel", "padding"), [pytest.param(4, 0, marks=pytest.mark.slow), (7, 2)])
@torch.no_grad()
def test_the_tokenizer_moves_with_every_image(kernel, padding, both_ways):
    images = images_of((8, 12))
    layer = ts.AdaptiveTokenize(1, 8, 4, kernel, padding).eval().to(DEVICE)
    plain, fused = both_ways(layer.choose, images)
    assert_equal((plain.offset, *plain.scores), (fused.offset, *fused.scores))
    moved = circular_shift(images, torch.stack([whole(n, len(images)) for n in (8, 12)], 1), IMAGE_DIMS)
    with kernels.switched(True):
        choice = layer.choose(moved)
    framed = circular_shift(images, fused.offset, IMAGE_DIMS)
    assert torch.equal(circular_shift(moved, choice.offset, IMAGE_DIMS), framed)


@composed
@pytest.mark.parametrize("size", [(6, 20), (41, 7), (4, 140)])
def test_scores_of_the_frame_finder(size, both_ways):
    finder = FrameFinder().to(DEVICE)
    images = images_of(size, 3)[:: 1 if DEVICE == "cuda" else 3]
    for x in (images.permute(0, 2, 3, 1), images.bfloat16().permute(0, 2, 3, 1).contiguous()):
        plain, fused = both_ways(lambda x: finder(Pixels(x)), x)
        assert plain[0].any()
        assert_equal(plain, fused)
    with kernels.switched(True):  # other channels, and fewer rows than are seen at once, are left to the plain code
        assert finder(Pixels(images[:2, :1].permute(0, 2, 3, 1)))[0].shape == (2, size[0])
        assert finder(Pixels(images[:2, :, :3].permute(0, 2, 3, 1)))[0].shape == (2, 3)


@composed
def test_an_image_is_read_once_for_its_bounds(monkeypatch):
    layer = ts.AdaptiveTokenize(3, 96, 4, closed=True).eval().to(DEVICE)  # energies and the frame finder need them
    reads, find = [], kernels.quantised_image.find_bounds
    monkeypatch.setattr(kernels.quantised_image, "find_bounds", lambda x: reads.append(x) or find(x))
    image = torch.randn(1, 3, 16, 32, device=DEVICE)
    with torch.no_grad(), kernels.switched(True):
        one, other = layer.choose(image[..., :16].contiguous()), layer.choose(image[..., :16])  # in one piece, and not
    assert torch.equal(one.offset, other.offset)
    assert len(reads) == 2
