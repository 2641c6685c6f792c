"""Pictures of pages, compared with those that were accepted: small ones, so that a page that looks
the same is the same everywhere.

A picture is kept at half its size in few colours: those of its grounds exactly, the others
roughly. Text and edges are compared after a blur, so that what another version of the browser
draws a little otherwise doesn't count; grounds, where nothing is drawn, strictly. So a word, a
colour or a box at another place is found.
"""

from __future__ import annotations

import io
import os
from collections import Counter
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
GROUND_TOLERANCE: Final = 4
"""Of 255, by which a ground may differ."""
GROUND_MOST: Final = 100
"""Pixels of grounds that may differ by more."""
_COLOURS: Final = 24
"""Colours of grounds, and as many for everything else."""


def check(name: str, png: bytes) -> None:
    """Compare a picture with the accepted one. A failure leaves three pictures side by side, and
    says where: accepted, found, differing.
    """
    picture = _small(png)
    path = ACCEPTED / f"{name}.png"
    if os.environ.get(RENEW) == "1":
        ACCEPTED.mkdir(exist_ok=True)
        if not path.exists() or _differing(_opened(path), picture) is not None:
            _in_few_colours(picture).save(path, optimize=True)
            assert _differing(_opened(path), picture) is None, (
                f"{name} can't be kept in so few colours"
            )
        return
    assert path.exists(), f"{name} has no accepted picture: `make looks` makes it"
    accepted = _opened(path)
    mask = _differing(accepted, picture)
    if mask is not None:
        FOUND.mkdir(parents=True, exist_ok=True)
        left = FOUND / f"{name}.png"
        _beside(accepted, picture, mask.convert("RGB")).save(left)
        raise AssertionError(
            f"{name} looks otherwise: {left} has what was accepted, what is there, and the "
            "difference. `make looks` accepts it"
        )


def _small(png: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, LONGEST)))
    return picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.BOX)


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _in_few_colours(picture: Image.Image) -> Image.Image:
    parts = iter(picture.tobytes())
    pixels = list(zip(parts, parts, parts, strict=True))
    flat = Counter(
        colour for colour, edge in zip(pixels, _edges(picture).tobytes(), strict=True) if not edge
    )
    grounds = {colour: index for index, (colour, _) in enumerate(flat.most_common(_COLOURS))}
    others = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    indices = bytes(
        grounds.get(colour, len(grounds) + other)
        for colour, other in zip(pixels, others.tobytes(), strict=True)
    )
    made = Image.frombytes("P", picture.size, indices)
    made.putpalette(
        [*(part for colour in grounds for part in colour), *(others.getpalette() or [])]
    )
    return made


def _differing(one: Image.Image, other: Image.Image) -> Image.Image | None:
    """Where two pictures differ, white on black; None where they don't."""
    size = (max(one.width, other.width), max(one.height, other.height))
    padded = [_padded(picture, size) for picture in (one, other)]
    drawn = _over(
        _distance(*(picture.filter(ImageFilter.BoxBlur(1)) for picture in padded)), TOLERANCE
    )
    flat = ImageChops.multiply(*(ImageChops.invert(_edges(picture)) for picture in padded))
    grounds = ImageChops.multiply(_over(_distance(*padded), GROUND_TOLERANCE), flat)
    if (
        one.size == other.size
        and drawn.histogram()[255] <= MOST
        and grounds.histogram()[255] <= GROUND_MOST
    ):
        return None
    return ImageChops.lighter(drawn, grounds)


def _distance(one: Image.Image, other: Image.Image) -> Image.Image:
    """How far two pictures differ at each pixel, in the colour in which they differ most."""
    red, green, blue = ImageChops.difference(one, other).split()
    return ImageChops.lighter(ImageChops.lighter(red, green), blue)


def _over(distance: Image.Image, limit: int) -> Image.Image:
    return distance.point(lambda value: 255 if value > limit else 0)


def _edges(picture: Image.Image) -> Image.Image:
    """Where a picture isn't of one colour all around, white on black."""
    return _over(
        _distance(
            picture.filter(ImageFilter.MaxFilter(5)), picture.filter(ImageFilter.MinFilter(5))
        ),
        0,
    )


def _padded(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    padded = Image.new("RGB", size)
    padded.paste(picture)
    return padded


def _beside(*pictures: Image.Image) -> Image.Image:
    made = Image.new(
        "RGB",
        (sum(picture.width for picture in pictures), max(picture.height for picture in pictures)),
    )
    left = 0
    for picture in pictures:
        made.paste(picture, (left, 0))
        left += picture.width
    return made
