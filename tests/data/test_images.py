"""Images in folders: which files are read, their classes, and their pixels whatever they are stored in."""

import numpy as np
import pytest
from PIL import Image

from trueshift.data import ImageFolder, open_data


def pixels_of(sample):
    assert sample.image.mode == "RGB"
    return np.asarray(sample.image)


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (200, 100, 50)).save(path)


def labels_by_name(source):
    samples = [source[index] for index in range(len(source))]
    assert [sample.name for sample in samples] == [source.name(index) for index in range(len(source))]
    return {sample.name: sample.target for sample in samples}


def test_folders_inside_are_classes(tmp_path):
    for file in ("zebra/1.png", "ant/2.JPG", "ant/old/more/3.webp", "bee/4.bmp", "loose.png", "bee/.cache/5.png"):
        save(tmp_path / file)
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "bee" / "._4.png").write_bytes(b"a note of a file system")
    (tmp_path / "bee" / "folder.png").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "bee" / "again").symlink_to(tmp_path)  # without end
    (tmp_path / "cat").symlink_to(tmp_path / "zebra")
    found = {"ant/2.JPG": 0, "ant/old/more/3.webp": 0, "bee/4.bmp": 1, "cat/1.png": 2, "zebra/1.png": 3}
    source = open_data(tmp_path)
    assert labels_by_name(source) == found | {"loose.png": None}
    assert (source.classes, source.title) == (["ant", "bee", "cat", "zebra"], tmp_path.name)


def test_one_image_stands_alone_whatever_lies_beside_it(tmp_path):
    for file in ("cats/one.JPG", "cats/two.png", "cats/more/three.png"):
        save(tmp_path / file)
    source = open_data(tmp_path / "cats" / "one.JPG")
    assert (source.title, source.classes, len(source)) == ("one.JPG", None, 1)
    assert labels_by_name(source) == {"one.JPG": None}


def test_photographs_are_turned_upright(tmp_path):
    upright = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10)
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "photo.png", exif=exif)
    assert np.array_equal(pixels_of(ImageFolder(tmp_path)[0]), np.asarray(upright))


def test_16_bits_per_channel_become_8(tmp_path, png):
    values = np.random.default_rng(0).integers(0, 2**16, (5, 4, 3), dtype=np.uint16)
    values[0, 0], values[0, 1] = 0, 2**16 - 1
    for name, kind, stored in (("colour", 2, values), ("grey", 0, values[..., 0])):
        (tmp_path / f"{name}.png").write_bytes(png(4, 16, kind, [row.astype(">u2").tobytes() for row in stored]))
    colour, grey = (pixels_of(ImageFolder(tmp_path)[index]) for index in (0, 1))
    assert np.array_equal(colour, values >> 8)
    assert np.array_equal(grey, np.repeat(values[..., :1] >> 8, 3, 2))


def test_every_kind_of_png_is_read_as_colours(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image, grey = Image.fromarray(colours), colours[..., 0]
    palette = image.quantize(16)
    expected = {
        "alpha": (Image.fromarray(np.dstack([colours, grey])), colours),
        "bits": (Image.fromarray(grey > 127), np.dstack([np.where(grey > 127, 255, 0)] * 3)),
        "grey": (Image.fromarray(grey), np.dstack([grey] * 3)),
        "grey_alpha": (Image.fromarray(np.dstack([grey, grey])), np.dstack([grey] * 3)),
        "palette": (palette, np.asarray(palette.convert("RGB"))),
        "palette_alpha": (palette, np.asarray(palette.convert("RGB"))),
    }
    for name, (stored, wanted) in expected.items():
        options = {"transparency": bytes(range(0, 160, 10))} if name == "palette_alpha" else {}
        stored.save(tmp_path / f"{name}.png", **options)
        assert np.array_equal(pixels_of(ImageFolder(tmp_path / f"{name}.png")[0]), wanted), name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.random.default_rng(0).random((4, 4), np.float32), "floating point"),
        (np.array([[0, 2**16]], np.int32), "values from 0 to 65536"),
        (np.array([[-1, 5]], np.int32), "values from -1 to 5"),
    ],
)
def test_images_of_no_known_scale_are_not_guessed(tmp_path, values, message):
    """Pillow would cut off what is not between 0 and 255, which may be all there is."""
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=f"{message}: needs 8 or 16 bits per channel"):
        ImageFolder(tmp_path)[0]
