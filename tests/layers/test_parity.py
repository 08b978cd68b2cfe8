"""Parts of our layers beside timm's and torch's; that whole networks are timm's is in test_same_as_reference.py."""

import pytest
import torch
import torch.nn.functional as F
from timm.layers import gen_relative_log_coords, gen_relative_position_index
from torch import nn

from trueshift.layers.attention import distance_index, log_distances
from trueshift.ops.nn.conv import conv_on_circle


@pytest.mark.parametrize("window", [(7, 7), (8, 4), (2, 16), (24, 24)])
@pytest.mark.parametrize("trained", [(0, 0), (12, 6)])
def test_distances_within_a_window_are_timms(window, trained):
    assert torch.equal(distance_index(window), gen_relative_position_index(window))
    assert torch.equal(log_distances(window, trained), gen_relative_log_coords(window, trained).flatten(0, 1))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(7, 4, 2), (3, 2, 1), (4, 4, 0), (4, 4, 1), (5, 2, 2)])
def test_overlapping_tokens_are_every_fourth_of_the_dense_ones(kernel, stride, padding):
    conv = nn.Conv2d(3, 8, kernel, stride, padding)
    image = torch.randn(2, 3, 32, 32)
    dense = conv_on_circle(image, conv, (1, 1), (padding, padding))
    assert dense.shape[2:] == (32, 32)  # one for every pixel
    strided = conv_on_circle(image, conv, (stride, stride), (padding, padding))
    torch.testing.assert_close(strided, dense[:, :, ::stride, ::stride])
    circular = F.conv2d(F.pad(image, [padding] * 4, mode="circular"), conv.weight, conv.bias, stride)
    torch.testing.assert_close(strided[..., : circular.shape[2], : circular.shape[3]], circular)
