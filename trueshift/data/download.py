"""Download data sets that need no agreement."""

from pathlib import Path

from torchvision.datasets import CIFAR10, CIFAR100

from ..utils.files import writable_folder

SOURCES = {"cifar10": CIFAR10, "cifar100": CIFAR100}
_BY_AGREEMENT = {
    "imagenet": "agree to its terms at https://image-net.org, and lay it out as train/CLASS/*.JPEG and "
    "val/CLASS/*.JPEG, or as .tar or .parquet shards",
    "ade20k": "agree to its terms at https://ade20k.csail.mit.edu, and lay it out as images/training/*.jpg with "
    "annotations/training/*.png, and the same for validation",
}


def download(name: str, folder: str | Path) -> Path:
    """Let torchvision download, check and unpack a data set unless it is there; returns the folder with its files.

    Args:
        name: ``"cifar10"`` or ``"cifar100"``.
        folder: where to put it; for one process at a time.
    """
    if name in _BY_AGREEMENT:
        raise ValueError(f"{name} is not to be fetched by a program: {_BY_AGREEMENT[name]}")
    if name not in SOURCES:
        raise ValueError(f"data set {name!r}: needs one of {', '.join(SOURCES)}")
    kind, folder = SOURCES[name], writable_folder(folder)
    try:
        kind(folder, download=True)
    except RuntimeError as error:  # of torchvision, for a checksum that differs
        raise ValueError(f"{kind.url} gave a file with another checksum ({error}): try again") from error
    except OSError as error:
        by_hand = f"put the file at {folder / kind.filename} by hand"
        raise OSError(f"{kind.url} cannot be fetched ({error}): try again, or {by_hand}") from error
    return folder / kind.base_folder
