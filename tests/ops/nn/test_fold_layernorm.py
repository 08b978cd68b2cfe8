"""A norm folded into the projection of patches: the same numbers as by the definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueshift.ops.geometry.polyphase import polyphase, take_phase
from trueshift.ops.geometry.shift import circular_pad, circular_take
from trueshift.ops.nn.fold_layernorm import project_patches_everywhere


def test_a_phase_is_taken_as_from_the_whole():
    x, offset = torch.randn(4, 6, 9, 2), torch.tensor([[0, 0], [1, 2], [1, 0], [0, 1]])
    assert torch.equal(take_phase(polyphase(x, (2, 3)), offset), circular_take(x, offset, (2, 3)))


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_folded_norm_is_the_norm(mean):
    x, weight = torch.randn(2, 6, 4, 5).double() + mean, torch.randn(7, 2, 3, 5).double()
    bias, norm = torch.randn(7).double(), nn.LayerNorm(30).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    windows = circular_pad(x, (0, 1), (0, 2)).unfold(1, 2, 1).unfold(2, 3, 1)  # B H W C 2 3
    rows = weight.transpose(1, 2).flatten(1)  # column by column
    for given in (bias, None):
        expected = F.linear(norm(windows.permute(0, 1, 2, 5, 4, 3).flatten(3)), rows, given)
        found = project_patches_everywhere(x, weight, given, norm)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
