"""Figures as files that keep the clone light: PNG of few colours, SVG as text, and neither written
again while it shows the same."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from lib.second.base.paths import whole

PRINT_DPI = 160
"""over 300 dots per inch where a figure is printed in a column of 6.5 inches"""
SCREEN_DPI = 110
SCREEN_WIDTH = 900
"""pixels, about the width of a page's text column"""
SCREEN_PIXELS = 600_000
"""at most, so that a tall figure weighs no more than a wide one"""
SCREEN_COLOURS = 64


def print_png(figure) -> bytes:
    """A figure for print: the fewest colours that lose nothing visible, all of them if 256 do."""
    image = _drawn(figure, PRINT_DPI)
    for colours in (64, 128, 256):
        few = _few(image, colours)
        if _lost(image, few) < 1e-4:
            return _encoded(few)
    return _encoded(image)


def screen_png(figure) -> bytes:
    """A figure for a notebook: at most SCREEN_WIDTH wide and SCREEN_PIXELS large (and a margin),
    in SCREEN_COLOURS colours."""
    width, height = figure.get_size_inches()
    dpi = min(SCREEN_DPI, SCREEN_WIDTH / width, (SCREEN_PIXELS / (width * height)) ** 0.5)
    return _encoded(_few(_drawn(figure, dpi), SCREEN_COLOURS))


def svg(figure) -> bytes:
    """A figure as SVG without date and version; the house style salts its ids, so the same figure
    gives the same text."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(buffer, format="svg", dpi=PRINT_DPI, metadata=metadata)
    return buffer.getvalue()


def save(figure, folder: Path, name: str) -> None:
    """Write <name>.png and <name>.svg; a file that shows the same already stays as it is."""
    for kind, content in (("png", print_png(figure)), ("svg", svg(figure))):
        target = folder / f"{name}.{kind}"
        if target.exists() and _same(kind, target.read_bytes(), content):
            continue
        with whole(target) as part:
            part.write_bytes(content)


def pixels(png: bytes) -> tuple[tuple[int, int], bytes]:
    """What a PNG shows: its size and its RGB values. Raises OSError if it is none, or damaged."""
    try:
        image = Image.open(io.BytesIO(png)).convert("RGB")
    except Exception as error:  # damaged ones make the library raise a dozen kinds
        raise OSError(f"no picture ({error})") from None
    return image.size, image.tobytes()


def _same(kind: str, one: bytes, other: bytes) -> bool:
    if one == other or kind != "png":
        return one == other
    try:
        return pixels(one) == pixels(other)
    except OSError:  # the one that is there is damaged
        return False


def _drawn(figure, dpi: float) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return Image.open(buffer).convert("RGB")


def _few(image: Image.Image, colours: int) -> Image.Image:
    # Maximum coverage keeps the rare colours of thin lines, which median cut gives up; k-means then
    # puts the colours of large areas right, until at most one pixel in 1,000 moves.
    method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    settled = 1 + image.width * image.height // 1000
    return image.quantize(colours, method=method, kmeans=settled, dither=dither)


def _lost(image: Image.Image, few: Image.Image) -> float:
    """Share of pixels that are more than 16 of 255 levels off in a channel."""
    before, after = (np.asarray(i.convert("RGB"), dtype=np.int16) for i in (image, few))
    return float((np.abs(before - after).max(axis=-1) > 16).mean())


def _encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
