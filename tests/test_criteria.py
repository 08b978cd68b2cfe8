"""Criteria: the paper's, none, a learned one and a user's own."""

import re
from pathlib import Path

import pytest
import torch
from layer_zoo import Busiest
from torch import nn
from unchecked import in_own_process

import trueshift as ts
from trueshift.ops import kernels
from trueshift.ops.selection.exact import exact_sum
from trueshift.testing import assert_equivariant, photographs


def photos():
    """The photographs, as a network is shown them."""
    return 4 * torch.stack(list(photographs(32).values())) - 2


class LeastNorm(ts.MaxNorm):
    """Overrides the scores alone."""

    def scores(self, candidates):
        return -candidates.energy()


class LeastInput(ts.InputNorm):
    def scores(self, candidates):
        return -super().scores(candidates)


class Quietest(ts.MaxNorm):
    """Overrides the scores of positions alone."""

    def position_scores(self, features):
        return -exact_sum(features.abs(), (3,))


class QuietestInput(ts.InputNorm):
    position_scores = Quietest.position_scores


class Layers(nn.Module):
    def __init__(self, criterion):
        super().__init__()
        self.merge, self.align = ts.AdaptiveMerge(4, criterion=criterion), ts.AlignWindows(2, criterion=criterion)

    def forward(self, values):
        origin = values.new_zeros((values.shape[0], 2), dtype=torch.int64)
        tokens = ts.Tokens(values, ts.TokenGrid((2, 2), origin, (16, 16), anchored=True))
        return self.merge.choose(tokens).offset, self.align.choose(self.merge(tokens)).offset


@pytest.mark.parametrize("criterion", [Busiest, ts.InputNorm, ts.Spot, Quietest, QuietestInput])
def test_other_criteria_are_exact_too(criterion):
    assert_equivariant(ts.AdaptiveTokenize(3, 8, 4, criterion=criterion()), size=32, shifts=8)
    layers = ts.AdaptiveMerge(8, criterion=criterion()), ts.AlignWindows(4, criterion=criterion())
    assert_equivariant(nn.Sequential(ts.AdaptiveTokenize(3, 8, 2), *layers), size=32, shifts=8)


@pytest.mark.parametrize(
    ("usual", "own"),
    [(ts.MaxNorm, LeastNorm), (ts.InputNorm, LeastInput), (ts.MaxNorm, Quietest), (ts.InputNorm, QuietestInput)],
)
@in_own_process
@torch.no_grad()
def test_a_subclass_chooses_by_its_own_scores_on_every_path(usual, own):
    """Plain, compiled and exported; by kernels, eager and compiled."""
    layers, values = Layers(usual()).eval(), torch.randn(6, 8, 8, 4)
    usual_choice = layers(values)
    layers.merge.criterion = layers.align.criterion = own()
    expected = layers(values)
    assert not torch.equal(usual_choice[0], expected[0])
    for on in [False, True] if kernels.AVAILABLE and kernels.INTERPRETED else [False]:
        torch._dynamo.reset()
        compiled = torch.compile(layers, fullgraph=True, backend="eager")
        paths = [layers, compiled] if on else [compiled, torch.export.export(layers, (values,)).module()]
        with kernels.switched(on):
            assert all(all(map(torch.equal, path(values), expected)) for path in paths)


def test_the_norm_of_the_input_chooses():
    values = torch.rand(1, 4, 6, 8)
    values[0, 1::2, ::2] += 1
    tokens = ts.Tokens(values, ts.TokenGrid((2, 2), torch.zeros(1, 2, dtype=torch.int64), (8, 12)))
    assert ts.AdaptiveMerge(8, criterion=ts.InputNorm()).choose(tokens).offset.tolist() == [[1, 0]]


def test_the_criterion_of_the_document_chooses_in_every_layer_that_has_it():
    """Windows cannot be chosen by a sum that is linear in their energy: rounding would."""
    document = Path(__file__).parents[1] / "docs/criterion.md"
    program, names = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL), {}
    exec("\n".join(program[:2]), names)
    for network in (names["model"], names["merges"]):
        decisions = ts.explain(network, photos()).decisions
        assert len(decisions) == 6
        assert all(decision.margin.median() > 2**-20 for decision in decisions)  # single images may be near a tie


def test_a_fixed_offset_is_that_modulo_the_stride():
    image = torch.rand(2, 3, 32, 32)
    moved = ts.AdaptiveTokenize(3, 8, 4, criterion=ts.FixedOffset((1, 6)), anchor=False).choose(image)
    assert moved.offset.tolist() == [[1, 2]] * 2
    assert ts.FixedOffset(1).offset == (1, 1)
    assert moved.margin.isposinf().all()
    assert not moved.tied.any()


@pytest.mark.parametrize("name", ["a_swin_mini", "a_swinv2_mini"])
@pytest.mark.parametrize("criterion", ["max_norm", "learned", "input_norm", {"name": "max_norm", "p": 4}], ids=str)
def test_windows_follow_the_content_by_every_criterion(name, criterion):
    """A score that is linear in what is summed over all windows is the same wherever they start."""
    model = ts.create_model(name, criterion=criterion).eval()
    decisions = [each for each in ts.explain(model, photos()).decisions if "align" in each.layer]
    assert len(decisions) == 3
    for decision in decisions[:2]:
        assert len(decision.offset.unique(dim=0)) > 1
        assert decision.margin.median() > 1e-6
    if criterion == "max_norm":  # in the last stage one window spans the grid: the tokens themselves decide
        assert decisions[2].margin.median() > 1e-4


# -- learned scores ---------------------------------------------------------------------------------------------------


def learned(channels=3, dim=16, patch=4, **arguments):
    torch.manual_seed(0)
    return ts.AdaptiveTokenize(channels, dim, patch, criterion=ts.LearnedScore(dim, **arguments), anchor=False).train()


def test_a_learned_score_evaluates_as_its_float_network_does():
    layer, images = learned(dim=8, hidden=12, noise=False), torch.randn(300, 3, 16, 16)
    soft = layer.choose(images)
    exact = layer.eval().choose(images)
    clear = exact.margin > 1e-3
    assert clear.sum() > 100
    assert torch.equal(soft.offset[clear], exact.offset[clear])


def test_a_learned_score_of_windows_is_learned():
    """By the mean token: the sum of window energies is the same wherever windows start."""
    tokenize, align = learned(), ts.AlignWindows(2, criterion=ts.LearnedScore(16)).train()
    aligned, start = align.start(tokenize(photos()))
    assert start is None  # the mixture starts at the first token
    aligned.values.square().sum(3)[:, ::2, ::2].mean().backward()
    sizes = [layer.criterion.hidden.weight.grad.norm() for layer in (tokenize, align)]
    assert min(sizes) > 1e-3 * max(sizes)


def test_a_temperature_that_falls_makes_the_choice_harder():
    def sharpness(progress, **arguments):
        layer = learned(noise=False, **arguments)
        layer.criterion.progress.fill_(progress)
        assert "criterion.progress" not in layer.state_dict()
        return layer.choose(photos()).weights.flatten(1).amax(1).mean()

    first, middle, last = (sharpness(progress, final_temperature=0.01) for progress in (0.0, 0.5, 1.0))
    assert first < middle < last
    assert sharpness(1.0) == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_learned_scores_are_told_apart_in_half_precision(dtype):
    """New ones differ by a thousandth: in bfloat16 all grids tied, and the first was taken whatever the content."""
    layer = learned(noise=False).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        choice = layer.choose(torch.stack(list(photographs(32).values())).to(dtype))
    assert choice.weights.dtype == torch.float32
    assert all(len(weights.unique()) > 8 for weights in choice.weights.flatten(1))
    assert choice.offset.any(1).sum() > 1
    choice.weights.square().sum().backward()
    assert layer.criterion.hidden.weight.grad.abs().sum() > 0
