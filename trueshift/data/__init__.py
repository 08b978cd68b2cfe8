"""Images to train and to measure on: folders, packed files, and a real sample that comes with the package."""

from .archive import CompactArchive, write_archive
from .cifar import CifarFiles
from .download import download
from .factory import open_data
from .folder import ImageFolder
from .parquet import ParquetImages
from .prefetch import Prepared, Unreadable, read_ahead
from .sample import EmbeddedSample
from .shards import TarShards
from .source import Sample, Source
from .transforms import Preparation

__all__ = [
    "CifarFiles",
    "CompactArchive",
    "EmbeddedSample",
    "ImageFolder",
    "ParquetImages",
    "Preparation",
    "Prepared",
    "Sample",
    "Source",
    "TarShards",
    "Unreadable",
    "download",
    "open_data",
    "read_ahead",
    "write_archive",
]
