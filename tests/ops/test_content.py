import pytest
import torch

from trueshift.ops.content import fingerprint, origin_keys
from trueshift.ops.shift import circular_shift
from trueshift.testing import hostile_images


def test_keys_move_with_the_content():
    x = torch.stack(list(hostile_images(16).values())).permute(0, 2, 3, 1)
    keys = origin_keys(x)
    for _ in range(20):
        offset = torch.randint(16, (len(x), 2))
        assert torch.equal(origin_keys(circular_shift(x, offset)), circular_shift(keys, offset))


@pytest.mark.parametrize("name", hostile_images(16))
def test_keys_are_equal_exactly_where_the_content_is(name):
    x = hostile_images(16)[name].permute(1, 2, 0)[None]
    views = torch.stack([x.roll((-i, -j), (1, 2)).flatten() for i in range(16) for j in range(16)])
    same = (views[:, None, :8] == views[None, :, :8]).all(2)  # a cheap look first
    for i, j in same.triu(1).nonzero().tolist():
        same[i, j] = same[j, i] = torch.equal(views[i], views[j])
    keys = origin_keys(x).flatten()
    assert torch.equal(keys[:, None] == keys[None, :], same)


def test_mirrored_and_transposed_content_gets_other_keys():
    x = torch.rand(1, 12, 12, 1)
    symmetric = x + x.transpose(1, 2)
    keys = origin_keys(symmetric)[0]
    assert len(keys.unique()) == 144  # (i, j) and (j, i) see transposed content


def test_one_bit_in_one_channel_is_noticed():
    x = torch.rand(1, 4, 4, 3)
    other = x.clone()
    other[0, 1, 2, 2] = torch.nextafter(other[0, 1, 2, 2], torch.tensor(2.0))
    assert (fingerprint(x) != fingerprint(other)).sum() == 1
    assert (origin_keys(x) != origin_keys(other)).all()


def test_rows_and_columns_up_to_the_limit():
    with pytest.raises(ValueError, match="cut the image in tiles"):
        origin_keys(torch.zeros(1, 1, 2**15 + 1, 1))


@pytest.mark.slow
def test_no_ties_on_200000_random_images():
    """The key alone, on images small and coarse enough for ties to be likely in anything weaker."""
    generator = torch.Generator().manual_seed(0)
    ties = 0
    for _ in range(200):
        x = torch.randint(0, 256, (1000, 14, 14, 1), generator=generator).float() / 255
        keys = origin_keys(x).flatten(1)
        best = keys.topk(2, 1).values
        ties += int((best[:, 0] == best[:, 1]).sum())
    assert ties == 0
