"""Arguments that every backbone takes, and how it selects its grids.

The selection is the only difference between ordinary, ablated and adaptive networks.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property, partial
from numbers import Real
from typing import Any

from ..criteria import Criterion, FixedOffset, InputNorm, LearnedScore, MaxNorm, Spot
from ..layers.checks import check_heads
from ..ops.geometry.shift import Pair, fixes_rows, pair
from ..ops.nn.conv import PADDINGS
from .position_tables import POSITIONS

CriterionLike = str | Criterion | Callable[[int], Criterion] | Mapping[str, Any]
CriterionSpec = CriterionLike | Mapping[str, CriterionLike]

NAMED: dict[str, Callable[..., Criterion]] = {
    "max_norm": lambda dim, p=2: MaxNorm(p),
    "input_norm": lambda dim: InputNorm(),
    "spot": lambda dim: Spot(),
    "fixed": lambda dim, offset=(0, 0): FixedOffset(tuple(offset)),
    "learned": LearnedScore,
}
PLACES = ("tokenize", "align", "merge", "pool")
BORDERS = ("circular", "closed")
FRAMES = ("stride", "pixel")
NOTHING_CHOOSES = "grid_drop_rate with a fixed grid: needs a criterion that chooses, e.g. criterion='max_norm'"


@dataclass(frozen=True)
class SelectionConfig:
    """The criteria of a network and what goes with them.

    Args:
        criterion: what chooses. A name (``"max_norm"``, ``"input_norm"``, ``"spot"``, ``"learned"``, ``"fixed"``), one
            with arguments (``{"name": "max_norm", "p": 1}``), a :class:`~trueshift.criteria.Criterion` (each layer gets
            a copy), a function from the number of channels to one; or a dictionary of these by place: ``"tokenize"``,
            ``"align"``, ``"merge"``, ``"pool"`` (keys and values of an attention; as ``"merge"`` by default). Other
            places default to ``"max_norm"``: ``{"align": "fixed"}`` is the paper's ablation without A-WSA.
        anchor: start the grid at the wrap seam; by default wherever the tokenizer is adaptive. An ordinary network with
            ``anchor=True`` sees every image in its photograph's own frame, and is exact under circular shifts too.
        border: what is beyond the border of the image. ``"circular"``, the default of adaptive networks: its other
            side, as in the paper. ``"closed"``: nothing, as in an ordinary network, with masked windows, zero padding
            and linear positions. It is the border of the anchored frame, so outputs stay bit-identical; while training,
            that of the image as given. Needs the anchor in an adaptive network.
        padding: of convolutions, ``"circular"``, ``"zeros"`` or ``"circular_width"``: columns around the border, zeros
            above and below. Follows ``border`` and ``circular`` by default.
        positions: how relative positions over all tokens are read. ``"circular"``: a table with a row per step around
            the image; ``"shortest"``: the linear table of an ordinary network, read at the shortest signed distance;
            ``"linear"``: as the ordinary network. Follows ``border`` by default.
        grid_drop_rate: while training, the probability with which each choice is replaced by a random grid, for each
            image and layer on its own.
        circular: along which axes the image goes around. ``"width"``, for panoramas: columns choose, go around and are
            anchored; rows are those of an ordinary network. Outputs are then bit-identical under shifts of columns
            alone. Needs the anchor in an adaptive network.
    """

    criterion: CriterionSpec = "max_norm"
    anchor: bool | None = None
    border: str | None = None
    padding: str | None = None
    positions: str | None = None
    grid_drop_rate: float = 0.0
    circular: str = "both"

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_rate")):
            rate = getattr(self, name)
            if not (isinstance(rate, Real) and 0 <= float(rate) <= 1):
                raise ValueError(f"{name} {rate!r}: needs a probability, 0 to 1")
        for place in _by_place(self.criterion) or ():
            if place not in PLACES:
                raise ValueError(f"criterion for {place!r}: needs one of {PLACES}")
        for name, allowed in (("border", BORDERS), ("padding", PADDINGS), ("positions", tuple(POSITIONS))):
            if getattr(self, name) not in (None, *allowed):
                raise ValueError(f"{name} {getattr(self, name)!r}: needs one of {allowed}")
        if self.grid_drop_rate and not self.adaptive(*PLACES):
            raise ValueError(NOTHING_CHOOSES)
        if self.adaptive(*PLACES) and (self.border == "closed" or self.fixed_rows) and not self.anchored:
            what = "circular 'width'" if self.fixed_rows else "border 'closed'"
            raise ValueError(f"{what} without an anchor: needs anchor=True, or the border would not move along")

    def at(self, place: str, dim: int, stride: Pair | None = None) -> Criterion:
        """A new criterion for one layer, whose tokens have ``dim`` channels; a fixed one where the stride is 1."""
        if stride == (1, 1):
            return FixedOffset()
        like, given = self.criterion, _by_place(self.criterion)
        if given is not None:
            like = given.get(place, given.get("merge", "max_norm") if place == "pool" else "max_norm")
        made = deepcopy(like) if isinstance(like, Criterion) else _maker(like)(dim)
        if not isinstance(made, Criterion):
            raise TypeError(f"the criterion for {place!r} is a {type(made).__name__}: needs a Criterion")
        if self.grid_drop_rate:
            made.grid_drop_rate = self.grid_drop_rate
        return made

    def adaptive(self, *places: str) -> bool:
        """Whether any of these places looks at the content."""
        return not self._adaptive_places.isdisjoint(places)

    @cached_property
    def _adaptive_places(self) -> frozenset[str]:
        """Found once: to make a criterion may draw random weights. Refuses unknown ones."""
        return frozenset(place for place in PLACES if self.at(place, 1).adaptive)

    def described(self) -> Any:
        """The criterion in names and numbers, for a file."""
        for like in (_by_place(self.criterion) or {"": self.criterion}).values():
            if isinstance(like, Criterion) and like.grid_drop_rate and not self.grid_drop_rate:
                own = f"criterion {like!r} has a grid_drop_rate {like.grid_drop_rate} of its own, which no file keeps"
                raise ValueError(f"{own}: needs grid_drop_rate of the network instead")
        return describe(self.criterion)

    @property
    def anchored(self) -> bool:
        """Whether the tokenizer also chooses the first token."""
        return self.adaptive("tokenize") if self.anchor is None else self.anchor

    @property
    def closed(self) -> bool:
        """Whether nothing is beyond the border."""
        return not self.adaptive(*PLACES) if self.border is None else self.border == "closed"

    @property
    def shift_law(self) -> str:
        """What is guaranteed when the image moves, in words; empty if nothing is."""
        shifts = "every circular shift" + (" of columns" if self.fixed_rows else "")
        return f"Under {shifts} its outputs stay the same, bit for bit." if self.anchored else ""

    @property
    def fixed_rows(self) -> bool:
        """Whether rows are ordinary."""
        return fixes_rows(self.circular)

    @property
    def padding_mode(self) -> str:
        """Of convolutions."""
        mode = self.padding or ("zeros" if self.closed else "circular")
        return "circular_width" if self.fixed_rows and mode == "circular" else mode

    @property
    def position_mode(self) -> str:
        """Of relative positions over all tokens; of columns, where rows are fixed."""
        return self.positions or ("linear" if self.closed else "circular")

    @property
    def position_modes(self) -> tuple[str, str]:
        """Of rows and of columns."""
        mode = self.position_mode
        return "linear" if self.fixed_rows else mode, mode


def _by_place(criterion: CriterionSpec) -> Mapping[str, CriterionLike] | None:
    return criterion if isinstance(criterion, Mapping) and "name" not in criterion else None


def _maker(like: Any) -> Callable[[int], Any]:
    """A function from the number of channels to a criterion."""
    arguments = {key: value for key, value in like.items() if key != "name"} if isinstance(like, Mapping) else {}
    name = like["name"] if isinstance(like, Mapping) else like
    make = NAMED.get(name) if isinstance(name, str) else name
    if make is None:
        raise ValueError(f"criterion {name!r}: needs one of {tuple(NAMED)}, a Criterion, or a function to make one")
    return partial(make, **arguments)


def describe(criterion: CriterionSpec) -> Any:
    """The same specification in names and numbers, for a file."""
    if isinstance(criterion, str):
        return criterion
    if isinstance(criterion, Mapping):
        by_place = _by_place(criterion)
        return dict(criterion) if by_place is None else {place: describe(like) for place, like in by_place.items()}
    # exact types: a subclass chooses otherwise, and would be read as what it was derived from
    if type(criterion) is MaxNorm:
        return {"name": "max_norm", "p": criterion.p}
    if type(criterion) is InputNorm:
        return "input_norm"
    if type(criterion) is Spot:
        return "spot"
    if type(criterion) is FixedOffset:
        return {"name": "fixed", "offset": list(criterion.offset)}
    raise ValueError(
        f"criterion {criterion!r} cannot be written to a file: use one of {tuple(NAMED)} by name, or save the "
        "state_dict and build the model again with the same criterion"
    )


@dataclass(frozen=True)
class BackboneConfig(SelectionConfig):
    """Arguments that every backbone takes, besides those of :class:`SelectionConfig`.

    Args:
        img_size: for which the network is made; other sizes that fit are accepted too.
        global_pool: ``"avg"``, ``"token"`` where there is a class token, or ``""`` for none.
        feature_frame: of the maps from ``forward_intermediates`` and ``features_only``: rolled back by whole tokens
            (``"stride"``), or resampled to where an ordinary network's tokens lie (``"pixel"``).
        grids: over how many grids of patches logits are averaged in evaluation: the chosen one and others at fixed
            distances from it, in one batch of as many passes. Needs a tokenizer that chooses.
    """

    img_size: int | Pair = 224
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "avg"
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    feature_frame: str = "stride"
    grids: int = 1

    def __post_init__(self) -> None:
        if self.feature_frame not in FRAMES:
            raise ValueError(f"feature_frame {self.feature_frame!r}: needs one of {FRAMES}")
        if self.in_chans < 1 or self.num_classes < 0:
            raise ValueError(f"{self.in_chans} channels, {self.num_classes} classes: needs at least 1 and 0")
        super().__post_init__()
        if self.grids != 1 and not self.adaptive("tokenize"):  # an anchor would undo what the mean moves
            around = f"canonicalize(mean_over_grids(model, {self.grids})) around the one without an anchor"
            raise ValueError(f"{self.grids} grids of a network with a fixed one: needs 1, or {around}")
        if self.grids != 1 and not self.anchored:
            raise ValueError(f"{self.grids} grids without an anchor: needs 1, or anchor=True")
        if self.grids != 1 and not self.global_pool:  # each position of the maps would be another on each grid
            raise ValueError(f"{self.grids} grids without pooling: needs 1, or global_pool='avg'")

    def arguments(self) -> dict[str, Any]:
        """All fields, to build the same again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def size(self) -> Pair:
        """Height and width."""
        return pair(self.img_size)


def check_one_grid(arguments: Mapping[str, Any]) -> None:
    """Refuse several grids of a network without logits, which would not average over them."""
    if arguments.get("grids") not in (None, 1):
        given = f"grids={arguments['grids']}"
        raise ValueError(f"{given}: grids are averaged over the logits of classifiers; needs grids=1")


def check_stages(config: Any, *names: str) -> None:
    """Refuse per-stage values for another number of stages, and channels that the heads cannot share.

    A single number counts for all stages.
    """
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) and len(value) != len(config.depths):
            stages = f"{len(config.depths)} stages of depths {config.depths}"
            raise ValueError(f"{name} {value}: needs one value for each of the {stages}")
    if isinstance(config.embed_dim, tuple):
        for dim, heads in zip(config.embed_dim, config.num_heads, strict=True):
            check_heads(dim, heads)
