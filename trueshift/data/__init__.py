"""What to train and to measure on: images of a sample in the package, folders, shards and the Hub; and fields."""

from ..utils.deprecation import renamed_attributes
from .arrays import CifarFiles, CompactArchive, EmbeddedSample, ImageArrays
from .download import download
from .factory import open_data
from .fields import FieldPairs, FieldStatistics, open_fields
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
    "CifarFiles", "CompactArchive", "DatasetImages", "EmbeddedSample", "FieldPairs", "FieldStatistics", "ImageArrays",
    "ImageFolder", "Preparation", "Prepared", "Sample", "ScenePreparation", "Source", "Unreadable", "WithoutTargets",
    "download", "open_data", "open_fields", "open_scenes", "read_ahead",
]  # fmt: skip
