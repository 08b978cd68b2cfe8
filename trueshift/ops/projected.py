"""How much energy a projection makes of the patch at each position: what a merge scores, in one fused product."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from .shift import Pair


def network_precision(x: Tensor) -> torch.dtype:
    """The type in which the network would multiply: that of autocast, where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


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
    from .kernels.patch_energy import patch_energies

    dtype = network_precision(x)
    with torch.autocast(x.device.type, enabled=False):
        low = x.to(dtype)
        push = weight.new_zeros(weight.shape[0]) if bias is None else bias
        pull, sums, squares, eps = push, None, None, 0.0
        if norm is not None:
            rows, columns, channels = weight.shape[1:]
            shape = (columns, rows, channels) if column_first else (rows, columns, channels)
            scale, offset = (parameter.view(shape) for parameter in (norm.weight, norm.bias))
            if column_first:
                scale, offset = scale.transpose(0, 1), offset.transpose(0, 1)
            push = push + (weight * offset).sum((1, 2, 3))
            weight = weight * scale
            eps = norm.eps
            sums = low.sum(3, dtype=torch.float32)
            squares = torch.linalg.vector_norm(low, dim=3, dtype=torch.float32)
        matrix = weight.flatten(1).T.to(dtype).contiguous()
        if norm is not None:
            pull = matrix.sum(0, dtype=torch.float32)  # of the rounded weights, so that a mean is taken away exactly
        patch = [weight.shape[1], weight.shape[2]]
        return patch_energies(low, matrix, pull, push, sums, squares, eps, patch, list(before))
