"""What the compiler is told of a network that learns."""

from typing import Any

import torch
import torch._inductor.config as inductor
from torch import nn


def compiled(network: nn.Module) -> Any:
    """The network, compiled when it is first called."""
    return torch.compile(network, options=compiler_options())


def compiler_options() -> dict[str, Any]:
    """Settings of torch's compiler that differ from its own, where this torch knows them.

    From torch 2.10 on the sums of a layer norm's gradient over rows and over columns are put into one kernel, which can
    leave gradients of parameters wrong without a word (pytorch/pytorch#193061). A SwinV2 does not learn with it.
    """
    mixed = "triton.mix_order_reduction"
    return {mixed: False} if mixed in inductor.get_config_copy() else {}
