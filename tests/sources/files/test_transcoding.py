"""Encodings: names, guesses, and files in them that read as the same text in UTF-8 does."""

from __future__ import annotations

import gzip
import io
import zipfile
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import BrokenSource, Framing, ReadOptions, RecordBlock
from forwarder.sources.files.source import open_source
from forwarder.sources.files.transcoding import as_utf8, checked_encoding, guess_encoding, not_utf8
from tests.support.cases import cases

TEXT: Final = "".join(
    f'{{"n":{number},"text":"Grüße, naïve café {number}"}}\r\n' for number in range(30_000)
)
TABLE: Final = "n,text\n" + "".join(f'{number},"Zürich,\n{number}"\n' for number in range(5_000))
ENCODINGS: Final = (
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "latin-1",
    "cp1252",
    "cp850",
    "utf-7",
)


@cases(
    ("text", "name"),
    [
        *(
            ("UTF8", ""),
            ("utf-8-sig", ""),
            ("UTF-16", "utf-16"),
            ("UTF_16LE", "utf-16-le"),
            ("latin1", "iso8859-1"),
        ),
        *(
            ("windows-1252", "cp1252"),
            (" cp1252 ", "cp1252"),
            ("Shift_JIS", "shift_jis"),
            ("ascii", "ascii"),
        ),
    ],
)
def test_names_are_those_of_python(text: str, name: str) -> None:
    """In any of their spellings; UTF-8 needs no decoding."""
    assert checked_encoding("--encoding", text) == name


@cases(
    ("text", "hint"),
    [
        *(
            ("utf-61", "Did you mean utf-16"),
            ("cp125", "Did you mean cp125"),
            ("latin 1x", "Did you mean latin-1"),
            ("", "Usual ones are utf-8, utf-16"),
        ),
        *(
            ("klingon", "Usual ones are"),
            ("base64", ""),
            ("rot13", ""),
            ("unicode_escape", ""),
            ("utf-16\x00", "Did you mean utf-16"),
        ),
    ],
)
def test_what_is_no_encoding_is_an_error_with_what_may_be_meant(text: str, hint: str) -> None:
    """Codecs that make no text of a file's bytes are none."""
    with pytest.raises(ConfigurationError, match=r"--encoding: .* is not an encoding") as raised:
        checked_encoding("--encoding", text)
    assert hint in raised.value.hint


@cases("name", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_encodings_are_guessed(name: str) -> None:
    """Also by a beginning that is cut within a character."""
    assert guess_encoding("Grüße\n".encode(name)) == name
    assert guess_encoding(("ü" * 300).encode("utf-8")[:511]) == "utf-8"
    assert guess_encoding("Gr\x81\x8dn".encode("latin-1")) == "latin-1"
    assert guess_encoding(bytes(range(256)) * 2) is None


def read(
    path: Path, encoding: str, framing: Framing = Framing.AUTO
) -> tuple[list[bytes], list[int], str, str]:
    """All records of a file with their lines; what tells the file from others, and its digest at
    the end.
    """
    with open_source([str(path)], ReadOptions(encoding=encoding, framing=framing)) as source:
        (file,) = ((file, [*source.blocks(file)]) for file in source.files())
        blocks = file[1]
        return (
            [*chain(*(block.records for block in blocks))],
            [*chain(*(block.lines for block in blocks))],
            file[0].identity,
            file[0].name,
        )


@pytest.mark.slow
@cases("name", ENCODINGS)
@cases(("text", "framing"), [(TEXT, Framing.AUTO), (TABLE, Framing.CSV)])
def test_a_file_reads_as_the_same_text_in_utf8(
    tmp_path: Path, name: str, text: str, framing: Framing
) -> None:
    """Records, lines, and what uuids and checkpoints follow from; packed, the same records."""
    plain = tmp_path / "plain"
    encoded = tmp_path / "encoded"
    packed = tmp_path / "packed.zip"
    plain.write_bytes(text.encode())
    encoded.write_bytes(text.encode(name))
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.gz", gzip.compress(text.encode(name)))
    codec = checked_encoding("", name)
    expected = read(plain, "", framing)
    decoded = read(encoded, codec, framing)
    assert decoded[:2] == expected[:2]
    if name != "utf-8-sig":
        assert decoded[2] == expected[2]
    assert read(packed, codec, framing)[:2] == expected[:2]


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_read_by_its_zeros(tmp_path: Path, order: str) -> None:
    """Either byte order, by one name."""
    (tmp_path / "plain").write_bytes(TEXT.encode())
    (tmp_path / "a").write_bytes(TEXT.encode(order))
    (tmp_path / "empty").write_bytes(b"")
    assert read(tmp_path / "a", "utf-16")[:3] == read(tmp_path / "plain", "")[:3]
    assert read(tmp_path / "empty", "utf-16")[0] == []


def test_without_an_encoding_utf16_is_said_to_be_it(tmp_path: Path) -> None:
    """With the option."""
    (tmp_path / "a").write_bytes(TEXT.encode("utf-16"))
    with pytest.raises(BrokenSource, match="it is utf-16 text") as raised:
        read(tmp_path / "a", "")
    assert raised.value.hint == "Add --encoding utf-16 to the command."


@cases(
    ("content", "encoding", "place", "hint"),
    [
        (
            b'{"n":1}\n{"t":"' + "é".encode("cp1252") + b'"}\n',
            "ascii",
            "line 2, byte 15: 0xe9 is not ascii",
            "It looks like cp1252: try --encoding cp1252.",
        ),
        (
            "abc\ndef".encode("utf-16-le") + b"\x00\xd8\x41\x00",
            "utf-16-le",
            "line 2, byte 15: 0x00d8",
            "A part of it is in another encoding, or damaged.",
        ),
        (
            b'{"n":1}\n' * 3,
            "utf-16",
            "line 1, byte 1: there is no byte order mark of utf-16",
            "It looks like utf-8: leave out --encoding.",
        ),
        (b"a", "utf-32", "line 1, byte 1: there is no byte order mark", "It looks like utf-8"),
        (
            "ab".encode("utf-16-le") + b"c",
            "utf-16-le",
            "line 1, byte 5: 0x63",
            "A part of it is in another encoding, or damaged.",
        ),
        (
            b"plain text\n" * 9000 + b"\x81",
            "cp1252",
            "line 9,001, byte 99,001: 0x81",
            "looks like latin-1",
        ),
        (
            "Grüße, 日本".encode(),
            "ascii",
            "line 1, byte 3: 0xc3 is not ascii",
            "It looks like utf-8: leave out --encoding.",
        ),
    ],
)
def test_what_cant_be_decoded_is_said_with_line_and_byte(
    tmp_path: Path, content: bytes, encoding: str, place: str, hint: str
) -> None:
    """And everything before it is read."""
    (tmp_path / "a").write_bytes(content)
    with open_source([str(tmp_path / "a")], ReadOptions(encoding=encoding)) as source:
        for file in source.files():
            read_blocks = list[RecordBlock]()
            with pytest.raises(BrokenSource) as raised, source.blocks(file) as blocks:
                read_blocks.extend(blocks)
            assert sum(len(block.records) for block in read_blocks) >= (
                content.count(b"\n") - 1
            ) * ("there is no" not in place)
    assert place in raised.value.reason
    assert hint in raised.value.hint
    assert str(tmp_path / "a") in raised.value.message


@cases("size", [1, 2, 3, 7, 100])
@cases("name", ["utf-16", "utf-8", "shift_jis", "utf-7", "gb18030"])
def test_how_a_stream_is_cut_changes_nothing(size: int, name: str) -> None:
    """Also within characters."""
    text = "Grüße 日本\n".replace("ü", "u").replace("ß", "s") * 20
    stream = io.BytesIO(text.encode(name))
    source = as_utf8(lambda _wanted: stream.read(size), name)
    assert b"".join(iter(lambda: source(1), b"")).decode() == text


def test_a_record_that_is_not_utf8_names_its_byte() -> None:
    """From 1, and what it may be."""
    record = b'{"a":"caf\xe9"}'
    with pytest.raises(UnicodeDecodeError) as raised:
        record.decode()
    assert (
        not_utf8(record, raised.value)
        == "byte 10 of the record, 0xe9, isn't UTF-8; it looks like cp1252: try --encoding cp1252"
    )
