"""A loss that is no number any more is noticed at its step, and traced to where it began."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch import nn

from trueshift import create_model
from trueshift.train.divergence import LossWatch, first_not_finite


def noted(*losses):
    watch = LossWatch()
    for step, loss in enumerate(losses):
        watch.note(step, torch.tensor(loss), torch.tensor(loss / 2))
    return watch


def test_losses_come_in_the_order_of_their_steps():
    watch = noted(3.0, 2.0, 1.0)
    assert watch.look() is None
    assert watch.taken() == [{"step": at, "loss": 3.0 - at, "grad_norm": (3.0 - at) / 2} for at in range(3)]
    assert watch.taken() == []
    watch.note(3, torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(0.25, dtype=torch.float64))
    assert watch.look(wait=True) is None
    assert watch.taken() == [{"step": 3, "loss": 0.5, "grad_norm": 0.25}]


@pytest.mark.parametrize(("value", "step"), [(nan, 0), (inf, 2), (-inf, 4)])
def test_the_first_loss_that_is_not_finite_is_named(value, step):
    watch = noted(*[1.0] * step, value, 1.0, nan)
    assert watch.look() == step
    assert [entry["step"] for entry in watch.recent] == list(range(step + 1))
    assert watch.taken() == list(watch.recent)


def test_a_gradient_alone_may_overflow_and_the_last_20_are_remembered():
    watch = noted(*map(float, range(50)))
    watch.note(50, torch.tensor(1.0), torch.tensor(inf))  # a scaler of fp16 looks for where this happens
    assert watch.look() is None
    assert [entry["step"] for entry in watch.recent] == list(range(31, 51))
    assert len(watch.taken()) == 51


def test_the_input_is_looked_at_first_then_the_weights_then_the_layers_in_order():
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm2d(1), nn.Linear(4, 4)), nn.Linear(4, 2)).eval()
    images = torch.rand(2, 1, 2, 4)
    assert first_not_finite(model, images) == "every layer is finite, so it is the loss itself"
    with torch.no_grad():
        for linear in (model[1][1], model[2]):
            linear.weight.fill_(3e38)
    assert first_not_finite(model, images) == "the output of 1.1 is not finite"
    assert not any(module._forward_hooks for module in model.modules())
    model[1][0].running_var.fill_(inf)
    assert first_not_finite(model, images) == "the weight 1.0.running_var is not finite"
    model[1][1].bias.data[1] = nan
    assert first_not_finite(model, images) == "the weight 1.1.bias is not finite"
    images[0, 0, 0, 0] = inf
    assert first_not_finite(model, images) == "the images hold values that are not finite"


def test_tokens_are_looked_into():
    class Overflow(nn.Module):
        def forward(self, tokens):
            return replace(tokens, values=tokens.values * inf)

    model = create_model("a_swin_mini", embed_dim=16, depths=(1, 1), num_heads=(1, 2)).eval()
    model.layers[0].downsample = Overflow()
    assert first_not_finite(model, torch.rand(1, 3, 32, 32)) == "the output of layers.0.downsample is not finite"
