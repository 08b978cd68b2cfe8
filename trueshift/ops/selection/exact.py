r"""Arithmetic whose result does not depend on where in the image its terms are.

A floating-point sum taken in another order rounds differently, and kernels choose their order by position. A choice
between nearly equal scores then flips when the image moves. Two facts prevent this:

- An operation on single elements (add, multiply, divide, square root) is rounded correctly wherever the element is.
  Only these are used: ``pow`` or ``exp`` may differ between a vector loop and its tail.
- A sum of integers held in float64 is exact, in any order, while it stays below 2**53. So whatever has to be summed is
  first rounded to integers, in units of a power of two taken from the image's largest value, which does not move.
"""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, floor, log2, prod
from typing import Any

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn

from ..geometry.shift import Pair, circular_pad
from ..kernels import transformed

EXACT_BITS = 52  # integers up to 2**52 leave one bit of room in float64
_POWERS = torch.tensor([2.0**exponent for exponent in range(-922, 1023)], dtype=torch.float64, device="cpu")


def headroom(terms: int) -> int:
    """How many bits the summands may have so that the sum of that many of them is exact."""
    return EXACT_BITS - ceil(log2(max(terms, 1)))


def power_of_two_above(x: Float64[Tensor, "*any"]) -> Float64[Tensor, "*any"]:
    """The smallest power of two above each ``x >= 0``, read off its exponent bits; never so extreme that 1/x is not."""
    if exporting():  # by comparison; of a few values only
        powers = _POWERS.to(x.device)
        return torch.where(powers > x[..., None], powers, powers[-1]).amin(-1)
    exponent = ((x.view(torch.int64) >> 52) & 0x7FF).clamp(100, 2044) + 1
    return (exponent << 52).view(torch.float64)


def quantise(x: Float[Tensor, "B *rest"], bits: int) -> tuple[Tensor, Tensor]:
    """Round to integers of at most ``bits`` bits, in float64; the unit is one power of two per image.

    Shift law: ``quantise(S x) == S quantise(x)``, with the same unit.

    Returns:
        the integers, of the shape of ``x``, and the unit ``[B, 1, ...]``: ``x`` is about ``integers * unit``.
    """
    refuse_mps(x)
    dims = tuple(range(1, x.dim()))
    # the largest magnitude without a copy of |x|
    peak = torch.maximum(x.amax(dims, keepdim=True), -x.amin(dims, keepdim=True)).to(torch.float64)
    require_finite(peak)
    unit = power_of_two_above(peak) * 2.0**-bits
    return (x * (1 / unit)).round_(), unit  # the product is in float64, and ours to overwrite


def refuse_mps(x: Tensor) -> None:
    """MPS has no float64."""
    if x.device.type == "mps":
        raise NotImplementedError(
            "choosing a grid needs float64, which MPS does not have: move model and image to the CPU"
        )


def require_finite(peak: Tensor) -> None:
    """Refuse NaN and infinity, where asking costs nothing: on an accelerator, the question would stall the queue."""
    if can_ask(peak) and not bool(peak.isfinite().all()):
        raise ValueError("the input holds NaN or infinity: a grid can only be chosen on finite values")


def can_ask(x: Tensor) -> bool:
    """Whether Python may look at the values of ``x`` without a synchronisation or a break in a graph or transform."""
    if torch.compiler.is_compiling() or transformed():
        return False
    if torch.jit.is_tracing():  # would record the branch that one image takes
        raise NotImplementedError(
            "torch.jit.trace records what one image does, and a choice of grids is another for each: needs "
            "torch.export.export, torch.compile or trueshift.export_onnx"
        )
    return x.device.type == "cpu"


def within_graph(x: Tensor) -> bool:
    """Whether this is compiled, transformed, or captured as a CUDA graph: what is made here is the graph's own."""
    return torch.compiler.is_compiling() or transformed() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def kept(count: int) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Keep the last ``count`` tensors that a function of numbers makes: it takes more launches than using them.

    What it makes within a graph is the graph's own. Its first argument is a tensor, whose device it is made on.
    """

    def decorate(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @lru_cache(count)
        def once(*key: Any) -> Tensor:
            with torch.inference_mode(False), torch.no_grad():  # usable wherever it was made
                return make(*key)

        def either(like: Tensor, *key: Any) -> Tensor:
            return (make if within_graph(like) else once)(like.device, *key)

        return either

    return decorate


def exporting() -> bool:
    """Whether a graph is being exported, in which nothing may look at the bits of a number: ONNX cannot.

    ``torch.compiler.is_exporting()`` asks the same, but in older versions it is also true under ``torch.compile``.
    """
    return torch.compiler._is_exporting_flag


def exact_sum(x: Float[Tensor, "B *rest"], dims: tuple[int, ...]) -> Float64[Tensor, "B *kept"]:
    """Sum over ``dims`` after rounding to fixed point: the same value in any order of the terms.

    One unit serves the whole image, so that it does not depend on which positions are summed together.
    """
    terms = prod([x.shape[dim] for dim in dims])
    integers, unit = quantise(x, headroom(terms))
    return integers.sum(dims) * unit.view(-1, *[1] * (x.dim() - len(dims) - 1))


def exact_linear(x: Tensor, weight: Float[Tensor, "N K"]) -> Float64[Tensor, "B *rest N"]:
    """``x @ weight.T`` in fixed point: 23 bits of each factor for 64 terms, 20 for 4096.

    Shift law: ``exact_linear(S x) == S exact_linear(x)``, bit for bit, on any matrix kernel.
    """
    integers, weights, unit = _operands(x, weight, terms=x.shape[-1])
    return integers @ weights.T * unit


def exact_conv(
    x: Shaped[Tensor, "B H W C"], weight: Float[Tensor, "D Cg kh kw"], padding: Pair, groups: int = 1
) -> Float64[Tensor, "B H W D"]:
    """Circular convolution of stride 1 in fixed point; ``padding`` is how far the kernel reaches before its start.

    Shift law: ``exact_conv(S x) == S exact_conv(x)``, bit for bit.
    """
    height, width = weight.shape[2:]
    integers, weights, unit = _operands(x, weight, terms=weight[0].numel())
    rows, columns = (padding[0], height - 1 - padding[0]), (padding[1], width - 1 - padding[1])
    patches = circular_pad(integers, rows, columns).unfold(1, height, 1).unfold(2, width, 1)  # B H W C kh kw
    patches = patches.unflatten(3, (groups, -1)).flatten(4)
    weights = weights.flatten(1).unflatten(0, (groups, -1))
    return torch.einsum("bhwgk,gdk->bhwgd", patches, weights).flatten(3) * unit


def _operands(x: Tensor, weight: Tensor, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both factors of an exact product as integers, and the unit of their products."""
    bits = headroom(terms) // 2
    integers, unit = quantise(x, bits)
    weights, weight_unit = quantise(weight.detach()[None], bits)
    return integers, weights[0], unit * weight_unit.view(())


def exact_power(x: Float64[Tensor, "*any"], p: float) -> Float64[Tensor, "*any"]:
    """``x ** p`` for ``x >= 0``, ``p > 0`` by multiplications and square roots alone.

    The fraction of ``p`` is taken to 30 binary digits: at most 1e-9 away in the exponent.
    """
    whole, fraction = floor(p), p - floor(p)
    result = torch.ones_like(x)
    square = x
    while whole:
        if whole & 1:
            result = result * square
        square = square * square
        whole >>= 1
    root = x
    for _ in range(30):
        if fraction == 0:
            break
        root = root.sqrt()
        fraction *= 2
        if fraction >= 1:
            result = result * root
            fraction -= 1
    return result


def exact_power_sum(x: Float64[Tensor, "B H W C"], p: float) -> Float64[Tensor, "B H W"]:
    """Sum over channels of the p-th powers, in units of the image's largest value, so that no power overflows."""
    magnitude = x.abs()
    scale = power_of_two_above(magnitude.amax((1, 2, 3), keepdim=True))
    return exact_sum(exact_power(magnitude / scale, p), (3,))


def exact_layer_norm(x: Float[Tensor, "B H W C"], norm: nn.LayerNorm) -> Float64[Tensor, "B H W C"]:
    """LayerNorm with exact sums. Shift law: bit for bit."""
    x, channels = x.to(torch.float64), x.shape[3]
    centred = x - (exact_sum(x, (3,)) / channels)[..., None]
    deviation = (exact_sum(centred * centred, (3,)) / channels + norm.eps).sqrt()
    return centred / deviation[..., None] * norm.weight.detach() + norm.bias.detach()
