"""Images of any size, whole and by windows, for networks that take few sizes; with answers known beforehand."""

import pytest
import torch
from torch import nn

from trueshift.tasks.inference import segment_sliding, segment_whole


class Pointwise(nn.Module):
    """Its logits of a pixel depend on that pixel alone."""

    def __init__(self, multiple=(1, 1)):
        super().__init__()
        self.size_multiple = multiple
        self.layer = nn.Conv2d(3, 5, 1)
        self.shown = []

    def forward(self, images):
        assert images.shape[2] % self.size_multiple[0] == 0
        assert images.shape[3] % self.size_multiple[1] == 0
        self.shown.append(images)
        return self.layer(images)


class PlaceInWindow(nn.Module):
    """Reports where in its input a pixel is: row, column, and the size of the input."""

    size_multiple = (1, 1)

    def forward(self, images):
        height, width = images.shape[2:]
        rows = torch.arange(float(height))[:, None].expand(height, width)
        columns = torch.arange(float(width)).expand(height, width)
        size = torch.full((height, width), float(height * width))
        return torch.stack([rows, columns, size]).expand(len(images), 3, height, width)


@pytest.mark.parametrize("size", [(16, 24), (17, 23), (5, 40), (8, 8), (1, 1), (31, 7)])
@pytest.mark.parametrize("multiple", [(1, 1), (4, 8), (7, 3)])
def test_a_network_of_single_pixels_gives_the_same_by_all_three_ways(size, multiple):
    images = torch.randn(2, 3, *size)
    network = Pointwise(multiple)
    expected = network.layer(images)
    whole = segment_whole(network, images)
    sliding = segment_sliding(network, images, (8, 8), (5, 3))
    assert whole.shape == sliding.shape == (2, 5, *size)
    assert torch.allclose(whole, expected, atol=1e-6)
    assert torch.allclose(sliding, expected, atol=1e-5)


def test_only_sizes_that_do_not_fit_are_padded_with_zeros_at_the_bottom_and_the_right():
    network, images = Pointwise((4, 8)), torch.randn(1, 3, 8, 16)
    assert torch.equal(segment_whole(network, images), network.layer(images))
    segment_whole(network, images[:, :, :7, :15])
    fitting, padded = network.shown
    assert torch.equal(fitting, images)
    assert padded.shape == images.shape
    assert torch.equal(padded[:, :, :7, :15], images[:, :, :7, :15])
    assert not padded[:, :, 7:].any()
    assert not padded[:, :, :, 15:].any()


def by_hand(length, window, stride):
    """Along one side: the mean place in the windows that see each pixel, as mmsegmentation lays them."""
    steps = max(length - window + stride - 1, 0) // stride + 1
    ends = [min(step * stride + window, length) for step in range(steps)]
    starts = [max(end - window, 0) for end in ends]
    return torch.tensor(
        [
            sum(place - start for start in starts if start <= place < start + window)
            / sum(start <= place < start + window for start in starts)
            for place in range(length)
        ]
    )


@pytest.mark.parametrize(
    ("size", "window", "stride"),
    [
        ((20, 30), (8, 10), (5, 7)),
        ((16, 16), (8, 8), (8, 8)),  # side by side
        ((17, 16), (8, 8), (8, 8)),  # the last overlaps
        ((9, 8), (8, 8), (1, 1)),
        ((13, 29), (13, 29), (13, 29)),
        ((11, 23), (4, 9), (3, 2)),
    ],
)
@pytest.mark.parametrize("together", [1, 3, 1000])
def test_overlapping_windows_are_averaged_where_they_overlap(size, window, stride, together):
    found = segment_sliding(PlaceInWindow(), torch.zeros(2, 3, *size), window, stride, together)
    for each in found:
        rows, columns, area = each
        assert torch.allclose(rows, by_hand(size[0], window[0], stride[0])[:, None].expand(size))
        assert torch.allclose(columns, by_hand(size[1], window[1], stride[1]).expand(size))
        assert (area == window[0] * window[1]).all()  # every window was whole


def test_an_image_smaller_than_the_window_is_padded_to_it():
    network = Pointwise()
    segment_sliding(network, torch.randn(2, 3, 5, 20), (8, 8), (4, 4))
    assert {images.shape[1:] for images in network.shown} == {(3, 8, 8)}
    assert sum(map(len, network.shown)) == 2 * 4  # columns from 0, 4, 8 and 12


def network_of(forward, multiple=(1, 1)):
    return type("Network", (nn.Module,), {"size_multiple": multiple, "forward": lambda self, images: forward(images)})()


def test_windows_are_summed_in_full_precision():
    images = torch.randn(1, 3, 12, 12).to(torch.bfloat16).float()
    found = segment_sliding(network_of(lambda images: images.to(torch.bfloat16)), images, (6, 6), (1, 1))
    assert found.dtype == torch.float32
    assert torch.allclose(found, images, atol=1e-6)


def test_the_law_holds_for_sizes_as_they_are_and_is_lost_by_padding_and_by_windows():
    """A circular network keeps its law only where nothing is added and no window stands."""
    network = nn.Conv2d(3, 4, 5, padding=2, padding_mode="circular").double()
    network.size_multiple = (8, 8)

    def moved(way, images):
        there = way(torch.roll(images, (3, 5), (2, 3)))
        return (torch.roll(there, (-3, -5), (2, 3)) - way(images)).abs().max()

    fitting, odd = torch.randn(1, 3, 16, 24).double(), torch.randn(1, 3, 15, 22).double()
    assert moved(lambda x: segment_whole(network, x), fitting) < 1e-12
    assert moved(lambda x: segment_whole(network, x), odd) > 1e-2
    assert moved(lambda x: segment_sliding(network, x, (8, 8), (8, 8)).double(), fitting) > 1e-2


@pytest.mark.parametrize(("stride", "together"), [((9, 4), 1), ((4, 0), 1), ((4, 4), 0)])
def test_strides_that_leave_pixels_out_are_refused(stride, together):
    with pytest.raises(ValueError, match="needs strides from 1 to the window's size"):
        segment_sliding(Pointwise(), torch.randn(1, 3, 20, 20), (8, 8), stride, together)


def test_answers_that_are_not_for_every_pixel_are_refused():
    for forward in (lambda images: images.mean((2, 3)), lambda images: images[:, :, ::4, ::4]):
        with pytest.raises(ValueError, match=r"needs logits \[B, classes, H, W\] for every pixel"):
            segment_whole(network_of(forward, (4, 4)), torch.randn(1, 3, 8, 8))


def test_gradients_pass_both_ways():
    images = torch.randn(1, 3, 9, 9, requires_grad=True)
    network = Pointwise((4, 4))
    for found in (segment_whole(network, images), segment_sliding(network, images, (4, 4), (3, 3))):
        (gradient,) = torch.autograd.grad(found.sum(), images)
        expected = network.layer.weight.sum((0, 2, 3)).view(1, 3, 1, 1).expand_as(images)
        assert torch.allclose(gradient, expected, atol=1e-5)
