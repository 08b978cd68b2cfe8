"""Linear layers whose weights are cast to the precision of the network together.

Under autocast each linear layer casts its weight and its bias, every time the network runs: two small kernels beside
the one that multiplies, and for small batches starting them is what takes the time. Where no gradient is asked for, all
of a stage are cast by one operation. Nothing outlives the pass, so no change of a weight can be missed.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ALIGNED = 8  # numbers of two bytes: each tensor begins where the fastest products want it


class _Ready(threading.local):
    """What was cast for the pass that this thread is in."""

    by_layer: dict[nn.Module, tuple[Tensor, Tensor | None]] = {}  # noqa: RUF012 -- replaced, never changed


_ready = _Ready()


class Linear(nn.Linear):
    """``nn.Linear`` that takes its weights from :func:`cast_together`, where they are cast already."""

    def forward(self, input: Float[Tensor, "*any C"]) -> Float[Tensor, "*any D"]:
        """Project each token."""
        return F.linear(input, *operands(self, input))


def operands(layer: nn.Linear, input: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a layer for a product with ``input``: its own, unless others are ready."""
    if not torch.compiler.is_compiling():
        cast = _ready.by_layer.get(layer)
        if cast is not None and (input.dtype == cast[0].dtype or torch.is_autocast_enabled(input.device.type)):
            return cast
    return layer.weight, layer.bias


@contextmanager
def cast_together(blocks: nn.Module) -> Iterator[None]:
    """Within: the linear layers in ``blocks`` compute with weights that were cast as autocast would, by one operation.

    For eager code that asks for no gradient; without autocast nothing is done.
    """
    before, _ready.by_layer = _ready.by_layer, _cast(_linear_layers(blocks))
    try:
        yield
    finally:
        _ready.by_layer = before


def _linear_layers(blocks: nn.Module) -> list[Linear]:
    """All that are exactly ours: what somebody has put in the place of one knows best itself."""
    found, open_ = [], [blocks]
    while open_:
        for child in open_.pop()._modules.values():  # by far quicker than modules()
            if type(child) is Linear:
                found.append(child)
            elif child is not None and child._modules:
                open_.append(child)
    return found


def _cast(layers: list[Linear]) -> dict[nn.Module, tuple[Tensor, Tensor | None]]:
    """Weight and bias of each layer in the type of autocast, where it is on."""
    device = layers[0].weight.device if layers else torch.device("meta")
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return {}
    weights: dict[nn.Module, Tensor] = {}
    biases: dict[nn.Module, Tensor] = {}
    for layer in layers:
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if _as_made(layer, weight, bias, device):
            weights[layer] = weight  # type: ignore[assignment]
            if bias is not None:
                biases[layer] = bias
    cast = _all_as(torch.get_autocast_dtype(device.type), [*weights.values(), *biases.values()])
    shifts = dict(zip(biases, cast[len(weights) :], strict=True))
    return {layer: (weight, shifts.get(layer)) for layer, weight in zip(weights, cast, strict=False)}


def _as_made(layer: Linear, weight: Tensor | None, bias: Tensor | None, device: torch.device) -> bool:
    """No shard of a parameter, no subclass, nothing that a hook has yet to fetch; and all parts begin aligned."""
    return (
        type(weight) is nn.Parameter
        and (bias is None or type(bias) is nn.Parameter)
        and weight.dtype == torch.float32
        and weight.shape == (layer.out_features, layer.in_features)
        and weight.device == device
        and layer.out_features % ALIGNED == 0
    )


def _all_as(dtype: torch.dtype, tensors: list[Tensor]) -> list[Tensor]:
    """Tensors in another type. Those of one shape lie together: blocks repeat, and it is laid out in fewer steps."""
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        alike[tensor.shape].append(number)
    cast = list(tensors)
    for shape, numbers in alike.items():
        parts = tensors[numbers[0]].new_empty((len(numbers), *shape), dtype=dtype).unbind(0)
        for number, part in zip(numbers, parts, strict=True):
            cast[number] = part
    if tensors:
        torch._foreach_copy_(cast, tensors)
    return cast
