"""How much energy a projection makes of the patch at each position: what a merge scores, in one fused product."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from ..geometry.shift import Pair
from ..nn.autocast import network_precision, without_autocast
from ..nn.fold_layernorm import like_patch


@torch.no_grad()
def projected_energy(
    x: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D rows columns C"],
    bias: Float[Tensor, " D"] | None,
    norm: nn.LayerNorm | None,
    before: Pair,
    column_first: bool = False,
) -> Float32[Tensor, "parts B H W"]:
    """Squared norm of the projection of the patch that starts at each position, in parts to be added up.

    For content that is the same whatever the shift: in the precision of the network, by a kernel. The reference is the
    projection itself (:meth:`trueshift.criteria.Candidates.features`).

    Args:
        weight: one projection per output, over the patch's rows, columns and channels.
        norm: LayerNorm of the patch before it is projected.
        before: how far the patch reaches before its start.
        column_first: the norm knows the tokens of a patch column by column.
    """
    from ..kernels.patch_energy import patch_energies

    dtype, eps = network_precision(x), 0.0
    gain = shift = sums = lengths = None
    if norm is not None:
        eps = norm.eps
        gain, shift = (like_patch(parameter, weight, column_first) for parameter in (norm.weight, norm.bias))
    with without_autocast(x):
        operands = _in_steps if torch.compiler.is_compiling() else _by_kernels
        low, sums, lengths, matrix, pull, push = operands(x, weight, bias, gain, shift, dtype)
        patch = [weight.shape[1], weight.shape[2]]
        return patch_energies(low, matrix, pull, push, sums, lengths, eps, patch, list(before))


Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]


def _by_kernels(
    x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, dtype: torch.dtype
) -> Operands:
    """Tokens, their sums and lengths if there is a norm; the projection, what it makes of ones and what it adds."""
    from ..kernels.score_operands import projection, token_sums

    low, sums, lengths = (x.to(dtype), None, None) if gain is None else token_sums(x, dtype)
    return low, sums, lengths, *projection(weight, bias, gain, shift, dtype)


def _in_steps(
    x: Tensor, weight: Tensor, bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, dtype: torch.dtype
) -> Operands:
    """The same by torch's operations."""
    low, sums, lengths = x.to(dtype), None, None
    push = weight.new_zeros(weight.shape[0]) if bias is None else bias
    if gain is not None and shift is not None:
        push = push + (weight * shift).sum((1, 2, 3))
        weight = weight * gain
        sums = low.sum(3, dtype=torch.float32)
        lengths = torch.linalg.vector_norm(low, dim=3, dtype=torch.float32)
    matrix = weight.flatten(1).to(dtype).contiguous()
    # of the rounded weights, so that a mean is taken away exactly
    return low, sums, lengths, matrix, matrix.sum(1, dtype=torch.float32), push
