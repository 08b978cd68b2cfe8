"""Arguments that every backbone takes."""

from dataclasses import dataclass, fields
from typing import Any

from ..ops.geometry.shift import Pair, pair
from .feature_frame import FRAMES
from .selection_config import CriterionSpec, SelectionConfig


@dataclass(frozen=True)
class BackboneConfig:
    """Arguments that every backbone takes. For ``criterion``, ``anchor``, ``padding``, ``positions`` and
    ``grid_drop_rate`` see :class:`~trueshift.models.selection_config.SelectionConfig`.

    Args:
        img_size: for which the network is made; other sizes that fit are accepted too.
        global_pool: ``"avg"``, ``"token"`` where there is a class token, or ``""`` for none.
        feature_frame: of the maps from ``forward_intermediates`` and ``features_only``: rolled back by whole tokens
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
    feature_frame: str = "stride"

    def __post_init__(self) -> None:
        if self.feature_frame not in FRAMES:
            raise ValueError(f"feature_frame {self.feature_frame!r}: needs one of {tuple(FRAMES)}")
        if self.in_chans < 1 or self.num_classes < 0:
            raise ValueError(f"{self.in_chans} channels, {self.num_classes} classes: needs at least 1 and 0")
        self.choices  # noqa: B018 -- refuses unknown criteria

    @property
    def choices(self) -> SelectionConfig:
        """How grids are selected."""
        return SelectionConfig(self.criterion, self.anchor, self.padding, self.positions, self.grid_drop_rate)

    def arguments(self) -> dict[str, Any]:
        """All fields, to build the same again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> Pair:
        """Height and width."""
        return pair(self.img_size)


def check_stages(depths: tuple[int, ...], **per_stage: tuple[Any, ...] | int) -> None:
    """Refuse per-stage values for another number of stages; a single number counts for all."""
    for name, value in per_stage.items():
        if not isinstance(value, int) and len(value) != len(depths):
            raise ValueError(f"{name} {value}: needs one value for each of the {len(depths)} stages of depths {depths}")
