"""How a network selects its grids: the only difference between ordinary, ablated and adaptive networks."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from ..criteria import Criterion, FixedOffset, InputNorm, LearnedScore, MaxNorm
from ..ops.geometry.shift import Pair

CriterionLike = str | Criterion | Callable[[int], Criterion] | Mapping[str, Any]
CriterionSpec = CriterionLike | Mapping[str, CriterionLike]

NAMED: dict[str, Callable[..., Criterion]] = {
    "max_norm": lambda dim, p=2: MaxNorm(p),
    "input_norm": lambda dim: InputNorm(),
    "fixed": lambda dim, offset=(0, 0): FixedOffset(tuple(offset)),
    "learned": LearnedScore,
}
PLACES = ("tokenize", "align", "merge", "pool")
PADDINGS = ("circular", "zeros")
POSITIONS = ("circular", "shortest", "linear")


@dataclass(frozen=True)
class SelectionConfig:
    """The criteria of a network and what goes with them.

    Args:
        criterion: what chooses. A name (``"max_norm"``, ``"input_norm"``, ``"learned"``, ``"fixed"``), a name with its
            arguments (``{"name": "max_norm", "p": 1}``), a :class:`~trueshift.criteria.Criterion` (each layer gets a
            copy), a function from the number of channels to one; or a dictionary of these by place: ``"tokenize"``,
            ``"align"``, ``"merge"``, ``"pool"`` (keys and values of an attention; as ``"merge"`` if not given). Places
            left out take ``"max_norm"``: ``{"align": "fixed"}`` is the paper's ablation without A-WSA.
        anchor: start the grid at the wrap seam; by default wherever the tokenizer is adaptive.
        padding: of convolutions, ``"circular"`` or, for the ordinary network, ``"zeros"``.
        positions: how relative positions over all tokens are read. ``"circular"``: a table with a row per step around
            the image; ``"shortest"``: the linear table of an ordinary network, read at the shortest signed distance;
            ``"linear"``: as the ordinary network.
        grid_drop_rate: while training, the probability with which each choice is replaced by a random grid, for each
            image and layer on its own. Without meaning in evaluation.
    """

    criterion: CriterionSpec = "max_norm"
    anchor: bool | None = None
    padding: str | None = None
    positions: str | None = None
    grid_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.grid_drop_rate <= 1:
            raise ValueError(f"grid_drop_rate {self.grid_drop_rate}: needs a probability, 0 to 1")
        if _by_place(self.criterion):
            for place in self.criterion:  # type: ignore[union-attr]
                if place not in PLACES:
                    raise ValueError(f"criterion for {place!r}: needs one of {PLACES}")
        for place in PLACES:
            self.at(place, 1)
        for name, value, allowed in (
            ("padding", self.padding, PADDINGS),
            ("positions", self.positions, POSITIONS),
        ):
            if value is not None and value not in allowed:
                raise ValueError(f"{name} {value!r}: needs one of {allowed}")

    def like(self, place: str) -> CriterionLike:
        """What was asked for at one place."""
        if not _by_place(self.criterion):
            return self.criterion
        given: Mapping[str, CriterionLike] = self.criterion  # type: ignore[assignment]
        fallback = given.get("merge", "max_norm") if place == "pool" else "max_norm"
        return given.get(place, fallback)

    def at(self, place: str, dim: int, stride: Pair | None = None) -> Criterion:
        """A new criterion for one layer, whose tokens have ``dim`` channels; a fixed one where the stride is 1."""
        if stride == (1, 1):
            return FixedOffset()
        made = self._made(place, dim)
        if self.grid_drop_rate:
            made.grid_drop_rate = self.grid_drop_rate
        return made

    def _made(self, place: str, dim: int) -> Criterion:
        like = self.like(place)
        if isinstance(like, Criterion):
            return deepcopy(like)
        arguments: dict[str, Any] = {}
        if isinstance(like, Mapping):
            arguments = {key: value for key, value in like.items() if key != "name"}
            like = like["name"]
        make = NAMED.get(like) if isinstance(like, str) else like
        if make is None:
            raise ValueError(f"criterion {like!r}: needs one of {tuple(NAMED)}, a Criterion, or a function to make one")
        made = make(dim, **arguments)
        if not isinstance(made, Criterion):
            raise TypeError(f"the criterion for {place!r} is a {type(made).__name__}: needs a Criterion")
        return made

    def adaptive(self, *places: str) -> bool:
        """Whether any of these places looks at the content."""
        return any(self.at(place, 1).adaptive for place in places)

    @property
    def anchored(self) -> bool:
        """Whether the tokenizer also chooses the first token."""
        return self.adaptive("tokenize") if self.anchor is None else self.anchor

    @property
    def padding_mode(self) -> str:
        """Circular in every network that adapts anywhere."""
        return self.padding or ("circular" if self.adaptive(*PLACES) else "zeros")

    @property
    def position_mode(self) -> str:
        """Circular in every network that adapts anywhere."""
        return self.positions or ("circular" if self.adaptive(*PLACES) else "linear")


def _by_place(criterion: CriterionSpec) -> bool:
    return isinstance(criterion, Mapping) and "name" not in criterion


def describe(criterion: CriterionSpec) -> Any:
    """The same specification in names and numbers, for a file."""
    if isinstance(criterion, str):
        return criterion
    if isinstance(criterion, Mapping):
        if "name" in criterion:
            return dict(criterion)
        return {place: describe(like) for place, like in criterion.items()}
    # exact types: a subclass chooses otherwise, and would come back as what it was derived from
    if type(criterion) is MaxNorm:
        return {"name": "max_norm", "p": criterion.p}
    if type(criterion) is InputNorm:
        return "input_norm"
    if type(criterion) is FixedOffset:
        return {"name": "fixed", "offset": list(criterion.offset)}
    raise ValueError(
        f"criterion {criterion!r} cannot be written to a file: use one of {tuple(NAMED)} by name, or save the "
        "state_dict and build the model again with the same criterion"
    )
