"""Label files of every kind: the class of each pixel as it was written, or a word on what is wrong with the file."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from trueshift.data.masks import Labels, decode_mask
from trueshift.data.source import IGNORED

VALUES = np.array([[0, 1, 2], [3, 3, 255]], np.uint8)
FOUR = Labels.numbered(4)
CLASSES = np.array([[0, 1, 2], [3, 3, IGNORED]])


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def grey(values, kind="PNG"):
    return saved(Image.fromarray(values), kind)


def palette(values):
    image = Image.fromarray(values).copy()
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    return image


KINDS = {
    "grey": grey(VALUES),
    "bmp": grey(VALUES, "BMP"),
    "tiff": grey(VALUES, "TIFF"),
    "16 bits": grey(VALUES.astype(np.uint16)),
    "16 bits, tiff": grey(VALUES.astype(np.uint16), "TIFF"),
    "32 bits": grey(VALUES.astype(np.int32), "TIFF"),
    "palette": saved(palette(VALUES)),
    "palette, transparent": saved(palette(VALUES), transparency=0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_classes(kind):
    found = decode_mask(KINDS[kind], "a.png", pickle.loads(pickle.dumps(FOUR)))
    assert found.dtype == np.int32
    assert np.array_equal(found, CLASSES)


@pytest.mark.parametrize("as_palette", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_few_bits_are_the_values_that_were_written(bits, as_palette, png):
    """Pillow spreads grey of 4 bits over 0 to 255: label 1 would be read as 17."""
    values = np.arange(21, dtype=np.uint8).reshape(3, 7) % 2**bits
    texts = ["".join(format(value, f"0{bits}b") for value in row) for row in values]
    texts = [text + "0" * (-len(text) % 8) for text in texts]
    data = png(7, bits, 3 if as_palette else 0, [int(text, 2).to_bytes(len(text) // 8, "big") for text in texts])
    found = decode_mask(data, "a.png", Labels.numbered(2**bits))
    assert np.array_equal(found, values)


@pytest.mark.parametrize(
    ("labels", "values", "classes"),
    [
        (Labels.numbered(150, first=1, ignored=(0,)), np.arange(151, dtype=np.uint8), [IGNORED, *range(150)]),
        (Labels.numbered(19, ignored=(-1, 254, 255)), np.array([-1, 0, 18], np.int32), [IGNORED, 0, 18]),
        (Labels.numbered(3000, ignored=(65535,)), np.array([0, 255, 2999, 65535], np.uint16), [0, 255, 2999, IGNORED]),
    ],
)
def test_tables_of_published_data_sets(labels, values, classes):
    assert decode_mask(grey(values[None], "TIFF"), "a.tif", labels).tolist() == [classes]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0, 200, 2], [4, 3, 255]], np.uint8), "the values 4, 200, which no class has: needs 0 to 3, or 255"),
        (np.array([[0, 200, 2], [4, 3, 255]], np.int32), "the values 4, 200, which no class has: needs 0 to 3, or 255"),
        (np.array([[0, 70_000]], np.int32), "the value 70000, which no class has"),
        (np.array([[0, -(2**31)]], np.int32), "the value -2147483648, which no class has"),
        (np.arange(55, dtype=np.uint8)[None], "the values 4, 5, 6, 7, 8, 9, 10, 11 and 43 more, which"),
    ],
)
def test_unknown_values_are_named_with_the_right_ones(values, message):
    with pytest.raises(ValueError, match=rf"street\.png has {message}"):
        decode_mask(grey(values, "TIFF"), "street.png", FOUR)


NOISE = grey(np.random.default_rng(0).integers(0, 4, (40, 40), dtype=np.uint8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved(Image.new("LA", (3, 2))), "pixels of the mode LA: needs one integer per pixel"),
        (grey(VALUES.astype(np.float32), "TIFF"), "pixels of the mode F: needs one integer"),
        (saved(Image.new("RGB", (3, 2))), "pixels of the mode RGB: needs one integer"),
        (grey(VALUES, "JPEG"), "is a JPEG, which blurs labels: needs a lossless file"),
        (saved(Image.new("1", (3, 2)), "TIFF", tiffinfo={262: 0}), "stores white as 0"),
        (b"no image", "is not an image that Pillow knows: needs a label file"),
        (b"", "is not an image that Pillow knows"),
        (NOISE[: len(NOISE) // 2], "is not whole .*: copy it again"),
        (NOISE[:200] + bytes(50) + NOISE[250:], "is not whole .*: copy it again"),
    ],
    ids=["grey and alpha", "float", "colours", "jpeg", "white is 0", "text", "nothing", "truncated", "damaged"],
)
def test_what_cannot_be_labels_is_refused(data, message):
    with pytest.raises(ValueError, match=rf"odd\.png .*{message}"):
        decode_mask(data, "odd.png", FOUR)
