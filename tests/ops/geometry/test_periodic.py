"""What is said of an image that repeats, repeats."""

import torch

from trueshift import circular_shift
from trueshift.ops.geometry.periodic import may_repeat, repeat_one_period
from trueshift.ops.geometry.shift import IMAGE_DIMS
from trueshift.ops.selection.content_hash import origin_keys
from trueshift.testing import hostile_images, photographs

PHOTOS = torch.stack(list(photographs(32).values()))
IMAGES = torch.cat([torch.stack(list(hostile_images(32).values())), PHOTOS])


def keys_of(images):
    return origin_keys(images.permute(0, 2, 3, 1)).flatten(1)


REPEATING = torch.tensor([len(row.unique()) < row.numel() for row in keys_of(IMAGES)])


def test_never_wrongly_no():
    assert REPEATING.sum() > 10
    assert may_repeat(IMAGES[REPEATING]).all()
    assert not may_repeat(PHOTOS).any()
    diagonal = torch.rand(12)[(torch.arange(12)[:, None] + torch.arange(12)) % 12]
    assert may_repeat(diagonal.expand(1, 3, 12, 12)).item()


def test_other_types_and_odd_sizes():
    tile = torch.rand(1, 3, 5, 7)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.uint8):
        image = (tile * 255).to(dtype)
        assert may_repeat(image.repeat(1, 1, 3, 1)).item()
        assert may_repeat(image.repeat(1, 1, 1, 2)).item()
        assert not may_repeat(image).item()


def test_maps_of_repeating_images_move_with_them():
    """Whatever a map says, and wherever among the periods its frame begins."""
    images = IMAGES[REPEATING]
    for _ in range(3):
        framed, origin = torch.rand(len(images), 2, 32, 32), torch.randint(32, (len(images), 2))
        shift = torch.randint(32, (len(images), 2))

        def said(images, origin, framed=framed):
            return repeat_one_period(circular_shift(framed, -origin, IMAGE_DIMS), images, origin)

        moved = circular_shift(images, shift, IMAGE_DIMS)
        # the same content may begin at another of its periods
        keys, there = keys_of(moved), (origin - shift) % 32
        wanted = keys.gather(1, (there[:, :1] * 32 + there[:, 1:]))
        last = 1023 - (keys == wanted).flip(1).to(torch.uint8).argmax(1)
        other = torch.stack([last // 32, last % 32], 1)
        assert torch.equal(said(moved, other), circular_shift(said(images, origin), shift, IMAGE_DIMS))


def test_other_maps_stay_as_they_are():
    maps = torch.rand(len(PHOTOS), 2, 32, 32)
    assert torch.equal(repeat_one_period(maps, PHOTOS, torch.randint(32, (len(PHOTOS), 2))), maps)
