"""Images to train and to measure on: a sample that comes with the package, folders, shards and the Hub."""

from ..utils.deprecation import renamed_attributes
from .arrays import CifarFiles, CompactArchive, EmbeddedSample, ImageArrays
from .download import download
from .factory import open_data
from .huggingface import DatasetImages
from .images import ImageFolder
from .prefetch import Prepared, Unreadable, read_ahead
from .segmentation import open_scenes
from .source import Sample, Source, WithoutTargets
from .transforms import Preparation, ScenePreparation

__getattr__ = renamed_attributes(
    __name__, ImageSource="Source", Picture="Sample", ParquetImages="DatasetImages", TarShards="DatasetImages"
)

__all__ = [
    "CifarFiles", "CompactArchive", "DatasetImages", "EmbeddedSample", "ImageArrays", "ImageFolder", "Preparation",
    "Prepared", "Sample", "ScenePreparation", "Source", "Unreadable", "WithoutTargets", "download", "open_data",
    "open_scenes", "read_ahead",
]  # fmt: skip
