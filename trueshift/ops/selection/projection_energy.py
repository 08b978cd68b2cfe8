"""How much energy a projection makes of the patch at each position: what a merge scores, in one fused product."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from ..geometry.shift import Pair
from ..kernels import kernel_for, usable


@kernel_for(lambda x, *_, **__: usable(x))
def projected_energy(
    x: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D rows columns C"],
    bias: Float[Tensor, " D"] | None,
    norm: nn.LayerNorm | None,
    before: Pair,
    dtype: torch.dtype,
) -> Float32[Tensor, "parts B H W"] | None:
    """Squared norm of the projection of the patch that starts at each position, in parts to be added up.

    For content that is the same whatever the shift. None where there is no kernel: then the projection itself
    (:meth:`trueshift.criteria.Candidates.features`) is the way, and the reference.

    Args:
        weight: one projection per output, over the patch's rows, columns and channels.
        norm: LayerNorm of the patch before it is projected.
        before: how far the patch reaches before its start.
        dtype: in which to multiply.
    """
    return None


def like_patch(parameter: Tensor, weight: Tensor) -> Tensor:
    """A norm's parameter, which has the tokens of a patch column by column, by row, column and channel."""
    rows, columns, channels = weight.shape[1:]
    return parameter.view(columns, rows, channels).transpose(0, 1)
