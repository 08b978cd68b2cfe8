"""Linear layers whose weights are cast to the precision of the network together.

Under autocast each linear layer casts its weight and its bias, every time the network runs: two small kernels beside
the one that multiplies, and for small batches starting them is what takes the time. Where no gradient is asked for, all
of a stage are cast by one operation. Nothing outlives the pass, so no change of a weight can be missed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ALIGNED = 8  # numbers of two bytes: each tensor begins where the fastest products want it

_Cast = Mapping[nn.Module, tuple[Tensor, Tensor | None]]
_cast: ContextVar[_Cast] = ContextVar("_cast")  # of the pass in progress, in its own thread alone


class Linear(nn.Linear):
    """``nn.Linear`` that takes its weights from :func:`cast_together`, where they are cast already."""

    def forward(self, input: Float[Tensor, "*any C"]) -> Float[Tensor, "*any D"]:
        """Project each token."""
        return F.linear(input, *operands(self, input))


def operands(layer: nn.Linear, input: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a layer for a product with ``input``: its own, unless others are ready."""
    if not torch.compiler.is_compiling():
        cast = _cast.get({}).get(layer)
        if cast is not None and (input.dtype == cast[0].dtype or torch.is_autocast_enabled(input.device.type)):
            return cast
    return layer.weight, layer.bias


@contextmanager
def cast_together(blocks: nn.Module) -> Iterator[None]:
    """Within: the linear layers in ``blocks`` compute with weights that were cast as autocast would, by one operation.

    For eager code that asks for no gradient; without autocast nothing is done.
    """
    token = _cast.set(_as_autocast(_linear_layers(blocks)))
    try:
        yield
    finally:
        _cast.reset(token)


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


def _as_autocast(layers: list[Linear]) -> _Cast:
    """Weight and bias of each layer in the type of autocast, where it is on."""
    device = layers[0].weight.device if layers else torch.device("meta")
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return {}
    layers = [layer for layer in layers if _as_made(layer, device)]
    biased = [layer for layer in layers if layer._parameters["bias"] is not None]
    tensors = [layer._parameters["weight"] for layer in layers] + [layer._parameters["bias"] for layer in biased]
    cast = _all_as(torch.get_autocast_dtype(device.type), tensors)  # type: ignore[arg-type]
    biases = dict(zip(biased, cast[len(layers) :], strict=True))
    return {layer: (weight, biases.get(layer)) for layer, weight in zip(layers, cast, strict=False)}


def _as_made(layer: Linear, device: torch.device) -> bool:
    """No shard of a parameter, no subclass, nothing that a hook has yet to fetch; and all parts begin aligned."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
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
