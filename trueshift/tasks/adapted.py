"""Adapted Swin and Swinv2 networks of transformers, which keep their class, as encoders of dense networks."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..layers.checks import check_image
from ..layers.patch_conv import FrameConv
from ..models.config import BackboneConfig, describe
from ..models.convert import adapt
from ..models.foreign import ADAPTS, is_adapted, library_of, located
from ..ops.geometry.grid import Tokens
from ..ops.geometry.shift import Pair, pair
from ..utils.checks import first_line, import_optional
from ..utils.wrappers import unwrapped

LIBRARY = "transformers/"  # before the model_type, where a configuration names the backbone
_KINDS = {"swin": "SwinModel", "swinv2": "Swinv2Model"}
_THEIRS = {"img_size": "image_size"}  # names of ours
_UNDECAYED = ("position_embeddings", "relative_position_bias_table", "continuous_position_bias_mlp", "logit_scale")


class AdaptedEncoder(nn.Module):
    """What a dense network needs of its backbone, from what :func:`~trueshift.adapt` made of one of transformers'.

    Args:
        model: an adapted ``SwinModel`` or ``Swinv2Model``, which becomes part of this and loses its last norm.
        in_chans: that the dense network is to have.
        padding: of convolutions after it.
    """

    def __init__(self, model: nn.Module, in_chans: int, padding: str | None = None) -> None:
        super().__init__()
        network: Any = unwrapped(model)
        name = getattr(getattr(network, "config", None), "model_type", "")
        if library_of(network) is None or type(network).__name__ != _KINDS.get(name):
            raise TypeError(
                f"a {type(network).__name__} is no backbone for this: needs a name, one of trueshift's own models, or "
                f"an adapted {' or '.join(_KINDS.values())} of transformers"
            )
        if not is_adapted(network):
            raise TypeError(f"this {type(network).__name__} is an ordinary one: needs trueshift.adapt(model)")
        conv = next(part for part in network.modules() if isinstance(part, FrameConv))
        if any(True for _ in conv.criterion.parameters()):
            raise ValueError("a criterion that is learned: needs one without parameters, 'fixed' or 'max_norm'")
        known = network.config
        if known.num_channels != in_chans:
            raise ValueError(f"in_chans {in_chans}: needs the {known.num_channels} of the backbone")
        network.layernorm = nn.Identity()  # every level has a norm of its own
        self.model = network
        self.in_chans, self.architecture = in_chans, LIBRARY + name
        self.config = BackboneConfig(
            img_size=known.image_size if isinstance(known.image_size, int) else tuple(known.image_size),
            in_chans=in_chans,
            num_classes=0,
            criterion=conv.criterion,
            anchor=True,
            padding=padding,
            grid_drop_rate=conv.criterion.grid_drop_rate,
            circular="width" if conv.fixed_rows else "both",
        )
        self.feature_info = [
            {"num_chs": known.embed_dim * 2**index, "reduction": conv.factor[0] * 2**index}
            for index in range(len(known.depths))
        ]

    @classmethod
    def rebuilt(
        cls, backbone: str, in_chans: int, padding: str | None = None, config: Any = None, **given: Any
    ) -> "AdaptedEncoder":
        """One with new weights, by name.

        Args:
            config: of transformers, as :meth:`changed_arguments` has it; by default the library's own.
            given: arguments of ``adapt``, and changes of that configuration, such as ``embed_dim`` or ``img_size``.
        """
        needed = f"a backbone {backbone} needs transformers: pip install transformers"
        transformers = import_optional("transformers", needed)
        kind = backbone.removeprefix(LIBRARY)
        if kind not in _KINDS:
            raise ValueError(f"backbone {backbone!r}: needs one of {', '.join(LIBRARY + name for name in _KINDS)}")
        how = {key: given.pop(key) for key in ADAPTS if key in given}
        known, asked = transformers.AutoConfig.for_model(kind), {_THEIRS.get(key, key): given[key] for key in given}
        if unknown := sorted(asked.keys() - known.to_dict().keys()):
            needs = f"needs arguments of {type(known).__name__}, such as embed_dim, or {', '.join(ADAPTS)}"
            raise ValueError(f"{backbone} does not know {', '.join(unknown)}: {needs}")
        wanted = {**(config or {}), "num_channels": in_chans, **asked}
        try:
            made = getattr(transformers, _KINDS[kind])(transformers.AutoConfig.for_model(kind, **wanted))
        except Exception as error:  # transformers raises many kinds
            raise ValueError(f"{backbone} cannot be made as asked: {first_line(error)}") from error
        return cls(adapt(made, **how), in_chans, padding)

    @property
    def size_multiple(self) -> Pair:
        """A whole number of tokens in every stage."""
        return pair(self.feature_info[-1]["reduction"])

    def features(self, x: Float[Tensor, "B C H W"]) -> tuple[Tokens, ...]:
        """The tokens of every stage before they are merged, and where they lie.

        Shift law: in evaluation the values do not change when the image moves, bit for bit; the grids move along.
        """
        check_image(x, self.in_chans, self.size_multiple)
        conv = next(part for part in self.model.modules() if isinstance(part, FrameConv))
        start = Tokens.of_image(x, conv.fixed_rows).grid.advance(conv.choose(x).offset).origin
        patches, embed = conv(x, start), self.model.embeddings  # chosen once: it may be random
        tokens, size = embed.norm(patches.flatten(2).mT), tuple(patches.shape[2:])
        tokens = embed.dropout(tokens if embed.position_embeddings is None else tokens + embed.position_embeddings)
        wanted = {"output_hidden_states": True, "output_hidden_states_before_downsampling": True}
        stages = self.model.encoder(tokens, size, **wanted).reshaped_hidden_states[1:]
        return tuple(located(stage, start, (x.shape[2], x.shape[3]), conv) for stage in stages)

    def changed_arguments(self) -> dict[str, Any]:
        """How to make the same again."""
        kept = {key: value for key, value in self.model.config.to_diff_dict().items() if key != "model_type"}
        how = {key: getattr(self.config, key) for key in ("padding", *ADAPTS)}
        return {"config": kept, **how, "criterion": describe(self.config.criterion)}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        self.model.gradient_checkpointing_enable() if enable else self.model.gradient_checkpointing_disable()

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay."""
        return {name for name, _ in self.named_parameters() if any(part in name for part in _UNDECAYED)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates."""
        stage = r"^model\.encoder\.layers\.(\d+)"
        fine = [(rf"{stage}\.blocks\.(\d+)", None), (rf"{stage}\.downsample", (99999,))]
        return {"stem": r"^model\.embeddings", "blocks": stage if coarse else fine}
