"""With a fixed offset our layers are timm's, weight for weight."""

import pytest
import torch
import torch.nn.functional as F
from timm.layers import PatchEmbed, gen_relative_log_coords, gen_relative_position_index, set_fused_attn
from timm.models import swin_transformer, swin_transformer_v2
from torch import nn

import trueshift as ts
from trueshift.layers.attention import distance_index, log_distances
from trueshift.ops.nn.conv import conv_on_circle


def test_tokenize_is_timms_patch_embedding():
    theirs = PatchEmbed(64, 4, 3, 24, norm_layer=nn.LayerNorm, output_fmt="NHWC")
    ours = ts.AdaptiveTokenize(3, 24, 4, norm_layer=nn.LayerNorm, criterion=ts.FixedOffset(), anchor=False)
    ours.load_state_dict(theirs.state_dict())
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(image).values, theirs(image))


@pytest.mark.parametrize(("norm", "module"), [("before", swin_transformer), ("after", swin_transformer_v2)])
def test_merge_is_timms(norm, module):
    theirs = module.PatchMerging(8)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = ts.AdaptiveMerge(8, norm=norm, criterion=ts.FixedOffset())
    ours.load_state_dict(theirs.state_dict())
    values = torch.randn(2, 8, 6, 8)
    tokens = ts.Tokens.of_image(values.permute(0, 3, 1, 2))
    torch.testing.assert_close(ours(tokens).values, theirs(values), rtol=1e-5, atol=1e-5)


def test_window_attention_is_timms():
    set_fused_attn(True)
    theirs = swin_transformer.WindowAttention(16, num_heads=4, head_dim=4, window_size=(4, 2)).eval()
    nn.init.normal_(theirs.relative_position_bias_table)
    ours = ts.WindowAttention(16, (4, 2), 4).eval()
    ours.load_state_dict(theirs.state_dict())
    values = torch.randn(3, 4, 2, 16)  # one window each
    expected = theirs(values.flatten(1, 2)).view_as(values)
    torch.testing.assert_close(ours(values), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [(7, 7), (8, 4), (2, 16), (24, 24)])
@pytest.mark.parametrize("trained", [(0, 0), (12, 6)])
def test_distances_within_a_window_are_timms(window, trained):
    assert torch.equal(distance_index(window), gen_relative_position_index(window))
    assert torch.equal(log_distances(window, trained), gen_relative_log_coords(window, trained).flatten(0, 1))


def test_conv_merge_with_zero_padding_is_the_ordinary_convolution():
    ours = ts.AdaptiveConvMerge(6, 8, criterion=ts.FixedOffset(), padding_mode="zeros")
    image = torch.randn(2, 6, 8, 12)
    expected = F.conv2d(image, ours.proj.weight, ours.proj.bias, stride=2, padding=1)
    torch.testing.assert_close(ours(ts.Tokens.of_image(image)).values, expected.permute(0, 2, 3, 1))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(7, 4, 2), (3, 2, 1), (4, 4, 0), (5, 2, 2)])
def test_overlapping_tokens_are_every_fourth_of_the_dense_ones(kernel, stride, padding):
    conv = nn.Conv2d(3, 8, kernel, stride, padding)
    image = torch.randn(2, 3, 32, 32)
    dense = conv_on_circle(image, conv, (1, 1), (padding, padding))
    assert dense.shape[2:] == (32, 32)  # one for every pixel
    strided = conv_on_circle(image, conv, (stride, stride), (padding, padding))
    torch.testing.assert_close(strided, dense[:, :, ::stride, ::stride])
    circular = F.conv2d(F.pad(image, [padding] * 4, mode="circular"), conv.weight, conv.bias, stride)
    torch.testing.assert_close(strided[..., : circular.shape[2], : circular.shape[3]], circular)
