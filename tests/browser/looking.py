"""What a person would see of a page: whether it is blank, runs over its edges, or has text that
can't be read.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, Literal

from playwright.async_api import Page, expect

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
"""The colours that a visitor may prefer."""
LEAST_CONTRAST: Final = 4.5
"""Of text to what is behind it (WCAG 2.2, success criterion 1.4.3)."""
_UNREADABLE: Final = """
(least) => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a \
+ B * (1 - a)];
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 \
: ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const above = [];
    for (let each = element; each; each = each.parentElement) \
above.push(parse(getComputedStyle(each).backgroundColor));
    const base = matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
    return above.reverse().reduce((under, colour) => (colour.length === 4 && colour[3] === 0 ? \
under : over(colour, under)), base);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility() || element.closest(".unseen, \
noscript, :disabled")) continue;
    const behind = ground(element);
    const [one, other] = [light(over(parse(getComputedStyle(element).color), behind)), \
light(behind)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < least) found.push(`${contrast.toFixed(2)}: ${node.textContent.trim().slice(0, \
40)}`);
  }
  return found;
}
"""


async def wait_for_list(page: Page) -> None:
    """Wait until the sandbox's page is connected, and its list shows what was asked for."""
    await expect(page.locator("#state")).to_have_text("live")
    await expect(page.locator("#panel")).to_have_attribute("aria-busy", "false")


async def flaws(page: Page) -> list[str]:
    """What can't be read, or is wider than the window, in light and in dark."""
    problems = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        problems += [f"{scheme}: {text}" for text in await unreadable(page)]
    if wider := await overflowing(page):
        problems.append(f"{wider} pixels wider than the window")
    return problems


async def unreadable(page: Page) -> list[str]:
    """The texts on the page whose contrast is too low, each with its contrast."""
    texts: list[str] = await page.evaluate(_UNREADABLE, LEAST_CONTRAST)
    return texts


async def overflowing(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    wider: int = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return max(0, wider)


async def running_over(page: Page, selector: str) -> int:
    """Pixels by which what is in an element is wider than the element."""
    wider: int = await page.locator(selector).evaluate(
        "(element) => element.scrollWidth - element.clientWidth"
    )
    return max(0, wider)


async def colours(page: Page) -> int:
    """How many rows of different pixels a picture of the page has: 1 of a blank one."""
    return different_lines(await page.screenshot())


def different_lines(png: bytes) -> int:
    """How many lines of a PNG picture differ from the one above them, and the first.

    (PNG specification, third edition: 11.2 chunks, 9.2 filter types.) With the filter of the line
    above, a line of zeros repeats it.
    """
    width, depth, kind = (*struct.unpack(">I", png[16:20]), png[24], png[25])
    line = 1 + width * {0: 1, 2: 3, 3: 1, 6: 4}[kind] * depth // 8
    data = zlib.decompress(b"".join(_chunks(png)))
    return sum(
        any(data[start + 1 : start + line]) or data[start] != 2
        for start in range(0, len(data), line)
    )


def _chunks(png: bytes) -> list[bytes]:
    chunks = []
    place = 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            chunks.append(png[place + 8 : place + 8 + length])
        place += 12 + length
    return chunks


async def box(page: Page, selector: str) -> dict[str, Any]:
    """Where something is."""
    bounds: Any = await page.locator(selector).first.bounding_box()
    assert bounds is not None, selector
    return dict(bounds)
