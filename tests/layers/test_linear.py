"""Weights that are cast together give what autocast gives, and nothing of them stays."""

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.layers import linear
from trueshift.layers.linear import Linear, cast_together
from trueshift.models import stage
from trueshift.models.stage import Mlp


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.fixture
def blocks():
    return nn.Sequential(Mlp(16, 32), nn.ModuleList([Linear(16, 8, bias=False), None]), Mlp(16, 32, 24))


def ready():
    return linear._cast.get({})


@torch.no_grad()
def test_as_autocast_casts(blocks):
    x = torch.randn(2, 3, 16)
    with autocast():
        expected = [blocks[0](x), blocks[1][0](x), blocks[2](x)]
        with cast_together(blocks):
            assert len(ready()) == 5
            assert all(weight.data_ptr() % 16 == 0 for weight, _ in ready().values())
            assert all(torch.equal(weight, layer.weight.bfloat16()) for layer, (weight, _) in ready().items())
            found = [blocks[0](x), blocks[1][0](x), blocks[2](x)]
        assert not ready()
    assert all(torch.equal(*both) and both[0].dtype == torch.bfloat16 for both in zip(expected, found, strict=True))


@torch.no_grad()
def test_a_changed_weight_is_seen(blocks):
    """Even one that changes no version counter, and within one region of autocast, whose own cache would miss it."""
    x, layer, found = torch.randn(2, 16), blocks[0].fc1, []
    layer.bias.zero_()
    with autocast():
        for _ in range(2):
            with cast_together(blocks):
                found.append(layer(x))
            layer.weight.data.neg_()
    assert torch.equal(found[0], -found[1])


@torch.no_grad()
def test_without_autocast_nothing_is_cast(blocks):
    with cast_together(blocks):
        assert not ready()
    with autocast(), cast_together(blocks), torch.autocast("cpu", enabled=False):
        assert blocks[0](torch.randn(2, 16)).dtype == torch.float32


@torch.no_grad()
def test_what_is_not_as_it_was_made_casts_itself(blocks):
    class Other(Linear):
        pass

    blocks[0].fc1.__class__ = Other
    blocks[0].fc2 = nn.utils.parametrizations.weight_norm(blocks[0].fc2)
    blocks[1][0].weight = nn.Parameter(torch.zeros(0))  # a shard, before its layer is called
    blocks[2].fc1.to(torch.float64)
    blocks[2].fc2 = Linear(32, 7)  # parts behind it would not be aligned
    with autocast(), cast_together(blocks):
        assert not ready()
    with autocast(), cast_together(blocks.to("meta")):
        assert not ready()


@torch.no_grad()
def test_other_threads_and_errors(blocks):
    seen = []
    with autocast(), cast_together(blocks):
        worker = threading.Thread(target=lambda: seen.append(len(ready())))
        worker.start()
        worker.join()
        assert ready()
    assert seen == [0]
    blocks[0].act.register_forward_hook(lambda *_: 1 / 0)
    with autocast(), pytest.raises(ZeroDivisionError), cast_together(blocks):
        blocks[0](torch.zeros(3, 16))
    assert not ready()


@pytest.mark.parametrize(
    "name",
    ["a_swinv2_mini", *(pytest.param(f"a_{name}_mini", marks=pytest.mark.slow) for name in ("cvt", "swin", "mvitv2"))],
)
def test_networks(name, monkeypatch):
    """The same logits, and all weights of all blocks in one operation for each stage."""
    model, image = ts.create_model(name).eval(), torch.rand(1, 3, 32, 32)
    counts = []
    all_as = linear._all_as
    monkeypatch.setattr(linear, "_all_as", lambda dtype, tensors: counts.append(len(tensors)) or all_as(dtype, tensors))
    with torch.no_grad(), autocast():
        found = model(image)
    layers = [layer for layer in model.modules() if type(layer) is Linear]
    assert sum(counts) == sum(1 if layer.bias is None else 2 for layer in layers) > 0
    with autocast():
        model(image)
    assert len(counts) == len(model.stage_list)  # with a gradient each layer casts its own
    monkeypatch.setattr(stage, "cast_together", lambda blocks: nullcontext())
    with torch.no_grad(), autocast():
        assert torch.equal(found, model(image))
