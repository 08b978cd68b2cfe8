"""Images of any size, whole and by windows, for networks that take few sizes; with answers known beforehand."""

import pytest
import torch
from torch import nn

from trueshift.tasks.inference import segment_sliding, segment_whole


class Network(nn.Module):
    """By default its logits of a pixel depend on that pixel alone."""

    def __init__(self, multiple=(1, 1), forward=None):
        super().__init__()
        self.size_multiple, self.shown = multiple, []
        self.layer = forward or nn.Conv2d(3, 5, 1)

    def forward(self, images):
        assert not any(length % step for length, step in zip(images.shape[2:], self.size_multiple, strict=True))
        self.shown.append(images)
        return self.layer(images)


@pytest.mark.parametrize("size", [(16, 24), (17, 23), (5, 40), (1, 1), (31, 7)])
@pytest.mark.parametrize("multiple", [(1, 1), (4, 8), (7, 3)])
def test_a_network_of_single_pixels_gives_the_same_by_all_three_ways(size, multiple):
    network, images = Network(multiple), torch.randn(2, 3, *size, requires_grad=True)
    expected = network.layer(images)
    gradient = network.layer.weight.sum((0, 2, 3)).view(1, 3, 1, 1).expand_as(images)
    for found in (segment_whole(network, images), segment_sliding(network, images, (8, 8), (5, 3))):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), images)[0], gradient, rtol=1e-5, atol=1e-5)


def test_only_sizes_that_do_not_fit_are_padded_with_zeros_at_the_bottom_and_the_right():
    network, images = Network((4, 8)), torch.randn(1, 3, 8, 16)
    segment_whole(network, images)
    segment_whole(network, images[:, :, :7, :15])
    assert torch.equal(network.shown[0], images)
    assert torch.equal(network.shown[1], nn.functional.pad(images[:, :, :7, :15], (0, 1, 0, 1)))
    network = Network()
    segment_sliding(network, torch.randn(2, 3, 5, 20), (8, 8), (4, 4))
    assert {images.shape[1:] for images in network.shown} == {(3, 8, 8)}  # an image smaller than the window, too
    assert sum(map(len, network.shown)) == 2 * 4  # columns from 0, 4, 8 and 12


def place_in_window(images):
    """Where in its input a pixel is: row, column, and the size of the input."""
    height, width = images.shape[2:]
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return torch.stack([rows, columns, torch.full_like(rows, height * width)]).expand(len(images), 3, height, width)


def by_hand(length, window, stride):
    """Along one side: the mean place in the windows that see each pixel, as mmsegmentation lays them."""
    steps = max(length - window + stride - 1, 0) // stride + 1
    starts = [max(min(step * stride + window, length) - window, 0) for step in range(steps)]
    seen = [[place - start for start in starts if start <= place < start + window] for place in range(length)]
    return torch.tensor([sum(places) / len(places) for places in seen])


@pytest.mark.parametrize(
    ("size", "window", "stride"),
    [
        ((20, 30), (8, 10), (5, 7)),
        ((17, 16), (8, 8), (8, 8)),  # side by side; the last overlaps
        ((9, 8), (8, 8), (1, 1)),
        ((13, 29), (13, 29), (13, 29)),
        ((11, 23), (4, 9), (3, 2)),
    ],
)
@pytest.mark.parametrize("together", [3, 1000])
def test_overlapping_windows_are_averaged_where_they_overlap(size, window, stride, together):
    network = Network(forward=place_in_window)
    for rows, columns, area in segment_sliding(network, torch.zeros(2, 3, *size), window, stride, together):
        torch.testing.assert_close(rows, by_hand(size[0], window[0], stride[0])[:, None].expand(size))
        torch.testing.assert_close(columns, by_hand(size[1], window[1], stride[1]).expand(size))
        assert (area == window[0] * window[1]).all()  # every window was whole


def test_windows_are_summed_in_full_precision():
    images = torch.randn(1, 3, 12, 12).bfloat16().float()
    found = segment_sliding(Network(forward=torch.Tensor.bfloat16), images, (6, 6), (1, 1))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, images)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: segment_sliding(Network(), x, (8, 8), (9, 4), 1), "needs strides from 1 to the window's size"),
        (lambda x: segment_sliding(Network(), x, (8, 8), (4, 0), 1), "needs strides from 1 to the window's size"),
        (lambda x: segment_sliding(Network(), x, (8, 8), (4, 4), 0), "at least 1 at once"),
        (lambda x: segment_sliding(Network(), x[:0], (8, 8), (4, 4)), "at least one"),
        (lambda x: segment_whole(Network(forward=lambda x: x.mean((2, 3))), x), "for every pixel"),
        (lambda x: segment_whole(Network(forward=lambda x: x[:, :, ::4, ::4]), x), "for every pixel"),
    ],
)
def test_what_cannot_be_segmented_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(1, 3, 20, 20))
