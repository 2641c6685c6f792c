"""Pictures of pages, compared with those that were accepted: small ones, so that a page that looks the same is the same everywhere.

A picture is kept at half its size in few colours, and compared after a blur: edges that another version of the browser draws a little
otherwise don't count; a word, a colour or a box at another place does.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops, ImageFilter

from tests.support.repository import ROOT

ACCEPTED: Final = Path(__file__).parent / "looks"
FOUND: Final = ROOT / ".venv" / "looks"
RENEW: Final = "RENEW_LOOKS"
"""Set to 1, it accepts what is there instead of comparing."""
LONGEST: Final = 1600
"""Pixels of a page that are compared, from its top."""
TOLERANCE: Final = 40
"""Of 255, by which a pixel may differ in each colour, after the blur."""
MOST: Final = 24
"""Pixels of a picture that may differ by more."""
_COLOURS: Final = 48


def check(name: str, png: bytes) -> None:
    """Compare a picture with the accepted one. A failure leaves three pictures side by side, and says where: accepted, found, differing."""
    found, path = _small(png), ACCEPTED / f"{name}.png"
    if os.environ.get(RENEW) == "1":
        ACCEPTED.mkdir(exist_ok=True)
        if not path.exists() or _differing(_opened(path), found) is not None:
            found.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        return
    assert path.exists(), f"{name} has no accepted picture: `make looks` makes it"
    accepted = _opened(path)
    mask = _differing(accepted, found)
    if mask is not None:
        FOUND.mkdir(parents=True, exist_ok=True)
        left = FOUND / f"{name}.png"
        _beside(accepted, found, mask.convert("RGB")).save(left)
        raise AssertionError(
            f"{name} looks otherwise: {left} has what was accepted, what is there, and the difference. `make looks` accepts it"
        )


def _small(png: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, LONGEST)))
    return picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.BOX)


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _differing(one: Image.Image, other: Image.Image) -> Image.Image | None:
    """Where two pictures differ, white on black; None where they don't."""
    size = (max(one.width, other.width), max(one.height, other.height))
    blurred = [_padded(each, size).filter(ImageFilter.BoxBlur(1)) for each in (one, other)]
    channels = ImageChops.difference(*blurred).split()
    worst = ImageChops.lighter(ImageChops.lighter(channels[0], channels[1]), channels[2])
    mask = worst.point(lambda value: 255 if value > TOLERANCE else 0)
    return mask if one.size != other.size or mask.histogram()[255] > MOST else None


def _padded(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    padded = Image.new("RGB", size)
    padded.paste(picture)
    return padded


def _beside(*pictures: Image.Image) -> Image.Image:
    made = Image.new("RGB", (sum(each.width for each in pictures), max(each.height for each in pictures)))
    left = 0
    for each in pictures:
        made.paste(each, (left, 0))
        left += each.width
    return made
