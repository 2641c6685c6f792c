"""Text in other encodings than UTF-8: their names checked, a text's encoding guessed, and streams
of them read as UTF-8.

Whatever a file is packed in is opened first; then its text is decoded as it is read. So lines,
positions, digests and the uuids that follow from positions are those of the same text in UTF-8.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from encodings.aliases import aliases
from typing import Final

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import DamagedContent

UTF_8: Final = frozenset({"utf-8", "utf-8-sig"})
"""Read as they are: a mark of the byte order is passed over in any case."""
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NO_TEXTS: Final = frozenset(
    {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "mbcs", "oem"}
)
"""Python's codecs of texts that are no encodings of files."""
_COMMON: Final = (
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "latin-1",
    "cp1252",
    "shift_jis",
    "gb18030",
)
_CP1252_HOLES: Final = b"\x81\x8d\x8f\x90\x9d"
_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\n\r\f\x1b"))
_MARKED: Final = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""Encodings of either byte order, with their marks of it."""
_HEAD: Final = 512
_PART: Final = 1 << 16
_AROUND: Final = 24
"""Bytes around one that can't be decoded, by which the encoding is guessed: a whole file may be in
two of them.
"""


def checked_encoding(name: str, text: str) -> str:
    """The name of an encoding as Python has it; empty for UTF-8. Raises `ConfigurationError` if it
    is none; `name` is its option.
    """
    codec_name = _codec(text)
    if not codec_name:
        known = sorted(
            {
                encoding.replace("_", "-")
                for pair in aliases.items()
                for encoding in pair
                if _codec(encoding)
            }
            | set(_COMMON)
        )
        close = get_close_matches(text.strip().lower().replace(" ", "-"), known, n=2, cutoff=0.6)
        hint = (
            f"Did you mean {' or '.join(close)}?"
            if close
            else f"Usual ones are {', '.join(_COMMON)}."
        )
        raise ConfigurationError(f"{name}: {text!r} is not an encoding", hint=hint)
    return "" if codec_name in UTF_8 else codec_name


def _codec(text: str) -> str:
    """The name of a codec that makes text of a file's bytes; empty if it is none."""
    try:
        codec = codecs.lookup(text.strip())
    except (LookupError, ValueError):
        return ""
    return (
        codec.name
        if codec._is_text_encoding and codec.name.replace("_", "-") not in _NO_TEXTS
        else ""
    )


def guess_encoding(data: bytes) -> str | None:
    """The encoding that the beginning of a file seems to have, as `--encoding` takes it; None if
    it is no text.
    """
    for mark, name in _BOMS:
        if data.startswith(mark):
            return name
    if data.count(0) * 4 > len(data):  # of mostly Latin text in UTF-16, every second byte is zero
        even = data[::2].count(0)
        odd = data[1::2].count(0)
        if min(even, odd) * 4 < max(even, odd):
            return "utf-16-be" if even > odd else "utf-16-le"
    if len(data) - len(data.translate(None, _CONTROLS)) > len(data) // 50:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return "latin-1" if any(byte in _CP1252_HOLES for byte in data) else "cp1252"
    return "utf-8"


def wrong_encoding(data: bytes, encoding: str = "utf-8", around: bytes = b"") -> str:
    """What to do about a text that isn't in its encoding: the one that it seems to be in.

    `around`: what stands around the first byte that can't be decoded; it decides where the text's
    beginning says nothing.
    """
    guess = guess_encoding(data)
    if around and (guess == encoding or (guess == "utf-8" and data.isascii())):
        other = guess_encoding(around)
        guess = guess if other == "utf-8" else other
    if guess is None:
        return "it doesn't look like text"
    if guess == encoding:
        return "a part of it is in another encoding, or damaged"
    return (
        f"it looks like {guess}: "
        f"{'leave out --encoding' if guess.startswith('utf-8') else f'try --encoding {guess}'}"
    )


def not_utf8(text: bytes, error: UnicodeDecodeError) -> str:
    """Why a record isn't UTF-8: which byte of it, from 1, and what it looks like."""
    return (
        f"byte {error.start + 1} of the record, 0x{text[error.start]:02x}, isn't UTF-8; "
        f"{wrong_encoding(text)}"
    )


def as_utf8(source: Callable[[int], bytes], encoding: str) -> Callable[[int], bytes]:
    """A source of bytes that gives the text of another one in UTF-8.

    Raises `DamagedContent` where it can't be decoded, after everything before that.
    """
    parts = _decoded(source, encoding)
    return lambda _size: next(parts, b"")


def _decoded(source: Callable[[int], bytes], encoding: str) -> Iterator[bytes]:
    first = b""
    while len(first) < _HEAD and (data := source(_PART)):
        first += data
    decoder = codecs.getincrementaldecoder(_with_order(encoding, first))()
    before = 0
    line = 1
    data = first
    while True:
        failure = None
        try:
            text = decoder.decode(data, not data)
        except UnicodeDecodeError as error:
            failure = error.with_traceback(None)
            good = len(data) - len(error.object) + error.start
            text = ""
            if good > 0:
                try:
                    text = decoder.decode(data[:good])
                except UnicodeDecodeError:
                    text = ""
        written = text.encode("utf-8", "surrogatepass")
        line += written.count(b"\n")
        if written:
            yield written
        if failure is not None:
            at = failure.start
            bad = failure.object[failure.start : failure.end][:4].hex()
            hint = wrong_encoding(
                first[:_PART], encoding, failure.object[max(0, at - _AROUND) : at + _AROUND]
            )
            number = before + len(data) - len(failure.object) + at + 1
            why = f"line {line:,}, byte {number:,}: 0x{bad} is not {encoding} ({failure.reason})"
            raise DamagedContent(why, f"{hint[0].upper()}{hint[1:]}.")
        if not data:
            return
        before += len(data)
        data = source(_PART)


def _with_order(encoding: str, first: bytes) -> str:
    """An encoding with its byte order, where a text that begins so has no mark of it. Raises
    `DamagedContent` if it can't be seen.
    """
    if encoding not in _MARKED or not first or first.startswith(_MARKED[encoding]):
        return encoding
    guess = guess_encoding(first) or ""
    if guess.startswith(encoding):
        return guess
    hint = wrong_encoding(first, encoding)
    raise DamagedContent(
        f"line 1, byte 1: there is no byte order mark of {encoding}",
        f"{hint[0].upper()}{hint[1:]}.",
    )
