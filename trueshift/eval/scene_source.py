"""Data for a segmentation model by what a user calls it: scenes, or pictures of which no masks are known."""

from pathlib import Path

from ..data import open_data
from ..data.segmentation import UnknownLayout, open_scenes
from ..data.source import Source, WithoutTargets


def open_scenes_or_pictures(where: str | Path, split: str = "test") -> Source:
    """Pictures with masks where the folder is in the layout of such; pictures alone otherwise.

    Args:
        where: see :func:`~trueshift.data.segmentation.open_scenes` and :func:`~trueshift.data.open_data`.
    """
    word = "test" if split == "val" else split  # pictures by themselves know these two as one
    if where == "sample":
        return WithoutTargets(open_data(where, word))
    try:
        return open_scenes(where, split)
    except UnknownLayout as error:
        unknown = error
    try:
        return WithoutTargets(open_data(where, word))
    except ValueError as error:
        raise ValueError(f"{unknown}; nor are there pictures alone ({error})") from error
