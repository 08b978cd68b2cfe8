r"""A LayerNorm of patches and the projection that follows it, as one convolution of what has not been normed.

.. math:: E\,(g \circ (x - \mu) / \sigma + h) = (E \circ g - \overline{E \circ g})\, x / \sigma + E h

with the mean over each row taken away from the weights instead of from the patches. What is left to do for each patch
is one division, and patches that overlap need not be laid out.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.shift import Pair, circular_pad


def fold_norm(
    weight: Float[Tensor, "D kh kw C"], bias: Float[Tensor, " D"] | None, norm: nn.LayerNorm, column_first: bool
) -> tuple[Float[Tensor, "D kh kw C"], Float[Tensor, " D"]]:
    """Weights to apply to patches before their norm, and what to add once these outputs are divided.

    Args:
        column_first: the norm knows the tokens of a patch column by column.
    """
    gain, shift = (like_patch(parameter, weight, column_first) for parameter in (norm.weight, norm.bias))
    added = (weight * shift).sum((1, 2, 3))
    weight = weight * gain
    return weight - weight.mean((1, 2, 3), keepdim=True), added if bias is None else added + bias


def like_patch(parameter: Tensor, weight: Tensor, column_first: bool) -> Tensor:
    """A norm's parameter by row, column and channel of the patch."""
    rows, columns, channels = weight.shape[1:]
    if column_first:
        return parameter.view(columns, rows, channels).transpose(0, 1)
    return parameter.view(rows, columns, channels)


def patch_variance(x: Float[Tensor, "B H W C"], patch: Pair) -> Float[Tensor, "B H W"]:
    """Variance of all values of the patch that starts at each token, from means and variances of single tokens.

    Shift law: moves with the tokens, to rounding.
    """
    mean = x.mean(3, keepdim=True)
    deviation = torch.linalg.vector_norm(x - mean, dim=3)
    means, variances = (_windows(each, patch) for each in (mean[..., 0], deviation * deviation / x.shape[3]))
    return means.var((3, 4), correction=0) + variances.mean((3, 4))


def _windows(x: Float[Tensor, "B H W"], patch: Pair) -> Float[Tensor, "B H W kh kw"]:
    rows, columns = patch
    return circular_pad(x, (0, rows - 1), (0, columns - 1)).unfold(1, rows, 1).unfold(2, columns, 1)
