"""The functions of `make demo-pipeline`: decode, three variants by a slow "model", a contact sheet.

Standard library only. Images are PNG files of 8-bit RGB without filters, which the demo makes.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import holdfast

Pixels = bytearray
LOAD_SECONDS = 3.0
STYLES = ("warm", "ink", "night")


@dataclass
class Picture:
    """A variant of an image, and its file."""

    style: str
    path: str


def write_png(path: Path, width: int, height: int, pixels: bytes) -> None:
    """Write RGB pixels as a PNG file."""
    rows = b"".join(
        b"\0" + pixels[at : at + width * 3] for at in range(0, width * height * 3, width * 3)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        data += struct.pack(">I", len(body)) + kind + body
        data += struct.pack(">I", zlib.crc32(kind + body))
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)  # whole or not at all: a second attempt writes the same file


def read_png(path: Path) -> tuple[int, int, bytes]:
    """Return (width, height, RGB pixels) of a PNG file as `write_png` writes it."""
    data, at, body = path.read_bytes(), 8, b""
    width = height = 0
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, chunk = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        body += chunk if kind == b"IDAT" else b""
        at += 12 + size
    rows, line = zlib.decompress(body), width * 3 + 1
    return width, height, b"".join(rows[n * line + 1 : (n + 1) * line] for n in range(height))


@holdfast.model("styler", time_limit="1m")
def styler() -> Callable[[bytes, str], bytes]:
    """Load a "model": tables of colours, after a wait as for gigabytes of weights."""
    time.sleep(LOAD_SECONDS)
    tables = {
        "warm": [(min(255, n + 40), n, max(0, n - 40)) for n in range(256)],
        "ink": [(255 - n // 2, 250 - n // 2, 240 - n // 2) for n in range(256)],
        "night": [(n // 4, n // 3, min(255, n // 2 + 40)) for n in range(256)],
    }

    def style(pixels: bytes, name: str) -> bytes:
        table, styled = tables[name], bytearray(len(pixels))
        for at in range(0, len(pixels), 3):
            red, green, blue = pixels[at : at + 3]
            light = (red * 3 + green * 6 + blue) // 10
            styled[at : at + 3] = bytes(
                (c + t) // 2 for c, t in zip((red, green, blue), table[light], strict=True)
            )
        return bytes(styled)

    return style


@holdfast.task
def list_images(folder: str) -> list[str]:
    """Return the images of a folder: how many there are is known only now."""
    return sorted(str(path) for path in Path(folder).glob("*.png"))


@holdfast.task
def decode(path: str) -> str:
    """Cut an image square, and return its file."""
    width, height, pixels = read_png(Path(path))
    side = min(width, height)
    cut = b"".join(pixels[row * width * 3 : row * width * 3 + side * 3] for row in range(side))
    made = holdfast.context().out_dir / Path(path).name
    write_png(made, side, side, cut)
    return str(made)


@holdfast.task(model=styler, stall_timeout=2, retry=2)
def variant(image: str, style: str, wedges: str = "") -> Picture:
    """Return a variant of an image.

    wedges: the name of an image at which the first attempt hangs.
    """
    call = holdfast.context()
    holdfast.beat(0, 1)
    if Path(image).name == wedges and call.attempt == 1:
        time.sleep(3600)  # as a driver that never answers
    paint = styler()
    side, _, pixels = read_png(Path(image))
    made = call.out_dir / f"{style}-{Path(image).name}"
    write_png(made, side, side, paint(pixels, style))
    holdfast.beat(1, 1)
    return Picture(style, str(made))


@holdfast.task
def sheet(rows: list[list[Picture]]) -> str:
    """Return a contact sheet: a row for each style, a column for each image."""
    tiles = [[read_png(Path(part.path)) for part in row] for row in rows]
    side, gap = tiles[0][0][0], 4
    width = len(tiles[0]) * (side + gap) + gap
    height = len(tiles) * (side + gap) + gap
    page = bytearray(b"\xf4" * (width * height * 3))
    for y, row in enumerate(tiles):
        for x, (_, _, pixels) in enumerate(row):
            for line in range(side):
                at = ((gap + y * (side + gap) + line) * width + gap + x * (side + gap)) * 3
                page[at : at + side * 3] = pixels[line * side * 3 : (line + 1) * side * 3]
    made = holdfast.context().out_dir / "contact-sheet.png"
    write_png(made, width, height, bytes(page))
    return str(made)
