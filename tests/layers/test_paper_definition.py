"""The exact choice is the paper's: its naive definition in float64 agrees wherever two scores differ clearly."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trueshift as ts
from trueshift.testing import photographs

CASES = 300
CLEAR = 1e-5


def images_of(number: int, channels: int, size: int) -> torch.Tensor:
    """Half noise of several kinds, half crops of photographs at random places and contrasts."""
    noise = torch.randn(number // 2, channels, size, size) * 10 ** (4 * torch.rand(number // 2, 1, 1, 1) - 2)
    noise[: number // 4] = F.interpolate(torch.randn(number // 4, channels, 4, 4), (size, size), mode="bicubic")
    photos = torch.stack(list(photographs(128).values())).repeat(1, channels // 3 + 1, 1, 1)[:, :channels]
    corners = torch.randint(128 - size, (number - len(noise), 2)).tolist()
    crops = [photos[n % 6, :, row : row + size, column : column + size] for n, (row, column) in enumerate(corners)]
    return torch.cat([noise, torch.stack(crops) * torch.rand(len(crops), 1, 1, 1) - 0.4])


def clear_winner(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best = scores.topk(2, 1)
    return best.indices[:, 0], (best.values[:, 0] - best.values[:, 1]) / best.values[:, 0].abs() > CLEAR


def compare(choice: ts.Choice, naive: torch.Tensor) -> None:
    """``naive``: one float64 score per offset, [B, sh, sw]."""
    winner, clear = clear_winner(naive.flatten(1))
    expected = torch.stack([winner // naive.shape[2], winner % naive.shape[2]], 1)
    assert clear.sum() > 0.8 * len(clear)  # otherwise the comparison says little
    assert torch.equal(choice.offset[clear], expected[clear])


def phase_scores(dense: torch.Tensor, p: float, stride: tuple[int, int]) -> torch.Tensor:
    """``dense`` [B, H, W, D]: the p-norm of each polyphase component, by plain slicing."""
    starts = product(range(stride[0]), range(stride[1]))
    scores = [dense[:, m :: stride[0], n :: stride[1]].flatten(1).abs().pow(p).sum(1) for m, n in starts]
    return torch.stack(scores, 1).unflatten(1, stride)


@pytest.mark.parametrize(
    ("patch", "kernel", "p", "channels", "bias"),
    [(4, 4, 2, 3, True), (4, 7, 2, 3, True), (2, 3, 2, 8, False), (4, 4, 1, 3, True), (2, 2, 1.5, 1, True)],
)
def test_tokenize(patch, kernel, p, channels, bias):
    padding = (kernel - patch) // 2
    layer = ts.AdaptiveTokenize(
        channels, 32, patch, kernel, padding, criterion=ts.MaxNorm(p), anchor=False, bias=bias, norm_layer=nn.LayerNorm
    )
    images = images_of(CASES, channels, 8 * patch)
    after = kernel - 1 - padding
    wide = F.pad(images.double(), (padding, after, padding, after), mode="circular")
    weight, offset = layer.proj.weight.detach().double(), layer.proj.bias
    dense = F.conv2d(wide, weight, offset.detach().double() if bias else None).permute(0, 2, 3, 1)
    compare(layer.choose(images), phase_scores(dense, p, (patch, patch)))


@pytest.mark.parametrize(("norm", "p"), [("before", 2), ("before", 1), ("after", 2), ("none", 1)])
def test_merge(norm, p):
    layer = ts.AdaptiveMerge(16, norm=norm, criterion=ts.MaxNorm(p))
    if norm != "none":
        nn.init.normal_(layer.norm.weight, 1, 0.3)
        nn.init.normal_(layer.norm.bias, 0, 0.3)
    tokens = images_of(CASES, 16, 14).permute(0, 2, 3, 1)
    wide = tokens.double()
    neighbours = [torch.roll(wide, (-row, -column), (1, 2)) for column in (0, 1) for row in (0, 1)]
    patches = torch.cat(neighbours, 3)
    if norm == "before":
        patches = F.layer_norm(patches, (64,), layer.norm.weight.double(), layer.norm.bias.double(), layer.norm.eps)
    dense = patches @ layer.reduction.weight.detach().double().T
    compare(layer.choose(ts.Tokens.of_image(tokens.permute(0, 3, 1, 2))), phase_scores(dense, p, (2, 2)).detach())


@pytest.mark.parametrize("groups", [1, 16])
def test_conv_merge(groups):
    layer = ts.AdaptiveConvMerge(16, 32, groups=groups)
    images = images_of(CASES, 16, 14)
    weight, bias = layer.proj.weight.detach().double(), layer.proj.bias.detach().double()
    dense = F.conv2d(F.pad(images.double(), (1, 1, 1, 1), mode="circular"), weight, bias, groups=groups)
    compare(layer.choose(ts.Tokens.of_image(images)), phase_scores(dense.permute(0, 2, 3, 1), 2, (2, 2)))


@pytest.mark.parametrize(("p", "window"), [(2, (4, 4)), (1, (4, 4)), (3, (2, 7))])
def test_align(p, window):
    layer = ts.AlignWindows(window, p=p)
    tokens = images_of(CASES, 16, 28 if 7 in window else 16)
    norms = tokens.double().norm(p, dim=1)
    places = product(range(window[0]), range(window[1]))
    energy = torch.stack([torch.roll(norms, (-row, -column), (1, 2)) for row, column in places]).mean(0)
    compare(layer.choose(ts.Tokens.of_image(tokens)), phase_scores(energy[..., None], 2, window))


def test_align_where_one_window_spans_the_grid():
    tokens = images_of(CASES, 16, 8)
    energy = tokens.double().square().sum(1)
    compare(ts.AlignWindows(8).choose(ts.Tokens.of_image(tokens)), energy)
    # along the height only: windows choose the columns, tokens the rows
    choice = ts.AlignWindows((8, 4)).choose(ts.Tokens.of_image(tokens))
    norms = tokens.double().norm(dim=1)
    windows = torch.stack([torch.roll(norms, -column, 2) for column in range(4)]).mean(0).mean(1)
    columns, clear = clear_winner(phase_scores(windows[:, None, :, None], 2, (1, 4))[:, 0])
    assert torch.equal(choice.offset[clear, 1], columns[clear])
    starts = choice.offset[:, 1].tolist()
    rows, clear = clear_winner(
        torch.stack([plane[:, start::4].sum(1) for plane, start in zip(energy, starts, strict=True)])
    )
    assert torch.equal(choice.offset[clear, 0], rows[clear])


def test_normed_tokens_would_have_been_useless_to_choose_by():
    """Why the score is taken before the norm: after it, the best and the next differ by rounding only."""
    layer = ts.AdaptiveTokenize(3, 32, 4, norm_layer=nn.LayerNorm, anchor=False)
    images = images_of(64, 3, 32)
    pixels = ts.Tokens.of_image(images)
    dense = F.layer_norm(ts.layers.tokenize.PatchCandidates(layer, pixels).dense(), (32,))
    after = phase_scores(dense.double(), 2, (4, 4)).flatten(1).topk(2, 1).values
    assert ((after[:, 0] - after[:, 1]) / after[:, 0]).median() < layer.choose(images).margin.median() / 100
