"""Spots that stand out."""

import torch

from trueshift.ops.selection.spot import spot_strength


def test_a_spot_depends_on_what_is_around_it_alone():
    content = torch.randint(0, 256, (2, 3, 40, 40)).double()
    here, there = (spot_strength(content[..., at : at + 24, at : at + 24], 2, 3) for at in (0, 5))
    assert here.shape == (2, 20, 20)
    assert torch.equal(here[:, 5:, 5:], there[:, :-5, :-5])


def test_the_strongest_is_where_the_image_stands_out():
    image = torch.full((1, 1, 16, 16), 100.0)
    image[0, 0, 5, 9], image[0, 0, 11, 4] = 150.0, 60.0
    strength = spot_strength(image, 2, 3)[0]
    assert divmod(int(strength.argmax()), 12) == (5 - 2, 9 - 2)
    # by hand: the middles of both triangles, each times the sum of the other
    assert strength[3, 7] == (3**4 * 2 * 2 - 2**4 * 3 * 3) * 50
    assert spot_strength(torch.full((1, 3, 16, 16), 7.0), 3, 5).amax() == 0
