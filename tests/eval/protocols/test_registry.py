"""The evaluations by name: their shifts are repeatable, and they say what they do."""

import pytest
import torch

from trueshift.eval.protocols.registry import PROTOCOLS, SUITES, find_protocols
from trueshift.eval.protocols.shifts import Circular

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


def test_the_distortion_depends_on_index_and_seed_alone():
    protocol, image = PROTOCOLS["erased-70"], torch.rand(3, 64, 64) + 1
    erased = protocol.distort(image, 2, seed=0)
    assert not torch.equal(erased, image)
    assert torch.equal(protocol.distort(image, 2, seed=0), erased)
    assert not torch.equal(protocol.distort(image, 3, seed=0), erased)
    assert not torch.equal(protocol.distort(image, 2, seed=1), erased)


def test_only_distorting_protocols_change_the_image():
    image = torch.rand(3, 64, 64) + 1
    unchanged = {name for name, protocol in PROTOCOLS.items() if torch.equal(protocol.distort(image, 2, 0), image)}
    assert set(PROTOCOLS) - unchanged == {"erased-28", "erased-42", "erased-56", "erased-70", "flipped"}
    assert torch.equal(PROTOCOLS["flipped"].distort(image, 0, 0), image.flip(1))


# by name


def test_protocols_are_found_by_name_each_once():
    assert find_protocols(list(PROTOCOLS)) == list(PROTOCOLS.values())
    found = [protocol.name for protocol in find_protocols(["flipped", "cifar", "imagenet", "circular"])]
    shifts = ["circular", "cifar-circular", "cifar-standard", "imagenet-circular", "imagenet-standard"]
    assert found == ["flipped", *shifts]


@pytest.mark.parametrize(
    ("asked", "meant"), [("circlar", "circular"), ("imagenet-standart", "imagenet-standard"), ("erase", "erased")]
)
def test_a_mistyped_name_is_answered_with_the_right_one(asked, meant):
    with pytest.raises(ValueError, match=f"no protocol is called '{asked}': did you mean '{meant}'"):
        find_protocols(["circular", asked])


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(ValueError, match="no protocol is called 'xyz': There are") as error:
        find_protocols(["xyz"])
    assert all(name in str(error.value) for name in [*PROTOCOLS, *SUITES])


# in words


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("circular", ["circular, all 224 x 224 shifts", "two different shifts against each other"]),
        ("cifar-circular", ["circular, up to ±21 x ±21 pixels of 224 x 224"]),
        ("imagenet-circular", ["circular, up to ±32 x ±32 pixels of 224 x 224"]),
        ("cifar-standard", ["±28 x ±28", "224 x 224", "zero padded", "two different shifts"]),
        ("imagenet-standard", ["resized to at least 256", "crop of 224 x 224", "±16 x ±16", "two different shifts"]),
        ("magnitude-8", ["circular, 0 to 56 x 56", "shifted against unshifted"]),
        ("magnitude-16", ["circular, 0 to 112 x 112", "shifted against unshifted"]),
        ("magnitude-32", ["circular, 0 to 224 x 224", "shifted against unshifted"]),
        ("erased-0", ["square of side 0 to 0 erased", "all 224 x 224 shifts"]),
        ("erased-28", ["square of side 0 to 28 erased"]),
        ("erased-70", ["square of side 0 to 70 erased"]),
        ("flipped", ["upside down", "all 224 x 224 shifts"]),
        ("ade20k-standard", ["±28 x ±28", "zero padded"]),
    ],
)
def test_the_description_names_the_range_in_pixels(name, said):
    description = PROTOCOLS[name].describe((224, 224))
    assert all(part in description for part in said), description


def test_dense_protocols_leave_out_what_no_view_covers_and_say_so():
    for protocol in PROTOCOLS.values():
        bands = protocol.dense and not isinstance(protocol.motion, Circular)
        assert ("without the bands that either leaves uncovered" in protocol.describe((512, 512))) == bands
    dense = ["ade20k-circular", "ade20k-standard", *(f"pixel-crop-{pixels}" for pixels in (1, 2, 4, 8))]
    assert [name for name, protocol in PROTOCOLS.items() if protocol.dense] == dense
