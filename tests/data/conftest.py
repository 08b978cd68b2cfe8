"""Shared by tests of data."""

import struct
import zlib

import pytest


@pytest.fixture
def png():
    """Encode a PNG from its rows of packed bytes: Pillow writes no grey of 2 or 4 bits and no colours of 16."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def encode(width, bits, colour_type, rows):
        header = struct.pack(">IIBBBBB", width, len(rows), bits, colour_type, 0, 0, 0)
        palette = chunk(b"PLTE", bytes(3 * 2**bits)) if colour_type == 3 else b""
        data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + data + chunk(b"IEND", b"")

    return encode
