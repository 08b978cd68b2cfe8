"""Images to measure on: folders, CIFAR files, and a real sample that comes with the package."""

from .cifar import CifarFiles
from .folder import ImageFolder
from .opening import open_data
from .prepare import Preparation
from .reading import Prepared, Unreadable, read_ahead
from .sample import EmbeddedSample
from .source import ImageSource, Picture

__all__ = [
    "CifarFiles",
    "EmbeddedSample",
    "ImageFolder",
    "ImageSource",
    "Picture",
    "Preparation",
    "Prepared",
    "Unreadable",
    "open_data",
    "read_ahead",
]
