"""Which images a step takes: all of them once, the same on any number of processes, and from any step on."""

import numpy as np
import pytest

from trueshift.train.data.sampler import BatchOrder

SPLITS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]  # processes, accumulated passes


@pytest.mark.parametrize(("images", "batch"), [(40, 8), (43, 8), (8, 8), (15, 8), (7, 1)])
def test_an_epoch_takes_no_image_twice(images, batch):
    order = BatchOrder(images, batch)
    epoch = order.epoch(3)
    assert epoch.shape == (images // batch, 1, batch)
    assert len(np.unique(epoch)) == epoch.size == order.steps * batch
    assert 0 <= epoch.min() <= epoch.max() < images


def test_all_images_have_their_turn_though_a_batch_must_be_full():
    order = BatchOrder(15, 8)
    assert set(np.concatenate([order.epoch(epoch) for epoch in range(12)]).ravel()) == set(range(15))


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    orders = [BatchOrder(1000, 10, seed=seed).epoch(epoch).ravel() for seed in range(3) for epoch in range(3)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert (one == other).mean() < 0.05
    assert np.array_equal(BatchOrder(1000, 10, seed=2).epoch(2).ravel(), orders[-1])


@pytest.mark.parametrize(("processes", "accumulate"), SPLITS)
def test_all_shares_of_a_step_are_its_batch_whoever_takes_them(processes, accumulate):
    whole = BatchOrder(100, 12, seed=5).epoch(1).reshape(8, 12)
    order = BatchOrder(100, 12, processes * accumulate, seed=5)
    shares = [order.shares(1, rank, processes) for rank in range(processes)]
    assert {len(share) for share in shares} == {order.steps * accumulate}
    for step, batch in enumerate(whole):
        taken = [share[step * accumulate + number] for share in shares for number in range(accumulate)]
        assert {len(part) for part in taken} == {12 // (processes * accumulate)}
        assert sorted(np.concatenate(taken)) == sorted(batch)  # a batch has no image twice, so nor have the shares


@pytest.mark.parametrize(("processes", "accumulate"), SPLITS)
@pytest.mark.parametrize("first_step", [0, 1, 5, 8])
def test_an_epoch_goes_on_from_any_step(processes, accumulate, first_step):
    order = BatchOrder(100, 12, processes * accumulate)
    for rank in range(processes):
        rest = order.shares(2, rank, processes, first_step)
        whole = order.shares(2, rank, processes)
        assert len(rest) == (order.steps - first_step) * accumulate
        assert all(np.array_equal(*pair) for pair in zip(rest, whole[first_step * accumulate :], strict=True))


@pytest.mark.parametrize(
    ("batch", "parts", "sizes"), [(50, 4, "48 or 52"), (3, 4, "4"), (48, 5, "45 or 50"), (1, 2, "2")]
)
def test_a_batch_that_cannot_be_shared_is_refused_with_sizes_that_can(batch, parts, sizes):
    with pytest.raises(ValueError, match=f"batch_size {batch} .* needs e.g. {sizes}$"):
        BatchOrder(1000, batch, parts)


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="7 images to learn from, fewer than a batch of 8"):
        BatchOrder(7, 8)
