"""Networks of other libraries that keep their own classes: only their patch embedding chooses a frame.

library and class  ->  a deep copy, whose first convolution is an AdaptivePatchConv  ->  the same call, as before
"""

from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from jaxtyping import Float
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..canonical import origin
from ..layers.patch_conv import FrameConv, make_adaptive, make_ordinary
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.shift import Pair
from ..utils.wrappers import unwrapped
from .backbone import Backbone
from .config import NOTHING_CHOOSES, CriterionSpec, SelectionConfig, describe

# by library; in all of them the image goes to one convolution, the first of the network, and nowhere else
KEPT = {
    "timm.models": ("VisionTransformer", "Eva", "Hiera"),
    "torchvision.models": ("SwinTransformer", "VisionTransformer", "MViT"),
    "transformers.models": (
        *(f"{name}Model" for name in ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "Swin", "Swinv2")),
        *(f"{name}ForImageClassification" for name in ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters")),
        *("SwinForImageClassification", "Swinv2ForImageClassification", "DeiTForImageClassificationWithTeacher"),
        *("CvtModel", "CLIPVisionModel", "CLIPVisionModelWithProjection", "SiglipVisionModel"),
    ),
}

ADAPTS = ("criterion", "grid_drop_rate", "circular")  # arguments of adapt_foreign beside the network


def library_of(model: Any) -> str | None:
    """Where a network comes from whose class :func:`adapt_foreign` keeps; found without importing the library."""
    for kind in type(model).__mro__:
        for library, names in KEPT.items():
            if kind.__name__ in names and kind.__module__.startswith(f"{library}."):
                return library
    return None


def adapt_foreign(
    model: nn.Module, criterion: CriterionSpec = "fixed", grid_drop_rate: float = 0.0, circular: str = "both"
) -> nn.Module:
    """A copy of the network, of the same class, whose patch embedding chooses the frame that it shows to the rest.

    Args:
        criterion: for the phase of the grid. ``"fixed"``: the grid starts at the photograph's border, so that the
            network sees the image as it was trained to; needs no fine-tuning. ``"max_norm"``: the paper's, by the norm
            of the patches; the image is then seen up to a patch off its border, to be fine-tuned.
        grid_drop_rate: while training, share of the images that get a random grid.
        circular: ``"width"``: columns alone choose; rows stay as they are.
    """
    choices = SelectionConfig(criterion=criterion, grid_drop_rate=grid_drop_rate)
    if grid_drop_rate and not choices.adaptive("tokenize"):
        raise ValueError(NOTHING_CHOOSES)
    copy = deepcopy(model)
    convs = ((name, part) for name, part in copy.named_modules() if isinstance(part, nn.Conv2d | nn.Conv3d))
    name, conv = next(convs, ("", None))
    if isinstance(conv, FrameConv):
        raise ValueError(f"this {type(model).__name__} is adapted already: needs revert first, to change its criterion")
    if type(conv) not in (nn.Conv2d, nn.Conv3d) or conv.padding == "same":  # type: ignore[union-attr]
        raise TypeError(
            f"the patch embedding of this {type(model).__name__} starts with a {type(conv).__name__}: needs an "
            "ordinary convolution; for any other image model there is trueshift.canonicalize"
        )
    parent = copy.get_submodule(name.rpartition(".")[0])
    chooses = choices.at("tokenize", conv.out_channels)  # type: ignore[union-attr]
    make_adaptive(conv, parent, chooses, circular)  # type: ignore[arg-type]
    return copy


def is_adapted(model: Any) -> bool:
    """Whether :func:`adapt_foreign` made this network."""
    return isinstance(model, nn.Module) and any(isinstance(part, FrameConv) for part in model.modules())


def described_criterion(model: nn.Module) -> Any:
    """The criterion of such a network in names and numbers, for a file."""
    return describe(next(part.criterion for part in model.modules() if isinstance(part, FrameConv)))


def revert_foreign(model: nn.Module) -> nn.Module:
    """A copy of the network as it was: every weight and output, bit for bit."""
    copy = deepcopy(model)
    for part in list(copy.modules()):
        if isinstance(part, FrameConv):
            make_ordinary(part)
    return copy


def features(
    model: nn.Module, image: Float[Tensor, "B C H W"], indices: int | Sequence[int] | None = None
) -> tuple[Tokens, ...]:
    """The tokens of a network's stages or blocks, and where they lie in the image.

    For our models what their ``features`` gives, for adapted ones of other libraries the intermediate features or
    hidden states, as the library counts them. :func:`~trueshift.place` and :func:`~trueshift.resample` bring them to
    pixels. For any other output :func:`~trueshift.origin` gives the pixel of the first token.

    Shift law: ``place(features(S x)[i]) == S place(features(x)[i])``; the values themselves are the same.

    Args:
        indices: which stages or blocks, or the last so many; all by default.

    >>> import timm
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, depth=2).eval()
    >>> tokens = trueshift.features(trueshift.adapt(vit), torch.rand(1, 3, 64, 64))[-1]
    >>> tokens.values.shape, tokens.grid.stride
    (torch.Size([1, 8, 8, 192]), (8, 8))
    """
    network: Any = unwrapped(model)
    if isinstance(network, Backbone):
        return tuple(_taken(network.features(image), indices))
    start, library = origin(network, image), library_of(network)
    if library == "timm.models":
        stages = network.forward_intermediates(image, indices=indices, intermediates_only=True)
    elif library == "transformers.models":
        output = network(image, output_hidden_states=True)
        stages = _taken(getattr(output, "reshaped_hidden_states", None) or output.hidden_states, indices)
    else:
        stages = _taken(_torchvision_stages(network, image), indices)
    conv = next(part for part in network.modules() if isinstance(part, FrameConv))
    return tuple(located(stage, start, (image.shape[2], image.shape[3]), conv) for stage in stages)


def _taken(stages: Sequence[Any], indices: int | Sequence[int] | None) -> list[Any]:
    return [stages[index] for index in feature_take_indices(len(stages), indices)[0]]  # type: ignore[arg-type]


def _torchvision_stages(network: Any, image: Tensor) -> list[Tensor]:
    """What the stages of a Swin, or the blocks of a ViT, give."""
    swin = hasattr(network, "features")
    if not (swin or hasattr(network, "encoder")):
        raise TypeError(f"a {type(network).__name__} gives no maps: needs forward hooks, and trueshift.origin")
    stages: list[Tensor] = []
    blocks = network.features[1::2] if swin else network.encoder.layers
    with ExitStack() as hooks:
        for block in blocks:
            hooks.enter_context(block.register_forward_hook(lambda *seen: stages.append(seen[-1])))
        network(image)
    return [stage.permute(0, 3, 1, 2) for stage in stages] if swin else stages


def located(state: Tensor, start: Tensor, size: Pair, conv: FrameConv) -> Tokens:
    """A map ``[B, C, h, w]``, or a sequence with class tokens and registers first, as tokens."""
    prefix = None
    if state.dim() == 4:
        values = state.permute(0, 2, 3, 1)
    else:
        rows, columns = (length // step for length, step in zip(size, conv.factor, strict=True))
        extra = state.shape[1] - rows * columns
        values, prefix = state[:, extra:].unflatten(1, (rows, columns)), state[:, :extra] if extra else None
    if size[0] % values.shape[1] or size[1] % values.shape[2]:
        maps = f"{values.shape[1]} x {values.shape[2]} maps do not divide an image of {size[0]} x {size[1]} pixels"
        raise ValueError(f"{maps}: needs sides that every stage divides")
    stride = (size[0] // values.shape[1], size[1] // values.shape[2])
    return Tokens(values, TokenGrid(stride, start, size, True, conv.fixed_rows), prefix)
