"""Which images a step takes: all of them once, in an order of its own; how processes share them: test_loader.py."""

import numpy as np
import pytest

from trueshift.train.data.sampler import BatchOrder, Share


@pytest.mark.parametrize(("images", "batch"), [(40, 8), (43, 8), (8, 8), (15, 8), (7, 1)])
def test_an_epoch_takes_no_image_twice_and_all_have_their_turn(images, batch):
    order = BatchOrder(images, batch)
    epochs = [order.passes(epoch) for epoch in range(12)]
    for epoch in epochs:
        assert epoch.shape == (order.steps, batch) == (images // batch, batch)
        assert len(np.unique(epoch)) == epoch.size
    assert set(np.concatenate(epochs).ravel()) == set(range(images))  # though a batch must be full


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    orders = [BatchOrder(1000, 10, seed=seed).passes(epoch).ravel() for seed in range(3) for epoch in range(3)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            assert (one == other).mean() < 0.05
    assert np.array_equal(BatchOrder(1000, 10, seed=2).passes(2).ravel(), orders[-1])


@pytest.mark.parametrize(
    ("batch", "parts", "sizes"), [(50, 4, "48 or 52"), (3, 4, "4"), (48, 5, "45 or 50"), (1, 2, "2")]
)
def test_a_batch_that_cannot_be_shared_is_refused_with_sizes_that_can(batch, parts, sizes):
    for order in ({"share": Share(0, parts)}, {"accumulate": parts}):
        with pytest.raises(ValueError, match=f"batch_size {batch} .* needs e.g. {sizes}$"):
            BatchOrder(1000, batch, **order)
