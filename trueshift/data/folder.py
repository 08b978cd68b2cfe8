"""A folder of images, with one folder per class if there are classes."""

from pathlib import Path

from PIL import Image, ImageOps

from .images import EXTENSIONS, image_files, rgb
from .source import Sample


class ImageFolder:
    """All images below a folder. Folders directly inside it are classes, in the order of their names.

    Images next to such folders have no label; with no folder that holds images, none has.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is not a folder: needs a folder of images")
        self.title = _as_text(self.path.resolve().name)
        self.files = sorted(image_files(self.path))
        if not self.files:
            raise ValueError(f"{self.path} has no images: needs files ending in {', '.join(EXTENSIONS)}")
        inside = sorted({file.relative_to(self.path).parts[0] for file in self.files if file.parent != self.path})
        self.classes: list[str] | None = [_as_text(name) for name in inside] or None
        self._labels = {name: label for label, name in enumerate(inside)}

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """The path inside the folder."""
        return _as_text(self.files[index].relative_to(self.path).as_posix())

    def __getitem__(self, index: int) -> Sample:
        file = self.files[index]
        with Image.open(file) as image:
            # a photograph lies as its camera was held
            upright = rgb(ImageOps.exif_transpose(image))
        return Sample(upright, self.name(index), self._labels.get(file.relative_to(self.path).parts[0]))


def _as_text(name: str) -> str:
    """A name as it can be printed: those of files may be in another encoding."""
    return name.encode(errors="backslashreplace").decode()
