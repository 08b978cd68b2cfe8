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

pytestmark = pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGES = 64 if DEVICE == "cuda" else 12
# the interpreter is slow; on a GPU all are taken
FEW = ("constant", "one bright pixel", "row stripes 2", "denormal beside one", "faint contrast")


def pictures(size=(16, 24), channels=1):
    images = hostile_images(size, channels)
    noise = torch.randn(channels, *size)
    chosen = [image for name, image in images.items() if DEVICE == "cuda" or name in FEW]
    return torch.stack([*chosen, noise * 1e-30, noise * 1e30]).to(DEVICE)


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
    image = torch.randn(2 if DEVICE == "cuda" else 1, channels, *size, device=DEVICE)
    image[0] = image[0] * 1e-20 + 3e-20
    weight, bias = torch.randn(8, channels, kernel, kernel, device=DEVICE), torch.randn(8, device=DEVICE)
    pixels = image.permute(0, 2, 3, 1)
    plain, fused = both_ways(patch_energy, pixels, weight, bias, (stride, stride), (padding, padding))
    assert torch.equal(plain, fused)


def test_energies_and_seams_of_narrow_types(both_ways):
    pixels = torch.randn(1, 2, 8, 16, device=DEVICE).bfloat16().permute(0, 2, 3, 1)
    weight = torch.randn(8, 2, 4, 4, device=DEVICE)
    for x in (pixels, pixels[:, :, ::2]):  # images in one piece, and not
        plain, fused = both_ways(patch_energy, x, weight, None, (4, 4), (0, 0))
        assert torch.equal(plain, fused)
        for one, other in zip(*both_ways(seam_scores, x), strict=True):
            assert torch.equal(one, other)


def test_seams_of_hostile_images_by_shared_or_own_integers(both_ways):
    pixels = pictures((8, 12)).permute(0, 2, 3, 1)
    plain, fused = both_ways(seam_scores, pixels)
    shared = Pixels(pixels)
    with kernels.switched(True):
        shared.planes((4, 4), (4, 4))
        also = seam_scores(pixels, shared)
    for axis in (0, 1):
        assert torch.equal(plain[axis], fused[axis])
        assert torch.equal(plain[axis], also[axis])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_of_the_images_that_need_them(dtype):
    pixels = pictures((6, 10), 2).to(dtype).permute(0, 2, 3, 1)
    needed = torch.arange(len(pixels), device=DEVICE) % 4 == 1
    with kernels.switched(True):
        found = origin_keys(pixels, needed)
    assert torch.equal(found[needed], origin_keys(pixels)[needed])


@pytest.mark.parametrize(("phases", "rows"), [(2, 6), (1, 1)])  # the last: of fixed rows
def test_choices_among_scores_that_tie(phases, rows, both_ways):
    scores = torch.randint(0, 3, (IMAGES, 2, 4), device=DEVICE).double()[:, :phases]
    second = torch.randint(0, 2, (IMAGES, 2, 4), device=DEVICE).double()[:, :phases]
    keys = torch.randint(0, 5, (IMAGES, rows, 8), device=DEVICE)
    for given in ((scores,), (scores, second), (-scores,)):
        plain, fused = both_ways(choose, given, lambda needed: keys)
        assert torch.equal(plain.offset, fused.offset)


@pytest.mark.parametrize(("stride", "height"), [((1, 1), 6), ((2, 4), 6), ((1, 4), 1)])  # the last: of fixed rows
def test_starts_on_seams_that_tie(stride, height, both_ways):
    rows = torch.randint(0, 3, (IMAGES, height), device=DEVICE).double()
    columns = torch.randint(0, 4, (IMAGES, 8), device=DEVICE).double()
    keys = torch.randint(0, 9, (IMAGES, height, 8), device=DEVICE)
    offset = torch.stack([torch.randint(step, (IMAGES,), device=DEVICE) for step in stride], 1)
    plain, fused = both_ways(start_on_seam, rows, columns, offset, stride, lambda needed: keys)
    assert torch.equal(plain, fused)


composed = pytest.mark.usefixtures("quick_interpreter")  # overflows are looked for above, in each kernel alone


@composed
@pytest.mark.parametrize(("kernel", "padding"), [pytest.param(4, 0, marks=pytest.mark.slow), (7, 2)])
def test_the_tokenizer_moves_with_every_image(kernel, padding, both_ways):
    images = pictures((8, 12))
    layer = ts.AdaptiveTokenize(1, 8, 4, kernel, padding).eval().to(DEVICE)
    with torch.no_grad():
        plain, fused = both_ways(layer.choose, images)
        assert torch.equal(plain.offset, fused.offset)
        assert torch.equal(plain.scores[0], fused.scores[0])
        framed = circular_shift(images, fused.offset, IMAGE_DIMS)
        shift = torch.stack([torch.randint(n, (len(images),)) for n in images.shape[2:]], 1).to(DEVICE)
        moved = circular_shift(images, shift, IMAGE_DIMS)
        with kernels.switched(True):
            choice = layer.choose(moved)
        assert torch.equal(circular_shift(moved, choice.offset, IMAGE_DIMS), framed)


@composed
def test_the_frame_of_any_model(both_ways):
    images = pictures()
    plain, fused = both_ways(ts.canonical.canonical_origin, images)
    assert torch.equal(plain, fused)


@pytest.mark.parametrize("size", [(6, 20), (41, 7), (4, 140)])
def test_scores_of_the_frame_finder(size, both_ways, quick_interpreter):
    finder = FrameFinder().to(DEVICE)
    images = pictures(size, 3)[:: 1 if DEVICE == "cuda" else 3]
    for x in (images.permute(0, 2, 3, 1), images.bfloat16().permute(0, 2, 3, 1).contiguous()):
        plain, fused = both_ways(lambda x: finder(Pixels(x)), x)
        assert plain[0].any()
        for one, other in zip(plain, fused, strict=True):
            assert torch.equal(one, other)
    with kernels.switched(True):  # other channels, and fewer rows than are seen at once, are left to the plain code
        assert finder(Pixels(images[:2, :1].permute(0, 2, 3, 1)))[0].shape == (2, size[0])
        assert finder(Pixels(images[:2, :, :3].permute(0, 2, 3, 1)))[0].shape == (2, 3)


def test_an_image_is_read_once_for_its_bounds(monkeypatch, quick_interpreter):
    layer = ts.AdaptiveTokenize(3, 96, 4, closed=True).eval().to(DEVICE)  # energies and the frame finder need them
    launches, kernel = [], kernels.quantised_image._find_bounds

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(kernels.quantised_image, "_find_bounds", Counted())
    image = torch.randn(1, 3, 16, 32, device=DEVICE)
    with torch.no_grad(), kernels.switched(True):
        whole, part = layer.choose(image[..., :16].contiguous()), layer.choose(image[..., :16])  # in one piece, and not
    assert torch.equal(whole.offset, part.offset)
    assert len(launches) == 2
