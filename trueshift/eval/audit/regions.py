"""Connected regions of a mask: where changed pixels lie together."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

_NEIGHBOURS = ((0, 1), (1, -1), (1, 0), (1, 1))  # the other four are these seen from the other side


def label_regions(mask: Bool[np.ndarray, "H W"]) -> Int[np.ndarray, "H W"]:
    """A number from 1 on for each region of pixels that touch, also by a corner; 0 outside.

    Pairs of neighbours are joined all at once: each pixel points to the first one of its region known so far, and
    pointers are followed until neighbours agree.
    """
    places = np.full(mask.shape, -1)
    places[mask] = np.arange(mask.sum())
    one, other = _pairs_of_neighbours(places)
    first = np.arange(mask.sum())
    while (first[one] != first[other]).any():
        lower = np.minimum(first[one], first[other])
        np.minimum.at(first, first[one], lower)
        np.minimum.at(first, first[other], lower)
        while (first != first[first]).any():
            first = first[first]
    numbers = np.zeros(mask.shape, np.int64)
    numbers[mask] = np.unique(first, return_inverse=True)[1] + 1
    return numbers


def _pairs_of_neighbours(places: Int[np.ndarray, "H W"]) -> tuple[np.ndarray, np.ndarray]:
    height, width = places.shape
    found = []
    for down, right in _NEIGHBOURS:
        columns, shifted = slice(max(-right, 0), width - max(right, 0)), slice(max(right, 0), width - max(-right, 0))
        pairs = np.stack([places[: height - down, columns].ravel(), places[down:, shifted].ravel()])
        found.append(pairs[:, (pairs >= 0).all(0)])
    one, other = np.concatenate(found, 1)
    return one, other


def largest_regions(mask: Bool[np.ndarray, "H W"], most: int = 8, smallest: float = 0.0005) -> list[dict[str, Any]]:
    """The largest regions with the boxes around them, from the largest on.

    Args:
        most: regions at most.
        smallest: the least part of all pixels that a region must have: single pixels along every edge are no region.
    """
    numbers = label_regions(mask)
    pixels = np.bincount(numbers.ravel())[1:]
    enough = np.flatnonzero(pixels >= max(2, smallest * mask.size))
    chosen = enough[np.argsort(-pixels[enough], kind="stable")][:most]
    found = []
    for number in chosen.tolist():
        rows, columns = np.nonzero(numbers == number + 1)
        box = [int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1]
        found.append({"box": box, "pixels": int(pixels[number])})
    return found
