"""The evaluations by name: their shifts are repeatable, and they say what they do."""

import pytest
import torch

from trueshift.eval.protocols.registry import PROTOCOLS, SUITES, find_protocols

REAL_MOTION = [protocol.name for protocol in find_protocols(["motion", "path-8", "pixel-motion"])]
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
SIZE = (32, 32)


@every_protocol
def test_shifts_depend_on_index_and_seed_alone(protocol):
    shifts = protocol.shifts(7, 8, SIZE, seed=3)
    protocol.shifts(8, 8, SIZE, seed=3)
    torch.rand(3)
    assert torch.equal(protocol.shifts(7, 8, SIZE, seed=3), shifts)
    if protocol.name in REAL_MOTION:  # there are few
        others = [protocol.shifts(index, 8, SIZE, seed=3) for index in range(20)]
        assert not all(torch.equal(other, others[0]) for other in others)
        return
    assert not torch.equal(protocol.shifts(8, 8, SIZE, seed=3), shifts)
    assert not torch.equal(protocol.shifts(7, 8, SIZE, seed=4), shifts)
    assert not torch.equal(protocol.shifts(3, 8, SIZE, seed=7), shifts)


def test_shifts_of_an_image_are_the_same_in_every_run():
    # if these change, kept answers do not belong to the shifts that would be drawn now
    assert PROTOCOLS["circular"].shifts(0, 3, (224, 224), seed=0).tolist() == [[189, 42], [9, 13], [41, 189]]


def test_protocols_that_move_alike_draw_shifts_of_their_own():
    alike = ["circular", "erased-0", "erased-70", "flipped", "ade20k-circular"]
    drawn = {tuple(PROTOCOLS[name].shifts(0, 8, SIZE, seed=0).flatten().tolist()) for name in alike}
    assert len(drawn) == len(alike)


def test_distortions_depend_on_index_and_seed_alone():
    protocol, image = PROTOCOLS["erased-70"], torch.rand(3, 64, 64) + 1
    erased = protocol.distort(image, 2, seed=0)
    assert torch.equal(protocol.distort(image, 2, seed=0), erased)
    for other in (image, protocol.distort(image, 3, seed=0), protocol.distort(image, 2, seed=1)):
        assert not torch.equal(other, erased)
    assert torch.equal(PROTOCOLS["flipped"].distort(image, 0, 0), image.flip(1))
    assert torch.equal(PROTOCOLS["circular"].distort(image, 0, 0), image)


# by name


def test_protocols_are_found_by_name_each_once():
    assert find_protocols(list(PROTOCOLS)) == list(PROTOCOLS.values())
    found = [protocol.name for protocol in find_protocols(["flipped", "cifar", "imagenet", "circular"])]
    shifts = ["circular", "cifar-circular", "cifar-standard", "imagenet-circular", "imagenet-standard"]
    assert found == ["flipped", *shifts]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("circlar", "did you mean 'circular'"),
        ("imagenet-standart", "did you mean 'imagenet-standard'"),
        ("erase", "did you mean 'erased'"),
        ("xyz", f"There are the protocols {', '.join(PROTOCOLS)}, and the suites {', '.join(SUITES)}"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_right_one(asked, meant):
    with pytest.raises(ValueError, match=f"no protocol is called '{asked}': {meant}"):
        find_protocols(["circular", asked])


# in words


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("circular", ["circular, all 224 x 224 shifts", "two different shifts against each other"]),
        ("cifar-circular", ["circular, up to ±21 x ±21 pixels of 224 x 224"]),
        ("imagenet-standard", ["resized to at least 256", "crop of 224 x 224", "±16 x ±16", "two different shifts"]),
        ("magnitude-16", ["circular, 0 to 112 x 112", "shifted against unshifted"]),
        ("erased-28", ["square of side 0 to 28 erased"]),
        ("flipped", ["upside down", "all 224 x 224 shifts"]),
        ("ade20k-standard", ["±28 x ±28", "zero padded", "without the bands that either leaves uncovered"]),
        ("crop-1", ["crops of a larger image, up to 1 pixel apart"]),
        ("path-32", ["32 steps of one pixel; each frame against the next"]),
        ("noise", ["two different versions against each other"]),
    ],
)
def test_the_description_names_the_range_in_pixels(name, said):
    description = PROTOCOLS[name].describe((224, 224))
    assert all(part in description for part in said), description
