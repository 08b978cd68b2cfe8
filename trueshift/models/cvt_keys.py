"""Names of CvT's parameters elsewhere: in Microsoft's checkpoints and in transformers."""

import re
from collections.abc import Mapping

from torch import Tensor

_MICROSOFT = (
    (r"^stage0\.patch_embed\.", "patch_embed."),
    (r"^stage(\d+)\.patch_embed\.", r"stages.\1.downsample."),
    (r"^stage(\d+)\.", r"stages.\1."),
    (r"^head\.(?!fc\.)", "head.fc."),
)
_TRANSFORMERS = (
    (r"^cvt\.", ""),
    (r"^encoder\.", ""),
    (r"^stages\.0\.embedding\.convolution_embeddings\.", "patch_embed."),
    (r"^stages\.(\d+)\.embedding\.convolution_embeddings\.", r"stages.\1.downsample."),
    (r"\.layers\.", ".blocks."),
    (r"\.attention\.attention\.convolution_projection_(\w)\w*\.convolution_projection\.", r".attn.conv_proj_\1."),
    (r"\.attention\.attention\.projection_(\w)\w*\.", r".attn.proj_\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"(conv_proj_\w)\.convolution\.", r"\1.conv."),
    (r"(conv_proj_\w)\.normalization\.", r"\1.bn."),
    (r"\.projection\.", ".proj."),
    (r"\.normalization\.", ".norm."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head.fc."),
)


def is_microsoft(keys: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of Microsoft's own checkpoints."""
    return "stage0.patch_embed.proj.weight" in keys


def is_transformers(keys: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of transformers."""
    return any(key.endswith("stages.0.embedding.convolution_embeddings.projection.weight") for key in keys)


def rename_cvt_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under our names; what has them already stays as it is."""
    rules = _MICROSOFT if is_microsoft(state) else _TRANSFORMERS if is_transformers(state) else ()
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    return renamed
