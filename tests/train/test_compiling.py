"""What the compiler is told when a network learns."""

from types import SimpleNamespace

import torch
import torch._inductor.config as inductor
from torch import nn

from trueshift.train import compiling
from trueshift.train.compiling import compiled, compiler_options


def test_sums_over_rows_and_columns_stay_apart_where_this_torch_would_join_them():
    known = "triton.mix_order_reduction" in inductor.get_config_copy()
    assert compiler_options() == ({"triton.mix_order_reduction": False} if known else {})


def test_a_torch_that_does_not_know_a_setting_is_not_told_of_it(monkeypatch):
    monkeypatch.setattr(compiling, "inductor", SimpleNamespace(get_config_copy=dict))
    assert compiler_options() == {}


def test_the_settings_are_this_networks_alone():
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    x = torch.randn(5, 3)
    before = inductor.get_config_copy()
    torch.testing.assert_close(compiled(network)(x), network(x))
    assert inductor.get_config_copy() == before
