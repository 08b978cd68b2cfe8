"""Models as ONNX files: one graph, one file, the same choices as here."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .canonical import ImageWrapper
from .layers.patch_conv import AdaptivePatchConv
from .models.backbone import Backbone
from .motion import Steady, Video
from .ops.geometry.shift import Pair, pair
from .tasks import UperNet
from .utils.checks import import_optional
from .utils.evaluation_mode import in_evaluation
from .utils.files import write_whole

OPSET = 18  # the first with BitwiseXor, of which the content keys are made


def export_onnx(
    model: nn.Module,
    path: str | Path,
    image_size: int | Pair | None = None,
    batch: int | None = None,
    opset: int = OPSET,
    origins: bool = False,
) -> Path:
    """Write a model, as it is in evaluation, to one ONNX file: from ``image`` to ``logits``.

    Takes backbones, :class:`~trueshift.UperNet`, whose ``logits`` are those of all pixels, what
    :func:`~trueshift.adapt` made of another library's network, and :func:`~trueshift.canonicalize`,
    :func:`~trueshift.steady` or :func:`~trueshift.mean_over_grids` around one of these. Outputs with names of their
    own, as transformers' ``last_hidden_state``, keep them.

    The batch axis, called ``batch``, is dynamic. Channels, height and width are fixed, because grids and windows are
    laid out for them; the file's metadata name them. Takes about a minute.

    Shift law: within one session, and for batches of one size, logits do not change when an image is shifted
    circularly, bit for bit; those of pixels move with it. They agree with those of PyTorch to rounding; so do the grids
    that are chosen, except where rounding decides between two of them.

    Args:
        path: the file. It is replaced once it is complete; its folder must exist.
        image_size: height and width; those the model was made for if not given. Another library's network needs them,
            and ``steady``, whose images are larger than the model's.
        batch: fixes the number of images, for runtimes that prepare for one; any number if not given.
        opset: version of ONNX's operators, at least 18.
        origins: also output ``origins`` ``[1 + stages, batch, 2]``: the pixel at which the first token lies, after the
            tokenizer and after every stage.

    Returns:
        the path.

    >>> model = trueshift.create_model("a_swin_mini", pretrained=True)
    >>> trueshift.export_onnx(model, "a_swin_mini.onnx")  # doctest: +SKIP
    """
    for package in ("onnx", "onnxscript"):
        import_optional(package, "writing ONNX needs onnx and onnxscript: pip install 'trueshift[onnx]'")
    backbone = model.encoder if isinstance(model, UperNet) else model
    if origins and not isinstance(model, Backbone):
        raise ValueError(f"origins: needs a backbone of trueshift alone, not a {type(model).__name__}")
    if origins and isinstance(model, Backbone) and model.config.grids > 1:
        raise ValueError(f"origins of {model.config.grids} grids: needs a network with grids=1")
    if any(isinstance(part, Video) for part in model.modules()):
        raise TypeError("a Video has a memory, which a graph has not: needs steady(model, size)")
    if opset < OPSET:
        raise ValueError(f"opset {opset}: needs at least {OPSET}, which has integer operators on bits")
    if batch is not None and batch < 1:
        raise ValueError(f"batch {batch}: needs at least 1, or None for any number of images")
    channels, usual_size = _input(backbone)
    if image_size is None and usual_size is None:
        raise ValueError(f"image_size: needs height and width of the images for this {type(model).__name__}, e.g. 224")
    path, size = Path(path), pair(usual_size if image_size is None else image_size)  # type: ignore[arg-type]
    if path.is_dir() or not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: needs the name of a file in a folder that exists")
    weight = next(model.parameters())
    # 2 where any number will do: torch takes a 1 for a constant
    example = torch.zeros(batch or 2, channels, *size, device=weight.device, dtype=weight.dtype)
    with in_evaluation(model), torch.no_grad():
        output = model(example)
        own = ["logits"] if isinstance(output, Tensor) else list(output)
        names = ["logits", "origins"] if origins else own
        program = torch.export.export(
            _Outputs(model, origins),
            (example,),
            dynamic_shapes=None if batch else ({0: torch.export.Dim("batch")},),
            strict=False,
        )
        written = _as_onnx(program, names, opset)
    fixed = f"channels={channels}, height={size[0]}, width={size[1]}"
    written.metadata_props.add(key="dynamic_axes", value="" if batch else "batch")
    written.metadata_props.add(key="fixed_axes", value=f"batch={batch}, {fixed}" if batch else fixed)
    _replace(path, written)
    return path


def _input(network: nn.Module) -> tuple[int, int | Pair | None]:
    """Channels of the images, and their size if the network knows it."""
    if isinstance(network, Backbone):
        return network.in_chans, network.config.img_size
    if isinstance(network, ImageWrapper):
        channels, size = _input(network.model)
        return channels, None if isinstance(network, Steady) else size
    conv = next((part for part in network.modules() if isinstance(part, AdaptivePatchConv)), None)
    if conv is None:
        raise TypeError(
            f"a {type(network).__name__}: needs a model of trueshift, e.g. create_model('a_swin_tiny'), or an adapted "
            "network for images"
        )
    return conv.in_channels, None


class _Outputs(nn.Module):
    """What the graph gives out, from one pass."""

    def __init__(self, model: Any, origins: bool) -> None:
        super().__init__()
        self.model, self.origins = model, origins

    def forward(self, image: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K *pixels"] | tuple[Tensor, ...]:
        if not self.origins:
            output = self.model(image)
            return output if isinstance(output, Tensor) else tuple(output.values())  # transformers' have names
        tokens = self.model.tokenize(image)
        grids = [tokens.grid]
        for stage in self.model.stage_list:
            tokens = stage(tokens)
            grids.append(tokens.grid)
        logits = self.model.forward_head(self.model.finish(tokens))
        return logits, torch.stack([grid.origin for grid in grids])


def _as_onnx(program: torch.export.ExportedProgram, names: list[str], opset: int) -> Any:
    """The program as a ``ModelProto``, with constants folded and duplicates removed.

    Not by torch's ``optimize``, which also rewrites arithmetic (exact sums must stay as they are) and is slow.
    """
    import onnx_ir
    from onnx_ir.passes import Sequential, common
    from onnxscript import opset18
    from onnxscript.optimizer import fold_constants

    def exact_scalar(s: float, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
        """How a Python number becomes a constant; torch's own way rounds it to float32 even in float64 arithmetic."""
        exact: Any = onnx_ir.tensor(s, dtype=onnx_ir.DataType(dtype))
        return opset18.Constant(value=exact)

    exported: Any = torch.onnx.export(
        program,
        dynamo=True,
        input_names=["image"],
        output_names=names,
        opset_version=opset,
        custom_translation_table={torch.ops.aten.scalar_tensor.default: exact_scalar},
        optimize=False,
        verbose=False,
    )
    fold_constants(exported.model)
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.ClearMetadataAndDocStringPass(),  # a stack trace with every node
    )(exported.model)
    written = exported.model_proto
    del written.graph.value_info[:]  # shapes in between are the runtime's business
    for value in (*written.graph.input, *written.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "batch"
    return written


def _replace(path: Path, written: Any) -> None:
    """The file as a whole, if one file can hold it."""
    if written.ByteSize() >= 2**31:
        raise ValueError(f"{written.ByteSize() / 2**30:.1f} GiB: one ONNX file holds less than 2; try model.half()")
    write_whole(path, written.SerializeToString())
