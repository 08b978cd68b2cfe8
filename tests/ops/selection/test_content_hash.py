import pytest
import torch
from unchecked import in_own_process

from trueshift.ops.geometry.shift import circular_shift
from trueshift.ops.selection.content_hash import fingerprint, origin_keys
from trueshift.testing import hostile_images


def images(size=16):
    return torch.stack(list(hostile_images(size).values())).permute(0, 2, 3, 1)


def test_keys_move_with_the_content():
    x = images()
    keys = origin_keys(x)
    for _ in range(20):
        offset = torch.randint(16, (len(x), 2))
        assert torch.equal(origin_keys(circular_shift(x, offset)), circular_shift(keys, offset))


@pytest.mark.parametrize("name", hostile_images(12))
def test_keys_are_equal_exactly_where_the_content_is(name):
    x = hostile_images(12)[name].permute(1, 2, 0)[None]
    views = torch.stack([x.roll((-i, -j), (1, 2)).flatten() for i in range(12) for j in range(12)])
    content, keys = views.unique(dim=0, return_inverse=True)[1], origin_keys(x).flatten()
    assert torch.equal(keys[:, None] == keys, content[:, None] == content)


def test_one_bit_in_one_channel_is_noticed():
    x = torch.rand(1, 4, 4, 3)
    other = x.clone()
    other[0, 1, 2, 2] = torch.nextafter(other[0, 1, 2, 2], torch.tensor(2.0))
    assert (fingerprint(x) != fingerprint(other)).sum() == 1
    assert (origin_keys(x) != origin_keys(other)).all()


def test_rows_and_columns_up_to_the_limit():
    with pytest.raises(ValueError, match="cut the image in tiles"):
        origin_keys(torch.zeros(1, 1, 2**15 + 1, 1))


@pytest.mark.parametrize(("dtype", "integer"), [(torch.float32, torch.int32), (torch.float64, torch.int64)])
def test_every_kind_of_number_has_the_same_bits_when_exported(dtype, integer, monkeypatch):
    limits, ends, few = torch.finfo(dtype), torch.iinfo(integer), torch.arange(2000, dtype=integer)
    powers = 2.0 ** torch.tensor([-99, -1, 0, 1, 9], dtype=dtype)
    numbers = torch.cat(
        [
            torch.tensor([0.0, 3.0, limits.max, limits.tiny, limits.eps], dtype=dtype),
            powers,
            torch.nextafter(powers, 0 * powers),
            torch.nextafter(powers, 2 * powers),
            few.view(dtype),  # the smallest subnormal numbers, then those around the first that is not
            (torch.tensor(limits.tiny, dtype=dtype).view(integer) + few - 1000).view(dtype),
            torch.randint(ends.min, ends.max, (200_000,), dtype=integer).view(dtype),
        ]
    )
    numbers = torch.cat([numbers, -numbers])
    numbers = numbers[numbers.isfinite()].view(1, 1, -1, 1)
    usual = fingerprint(numbers)
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    assert torch.equal(fingerprint(numbers), usual)


def test_keys_are_the_same_when_exported(monkeypatch):
    x = images()
    given = [x, -x, x.double(), x.bfloat16()]
    usual = [origin_keys(x) for x in given]
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    assert all(torch.equal(origin_keys(x), keys) for x, keys in zip(given, usual, strict=True))


@pytest.mark.slow
def test_no_ties_on_200000_random_images():
    """The key alone, on images small and coarse enough for ties to be likely in anything weaker."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        x = torch.randint(0, 256, (1000, 14, 14, 1), generator=generator).float() / 255
        best = origin_keys(x).flatten(1).topk(2, 1).values
        assert (best[:, 0] != best[:, 1]).all()


@pytest.mark.parametrize(
    ("threads", "channels"), [(1, (3,)), *(pytest.param(n, (1, 3), marks=pytest.mark.slow) for n in (1, 2))]
)
@in_own_process
def test_compiled_keys_are_the_same(threads, channels):
    """With one thread the loops are others: in products that wrap around torch's compiler saw what it liked."""
    torch.set_num_threads(threads)
    for x in (images()[..., :count] for count in channels):
        assert torch.equal(torch.compile(origin_keys, fullgraph=True)(x), origin_keys(x))
