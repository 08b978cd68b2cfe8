"""What every backbone can be told."""

from dataclasses import dataclass, fields
from typing import Any

from ..ops.geometry.shift import Pair, pair
from .feature_frame import ALIGNMENTS
from .selection_config import Choices, CriterionSpec


@dataclass(frozen=True)
class BackboneConfig:
    """What every backbone can be told. ``criterion``, ``anchor``, ``padding``, ``positions``, ``grid_drop_rate``: see
    :class:`~trueshift.models.selection_config.Choices`.

    Args:
        img_size: for which the network is made; other sizes that fit are accepted too.
        global_pool: ``"avg"``, ``"token"`` where there is a class token, or ``""`` for none.
        align: frame of the maps from ``forward_intermediates`` and ``features_only``: rolled back by whole tokens
            (``"stride"``), or resampled to where an ordinary network's tokens stand (``"pixel"``).
    """

    img_size: int | Pair = 224
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "avg"
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    grid_drop_rate: float = 0.0
    criterion: CriterionSpec = "max_norm"
    anchor: bool | None = None
    padding: str | None = None
    positions: str | None = None
    align: str = "stride"

    def __post_init__(self) -> None:
        if self.align not in ALIGNMENTS:
            raise ValueError(f"align {self.align!r}: needs one of {tuple(ALIGNMENTS)}")
        if self.in_chans < 1 or self.num_classes < 0:
            raise ValueError(f"{self.in_chans} channels, {self.num_classes} classes: needs at least 1 and 0")
        self.choices  # noqa: B018 -- refuses criteria that do not exist

    @property
    def choices(self) -> Choices:
        """By what each choice is made."""
        return Choices(self.criterion, self.anchor, self.padding, self.positions, self.grid_drop_rate)

    def arguments(self) -> dict[str, Any]:
        """All fields, to build the same again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> Pair:
        """Height and width."""
        return pair(self.img_size)


def check_stages(depths: tuple[int, ...], **per_stage: tuple[Any, ...] | int) -> None:
    """Refuse what is given by stage for another number of stages; one number for all of them may stand alone."""
    for name, value in per_stage.items():
        if not isinstance(value, int) and len(value) != len(depths):
            raise ValueError(f"{name} {value}: needs one value for each of the {len(depths)} stages of depths {depths}")
