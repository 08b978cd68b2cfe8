"""Images on which shift-equivariant networks break: ties, symmetries, repetitions and extreme values."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image as PillowImage
from torch import Tensor

Image = Float[Tensor, "C H W"]
PHOTOS = Path(__file__).parent / "photos"


def photographs(size: int = 224) -> dict[str, Float[Tensor, "3 size size"]]:
    """The six photographs that come with the package, square, in 0 .. 1."""
    return {path.stem: square_pixels(path, size).float() / 255 for path in sorted(PHOTOS.glob("*.jpg"))}


def square_pixels(path: Path, size: int) -> UInt8[Tensor, "3 size size"]:
    """The center of an image file, resized."""
    with PillowImage.open(path) as photo:
        side = min(photo.size)
        left, top = (photo.width - side) // 2, (photo.height - side) // 2
        square = photo.convert("RGB").crop((left, top, left + side, top + side)).resize((size, size))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def hostile_images(size: int | tuple[int, int] = 32, channels: int = 3, seed: int = 0) -> dict[str, Image]:
    """Named images, float32, each a reason for a choice to tie, nearly tie or overflow.

    Flat ones, one and several equal bright pixels, checkerboards and stripes of any period (also those that do not
    divide the size), tiles, upsampled small images, text-like strokes, saturated gradients, mirror symmetries,
    negative, tiny and huge values, quantised noise.
    """
    height, width = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")

    def grey(plane: Tensor) -> Image:
        return plane.float().expand(channels, height, width).clone()

    def noise(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    def spots(*places: tuple[int, int]) -> Image:
        image = torch.zeros(channels, height, width)
        for y, x in places:
            image[:, y % height, x % width] = 1
        return image

    def times(length: int) -> int:
        return next(count for count in (4, 3, 2, 5, 1) if length % count == 0)

    def upsampled(mode: str, **options: bool) -> Image:
        small = noise(1, channels, max(height // 8, 2), max(width // 8, 2))
        return F.interpolate(small, (height, width), mode=mode, **options)[0]

    def digits() -> Image:
        image = torch.ones(channels, height, width)
        for start in range(2, width - 4, 7):
            image[:, 3 : height // 2, start] = 0.1
            image[:, height // 2, start : start + 3] = 0.1
        return image

    eighth, side = noise(channels, height, width), max(height, width)
    images: dict[str, Image] = {
        "constant": grey(torch.full((height, width), 0.5)),
        "zero": grey(torch.zeros(height, width)),
        "one bright pixel": spots((3, 5)),
        "two bright pixels": spots((3, 5), (3, 11)),
        "two bright pixels, far": spots((1, 1), (1 + height // 2, 3 + width // 2)),
        "three bright pixels": spots((0, 0), (2, 6), (9, 3)),
        "four bright pixels": spots((0, 0), (0, 6), (6, 0), (6, 6)),
        "one bright row": grey(row == 5),
        "one bright column": grey(column == 5),
        "tiles": noise(channels, 5, 7).repeat(1, height // 5 + 1, width // 7 + 1)[:, :height, :width],
        "tiles that fit": noise(channels, height // times(height), width // times(width)).repeat(
            1, times(height), times(width)
        ),
        "nearest upsampled": upsampled("nearest"),
        "bilinear upsampled": upsampled("bilinear", align_corners=False),
        "dark digits on white": digits(),
        "saturated gradient": grey((row * 2.0 / height).clamp(0, 1)),
        "saturated diagonal": grey(((row + column) * 1.5 / (height + width)).clamp(0.2, 0.8)),
        "mirror": torch.cat([eighth[..., : width - width // 2], eighth[..., : width // 2].flip(2)], 2),
        "transpose symmetric": ((square := noise(channels, side, side)) + square.mT)[:, :height, :width],
        "point symmetric": eighth + eighth.flip((1, 2)),
        "negative": -noise(channels, height, width),
        "denormal": noise(channels, height, width) * 1e-40,
        "denormal beside one": noise(channels, height, width) * 1e-42 + spots((4, 4)),
        "huge": (noise(channels, height, width) - 0.5) * 1e15,
        "two levels": (noise(channels, height, width) > 0.5).float(),
        "eight-bit noise": (noise(channels, height, width) * 255).round() / 255,
        "normal noise": torch.randn(channels, height, width, generator=generator),
        "faint contrast": 1 + 1e-6 * noise(channels, height, width),
    }
    for period in range(1, 9):
        images[f"checkerboard {period}"] = grey((row // period + column // period) % 2)
    for period in (2, 3, 5):
        images[f"row stripes {period}"] = grey(row % period == 0)
        images[f"diagonal stripes {period}"] = grey((row + 2 * column) % period == 0)
    return images
