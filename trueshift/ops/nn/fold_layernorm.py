r"""A LayerNorm of patches and the projection that follows it, as one convolution of what has not been normed.

.. math:: E\,(g \circ (x - \mu) / \sigma + h) = (E \circ g - \overline{E \circ g})\, x / \sigma + E h

with the mean over each row taken away from the weights instead of from the patches. What is left to do for each patch
is one division, and patches that overlap need not be laid out.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.shift import Pair, circular_pad
from ..selection.plain import PLAIN
from ..selection.projection_energy import like_patch


@torch.no_grad()
def project_patches_everywhere(
    x: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D rows columns C"],
    bias: Float[Tensor, " D"] | None,
    norm: nn.LayerNorm | None,
) -> Float[Tensor, "B H W D"]:
    """The patch that starts at every token, normed if there is a norm, and projected; without gradient.

    Shift law: moves with the tokens, to rounding.
    """
    if norm is None:
        projected = PLAIN.conv(x, weight.permute(0, 3, 1, 2), (0, 0))
        return projected if bias is None else projected.add_(bias)
    gain, shift = (like_patch(parameter, weight) for parameter in (norm.weight, norm.bias))
    added = (weight * shift).sum((1, 2, 3)) + (0 if bias is None else bias)
    weight = weight * gain
    weight = weight - weight.mean((1, 2, 3), keepdim=True)
    projected = PLAIN.conv(x, weight.permute(0, 3, 1, 2), (0, 0))
    scale = (patch_variance(x, (weight.shape[1], weight.shape[2])) + norm.eps).rsqrt()
    return torch.addcmul(added, projected, scale[..., None], out=projected)


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
