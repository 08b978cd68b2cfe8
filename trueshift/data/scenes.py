"""Images without masks, for a segmentation model."""

from .source import Sample, Source


class Pictures:
    """Images as samples without a target: the classes of an image are not those of its pixels."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.title = source.title
        self.classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """As the source calls it."""
        return self.source.name(index)

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        return Sample(sample.image, sample.name, None)
