"""Random grids while training: as often as set, uniform, reproducible, and nothing of them in evaluation."""

import pytest
import timm
import torch
from model_checks import narrow
from unchecked import in_own_process

import trueshift as ts
from trueshift.criteria import Criterion
from trueshift.ops.selection.choose import Choice, drop_grids
from trueshift.train.compile_check import compiled

FAMILIES = ts.list_models("a_*mini*")


def chosen(model, x):
    """What each layer follows, in order: the offsets that Criterion.choose returned."""
    followed, original = [], Criterion.choose

    def noted(self, candidates):
        choice = original(self, candidates)
        if self.adaptive:
            followed.append(choice.offset)
        return choice

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Criterion, "choose", noted)
        model(x)
    return followed


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_share_of_the_images_gets_a_grid_drawn_uniformly(rate):
    best = torch.tensor([[1, 2]]).expand(30_000, 2)
    offset = drop_grids(Choice(best), (3, 4), rate).offset
    counts = torch.bincount(offset[:, 0] * 4 + offset[:, 1], minlength=12) / len(best)
    expected = torch.full((12,), rate / 12)
    expected[1 * 4 + 2] += 1 - rate
    assert torch.allclose(counts, expected, atol=0.01)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_choice_of_a_network_is_dropped_and_none_in_evaluation(name):
    x = torch.rand(16, 3, 32, 32)
    model = ts.create_model(name, grid_drop_rate=1.0, **narrow(name)).train()
    once, again = chosen(model, x), chosen(model, x)
    assert len(once) >= 3
    for first, second in zip(once, again, strict=True):
        assert not torch.equal(first, second)
        assert (first != first[:1]).any(), "images are drawn one by one"
    plain = ts.create_model(name, **narrow(name)).eval()
    plain.load_state_dict(model.eval().state_dict())
    assert torch.equal(plain(x), model(x))


def test_a_learned_score_learns_from_images_that_keep_their_grid_only():
    weights = torch.full((2, 2, 2), 0.25, requires_grad=True)
    torch.manual_seed(0)
    for rate, moved in ((0.0, True), (1.0, False)):
        dropped = drop_grids(Choice(torch.zeros(2, 2, dtype=torch.int64), (), weights), (2, 2), rate)
        weights.grad = None
        (dropped.weights * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        assert bool(weights.grad.any()) == moved
        assert torch.allclose(dropped.weights.sum((1, 2)), torch.ones(2))
    at = torch.stack([torch.arange(2), dropped.offset[:, 0], dropped.offset[:, 1]])
    assert torch.equal(dropped.weights[tuple(at)], torch.ones(2))


def test_an_ordinary_network_has_no_grids_to_drop():
    refused = pytest.raises(ValueError, match="grid_drop_rate with a fixed grid: needs a criterion that chooses")
    with refused:
        ts.create_model("swin_mini", anchor=True, grid_drop_rate=0.5)
    one_left = ts.create_model("a_swin_mini", criterion={"tokenize": "fixed", "align": "fixed"}, grid_drop_rate=0.5)
    with refused:
        ts.adapt(one_left, criterion="fixed")
    with refused:  # a ViT has no other place that could choose
        ts.adapt(timm.create_model("test_vit"), criterion={"tokenize": "fixed"}, grid_drop_rate=0.5)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@in_own_process
def test_compiled_training_draws_the_same_grids(backend):
    sizes = {"depths": (1, 1), "num_heads": (1, 2), "embed_dim": 16, "num_classes": 4}
    model = ts.create_model("a_swin_mini", grid_drop_rate=0.5, drop_path_rate=0.0, **sizes).train()
    other = compiled(model) if backend == "inductor" else torch.compile(model, backend=backend)
    x = torch.rand(8, 3, 32, 32)
    for seed in (1, 2):
        torch.manual_seed(seed)
        one = model(x)
        torch.manual_seed(seed)
        assert torch.allclose(one, other(x), atol=1e-4)
