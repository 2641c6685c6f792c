"""A source as a whole: what the user names becomes blocks of records."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import threading
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import BrokenSource, Framing, ReadOptions
from forwarder.sources.files.source import open_source
from tests.support.cases import cases
from tests.support.packed import numbered, read_all, tarred, zipped

A = b'{"n":1}\n{"n":2}\n'
B = b'{"n":3}\r\n\r\n{"n":4}'
IN_A = [b'{"n":1}', b'{"n":2}']
IN_B = [b'{"n":3}', b'{"n":4}']
MANY: Final = b"".join(b'{"n":%d}\n' % n for n in range(5000))


def digest_of(records: list[bytes]) -> str:
    """The running digest, written down again."""
    return hashlib.sha256(b"".join(record + b"\n" for record in records)).hexdigest()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """Files in a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


PACKED: Final = {
    "plain": (A, {"x": IN_A}),
    "gzip": (gzip.compress(A) + gzip.compress(B), {"x": [*IN_A, *IN_B]}),
    "zstd": (zstandard.compress(A) + zstandard.compress(B), {"x": [*IN_A, *IN_B]}),
    "bzip2": (bz2.compress(A), {"x": IN_A}),
    "zip": (zipped({"b_10": B, "b_9": A, "d/": b""}), {"x!b_9": IN_A, "x!b_10": IN_B}),
    "zip, bzip2 inside": (zipped({"b": B}, zipfile.ZIP_BZIP2), {"x!b": IN_B}),
    "tar": (tarred({"b": B, "a": A}), {"x!b": IN_B, "x!a": IN_A}),
    "tar.gz": (
        tarred({"d/a": A, "d/.DS_Store": b"?", "__MACOSX/a": b"?"}, "w:gz"),
        {"x!d/a": IN_A},
    ),
    "an Amplitude download": (
        zipped({"7/7_1.json.gz": gzip.compress(A)}, zipfile.ZIP_STORED),
        {"x!7/7_1.json.gz": IN_A},
    ),
    "zip in zip": (
        zipped({"in.zip": zipped({"a": A, "b.zst": zstandard.compress(B)})}),
        {"x!in.zip!a": IN_A, "x!in.zip!b.zst": IN_B},
    ),
    "tar.gz in zip, gzip inside": (
        zipped({"t": tarred({"a": gzip.compress(A)}, "w:gz")}),
        {"x!t!a": IN_A},
    ),
    "zip in tar": (tarred({"z": zipped({"a": A}), "b": B}), {"x!z!a": IN_A, "x!b": IN_B}),
    "pzstd's skippable frame first": (
        b"\x50\x2a\x4d\x18\x02\0\0\0xx" + zstandard.compress(A),
        {"x": IN_A},
    ),
    "empty": (b"", {"x": []}),
    "empty zip": (zipped({}), {}),
}


@cases(("content", "expected"), PACKED.values(), ids=list(PACKED))
def test_whatever_is_packed_is_found(
    tmp_path: Path, content: bytes, expected: dict[str, list[bytes]]
) -> None:
    """By the content, not by the name; the members of a zip in the order of their names, those of
    a tar as they stand.
    """
    (tmp_path / "x").write_bytes(content)
    contents, broken = read_all([tmp_path / "x"])
    assert (contents, broken) == (expected, [])
    assert list(contents) == list(expected)


@cases("content", [content for content, _ in PACKED.values()], ids=list(PACKED))
def test_a_source_can_be_read_again(tmp_path: Path, content: bytes) -> None:
    """Its files have the same identities, blocks and digests the second time; no two files have
    one identity.
    """
    (tmp_path / "x").write_bytes(content)
    with open_source([str(tmp_path / "x")]) as source:
        once, again = (
            [(file, numbered(list(source.blocks(file)))) for file in source.files()]
            for _ in range(2)
        )
    assert again == once
    assert len({file.identity for file, _ in once}) == len(once)


def test_blocks_say_which_records_they_hold(tmp_path: Path) -> None:
    """Numbers and lines follow on each other, and the digest is that of all records up to any one
    of the last block.
    """
    (tmp_path / "x.gz").write_bytes(gzip.compress(MANY))
    records = MANY.split(b"\n")[:-1]
    with open_source([str(tmp_path)], ReadOptions(block_bytes=999)) as source:
        files = source.files()
        reading = source.blocks(next(files))
        read = 0
        for block in reading:
            assert (block.first, block.place(0).line) == (read, read + 1)
            assert list(block.records) == records[read : read + len(block.records)]
            for count in (read, read + 1, read := read + len(block.records)):
                assert reading.digest_at(count) == digest_of(records[:count])
        assert read == 5000
        with pytest.raises(ValueError, match="isn't in the block"):
            reading.digest_at(0)


def test_a_file_is_read_once_and_before_the_next(tmp_path: Path) -> None:
    """It is open only until then."""
    written(tmp_path, {"x": A, "y": B})
    with open_source([str(tmp_path)]) as source:
        for file in list(source.files()):
            with pytest.raises(RuntimeError, match="the next file was asked for"):
                source.blocks(file)
        files = source.files()
        file = next(files)
        assert list(source.blocks(file))
        with pytest.raises(RuntimeError, match="it was read before"):
            source.blocks(file)


def test_folders_patterns_and_files_come_in_order_and_once(tmp_path: Path) -> None:
    """Folders by the names in them, numbers by value; hidden files only where they are named."""
    written(
        tmp_path,
        {
            "d/b_10.json": A,
            "d/b_9.json": A,
            "d/a/c.json": A,
            "d/.hidden": A,
            "e/1.json": B,
            "e/2.txt": B,
            ".named": A,
        },
    )
    paths = [
        f"{tmp_path}/e/*.json",
        f"{tmp_path}/d",
        f"{tmp_path}/d/b_9.json",
        f"{tmp_path}/.named",
    ]
    with open_source(paths) as source:
        names = [origin.name.removeprefix(f"{tmp_path}/") for origin in source.origins]
        assert names == ["e/1.json", "d/a/c.json", "d/b_9.json", "d/b_10.json", ".named"]
        assert [file.name.removeprefix(f"{tmp_path}/") for file in source.files()] == names


@cases("path", ["nothing", "nothing*", "hidden", "n" * 300])
def test_what_names_nothing_is_an_error(tmp_path: Path, path: str) -> None:
    """A typing mistake isn't an empty import, nor is a folder that wasn't mounted."""
    (tmp_path / "hidden" / "folder").mkdir(parents=True)
    (tmp_path / "hidden" / ".file").touch()
    with pytest.raises(ConfigurationError):
        open_source([f"{tmp_path}/{path}"])


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("named", [".", "*", "**/*"])
def test_links_out_of_the_folder_are_followed_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, named: str
) -> None:
    """Without that they are an error, which names the link: nothing is read, and nothing is left
    out in silence.
    """
    written(tmp_path / "elsewhere", {"secret.jsonl": b'{"a":1}\n'})
    export = written(tmp_path / "export", {"day.jsonl": b'{"a":2}\n'})
    target = tmp_path / "elsewhere"
    (export / "link.jsonl").symlink_to(target if kind == "folder" else target / "secret.jsonl")
    monkeypatch.chdir(export)
    with pytest.raises(ConfigurationError, match=r"link\.jsonl: a link that leads out") as raised:
        open_source([named])
    assert "--follow-links" in raised.value.hint
    followed = [
        origin.name for origin in open_source([named], ReadOptions(follow_links=True)).origins
    ]
    assert any("link.jsonl" in name for name in followed)


def test_links_within_the_folder_and_links_that_are_named_are_read(tmp_path: Path) -> None:
    """As mounted volumes have them; a folder that is a link is that folder, and one that leads
    around ends.
    """
    export = written(tmp_path / "export", {"..data/day.jsonl": b'{"a":2}\n'})
    (export / "day.jsonl").symlink_to("..data/day.jsonl")
    (tmp_path / "named").symlink_to(export)
    (tmp_path / "file.jsonl").symlink_to(export / "day.jsonl")
    assert len(open_source([str(tmp_path / "named")]).origins) == 1
    assert len(open_source([str(tmp_path / "file.jsonl")]).origins) == 1
    (export / "around").symlink_to(tmp_path)
    (export / ".hidden").symlink_to(tmp_path)
    assert len(open_source([str(export)], ReadOptions(follow_links=True)).origins) >= 1


def test_a_device_is_no_source() -> None:
    """It may have no end."""
    with pytest.raises(ConfigurationError, match="neither a file nor a pipe"):
        open_source(["/dev/zero"])


def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files aren't left out in silence, whichever part of the tree it is."""
    (tmp_path / "a").touch()
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(ConfigurationError, match="closed: can't be read: Permission denied"):
        open_source([str(tmp_path)])


@pytest.mark.parametrize("name", ["lost+found", ".snapshot"])
def test_folders_of_the_volume_itself_are_not_even_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file system's own belong to root, and snapshots have every file again."""
    written(tmp_path, {"a.json": A, f"{name}/a.json": A, f"d/{name}/b.json": A, "d/b.json": A})
    scan = os.scandir
    looked = list[str]()

    def noted(path: str) -> object:
        looked.append(Path(path).name)
        return scan(path)

    monkeypatch.setattr(os, "scandir", noted)
    with open_source([str(tmp_path)]) as source:
        assert [Path(origin.name).name for origin in source.origins] == ["a.json", "b.json"]
    assert name not in looked
    assert "d" in looked


def test_standard_input_is_kept_and_is_the_same_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read again, and has the identity of the same bytes in a file,
    so that uuids are equal.
    """
    (tmp_path / "x").write_bytes(gzip.compress(MANY, mtime=0))

    class Standard:
        buffer = io.BytesIO((tmp_path / "x").read_bytes())

    monkeypatch.setattr(sys, "stdin", Standard)
    with open_source(["-"]) as piped, open_source([str(tmp_path)]) as named:
        assert piped.identity == named.identity
        for _ in range(2):
            for ours, theirs in zip(piped.files(), named.files(), strict=True):
                assert ours.identity == theirs.identity
                assert numbered(list(piped.blocks(ours))) == numbered(list(named.blocks(theirs)))


def test_a_pipe_with_a_name_is_like_standard_input(tmp_path: Path) -> None:
    """Such as the shell makes for `<(…)`."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(A,))
    writer.start()
    assert read_all([tmp_path / "pipe"]) == ({"pipe": IN_A}, [])
    writer.join()


def test_identities_follow_the_content(tmp_path: Path) -> None:
    """Not the name or time of a file, but its bytes, and for members their way."""
    written(tmp_path, {"a": A, "b": A, "c": B, "z1.zip": zipped({"m": A, "n": A})})
    os.utime(tmp_path / "b", ns=(5, 5))
    with open_source([str(tmp_path)]) as source:
        identities = {file.name.rpartition("/")[2]: file.identity for file in source.files()}
        a, b, *_ = (origin.fingerprint for origin in source.origins)
    assert identities["a"] == identities["b"] != identities["c"]
    assert (b.modified, b.size) == (5, len(A))
    assert a != b
    assert identities["z1.zip!m"] != identities["z1.zip!n"]


BROKEN: Final = {
    "gzip, cut": (gzip.compress(MANY)[:-4], "x", "it is cut off", 5000),
    "gzip, cut early": (gzip.compress(MANY)[:5], "x", "it is cut off", 0),
    "zip, cut": (zipped({"a": A})[:-10], "x", "the zip archive is damaged", 0),
    "zip, member damaged": (
        zipped({"a": A, "b": MANY}, zipfile.ZIP_STORED).replace(b'{"n":77}', b'{"n":78}'),
        "x!b",
        "Bad CRC",
        4000,
    ),
    "gzip in zip, cut": (
        zipped({"a": gzip.compress(MANY)[:-9], "b": B}),
        "x!a",
        "it is cut off",
        4000,
    ),
    "tar, cut in a member": (tarred({"a": A, "b": MANY})[:5000], "x!b", "it is cut off", 300),
    "tar, cut between": (tarred({"a": A, "b": MANY})[:1024], "x", "the tar archive is damaged", 2),
    "tar.gz, cut": (tarred({"a": A, "b": MANY}, "w:gz")[:-12], "x", "it is cut off", 5002),
    "five deep": (
        gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(A))))),
        "x",
        "more than 4 deep",
        0,
    ),
    "JSON, cut": (b'[{"n":1},{"n":2},', "x", "ends inside a JSON value", 2),
}


@cases(("content", "name", "why", "least"), BROKEN.values(), ids=list(BROKEN))
def test_damage_ends_a_file_after_what_could_be_read(
    tmp_path: Path, content: bytes, name: str, why: str, least: int
) -> None:
    """The error names file and place; the files after it are read."""
    written(tmp_path, {"x": content, "y": B})
    contents, broken = read_all([tmp_path], ReadOptions(block_bytes=4096))
    assert contents["y"] == IN_B
    errors = [
        (
            error.file.rpartition("/")[2]
            if "!" not in error.file
            else f"x!{error.file.partition('!')[2]}",
            error,
        )
        for error in broken
    ]
    assert name in [file for file, _ in errors]
    error = next(error for file, error in errors if file == name)
    assert why in error.reason
    assert (
        f"can't be read after {error.offset:,} bytes" if error.offset else "can't be read: "
    ) in str(error)
    records = [record for file_records in contents.values() for record in file_records]
    assert len(records) >= least
    assert {
        record for record in records if not record.startswith(b'{"n":') or not record.endswith(b"}")
    } == set()


def test_a_zip_with_a_password_is_said_to_have_one(tmp_path: Path) -> None:
    """It isn't damaged."""
    content = bytearray(zipped({"a": A}))
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + flags] |= 1
    (tmp_path / "x").write_bytes(content)
    _, (error,) = read_all([tmp_path])
    assert "encrypted" in error.reason


def test_members_of_one_name_are_distinguished(tmp_path: Path) -> None:
    """A tar that was appended to may have a file twice."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for content in (A, B):
            info = tarfile.TarInfo("a")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    (tmp_path / "x").write_bytes(made.getvalue())
    assert read_all([tmp_path]) == ({"x!a": IN_A, "x!a#2": IN_B}, [])


@cases(
    ("content", "why"),
    [
        (lzma.compress(A), "it is compressed by xz"),
        (b"\x04\x22\x4d\x18xx", "it is cut off"),
        (b"7z\xbc\xaf\x27\x1cxx", "it is a 7z archive"),
        (b"Obj\x01xx", "it is an Avro file"),
        (A.decode().encode("utf-16"), "it is utf-16 text"),
    ],
)
def test_an_unreadable_file_is_named_for_what_it_is(
    tmp_path: Path, content: bytes, why: str
) -> None:
    """One finding with what to do, instead of thousands of lines that are no JSON; also in an
    archive, whose other files are read.
    """
    path = written(tmp_path, {"x.zip": zipped({"a": content, "b": A})}) / "x.zip"
    with open_source([str(path)]) as source, closing(source.files()) as files:
        with pytest.raises(BrokenSource, match=why):
            list(source.blocks(next(files)))
        assert numbered(list(source.blocks(next(files)))) == [(1, IN_A[0]), (2, IN_A[1])]


def test_names_that_arent_utf8_can_be_written_down(tmp_path: Path) -> None:
    """Old disks and archives have such names: checkpoints, messages and logs have to hold them."""
    name = os.fsdecode(b"caf\xe9.json")
    written(tmp_path, {name: A, "x.tar": tarred({name: B})})
    with open_source([str(tmp_path)]) as source:
        records = {}
        for file in source.files():
            path = file.name.removeprefix(f"{tmp_path}/").encode()
            records[path] = numbered(list(source.blocks(file)))[0][1]
        assert records == {rb"caf\udce9.json": IN_A[0], rb"x.tar!caf\udce9.json": IN_B[0]}


def test_a_zip_whose_names_arent_in_the_encoding_that_it_says_is_broken(tmp_path: Path) -> None:
    """It ends this file, not the import."""
    content = zipped({"\u00e9": A}).replace("\u00e9".encode(), b"\xff\xfe")
    path = written(tmp_path, {"x.zip": content}) / "x.zip"
    with open_source([str(path)]) as source:
        files = source.files()
        file = next(files)
        with pytest.raises(BrokenSource, match="damaged"):
            list(source.blocks(file))


def test_names_with_digits_of_any_kind_and_number_have_an_order(tmp_path: Path) -> None:
    """Digits of other scripts are letters here, and no number is too long."""
    long = "9" * 5000
    path = (
        written(
            tmp_path, {"x.zip": zipped({long: A, "\u0663": A, "a": A, "10": A, "009": A, "9": A})}
        )
        / "x.zip"
    )
    with open_source([str(path)]) as source:
        assert [file.name.partition("!")[2] for file in source.files()] == [
            "009",
            "9",
            "10",
            long,
            "a",
            "\u0663",
        ]


def test_what_is_put_on_disk_is_bounded(tmp_path: Path) -> None:
    """An archive in an archive that unpacks to more than the user allows is refused."""
    (tmp_path / "x").write_bytes(zipped({"in.zip": zipped({"a": MANY}, zipfile.ZIP_STORED)}))
    _, (error,) = read_all([tmp_path], ReadOptions(max_spool=5000))
    assert "more than 5000 bytes on disk" in error.reason


def test_framing_follows_name_and_content_or_the_user(tmp_path: Path) -> None:
    """CSV by its name, without that of the compression; arrays by their bracket; all
    else is lines.
    """
    written(
        tmp_path,
        {
            "a.csv.gz": gzip.compress(b"n\n1\n"),
            "b.tsv": b"n\tm\n1\t2\n",
            "c": b'[{"n":1}]',
            "d": b'{\n "n":1}\n',
            "e": b"n\n1\n",
        },
    )
    contents, _ = read_all([tmp_path])
    one = [b'{"n":"1"}']
    assert contents == {
        "a.csv.gz": one,
        "b.tsv": [b'{"n":"1","m":"2"}'],
        "c": [b'{"n":1}'],
        "d": [b'{\n "n":1}'],
        "e": [b"n", b"1"],
    }
    assert read_all([tmp_path / "e"], ReadOptions(framing=Framing.CSV))[0] == {"e": one}
    _, (error,) = read_all([tmp_path / "e"], ReadOptions(framing=Framing.PARQUET))
    assert error.reason == "it isn't a Parquet file"


def test_parquet_is_read_from_disk_and_out_of_archives(tmp_path: Path) -> None:
    """Inside an archive it is put on disk first."""
    import pyarrow as pa  # noqa: PLC0415 -- slow to import
    from pyarrow import parquet  # noqa: PLC0415

    parquet.write_table(pa.table({"n": [1, 2]}), tmp_path / "a")
    written(tmp_path, {"b": zipped({"a": (tmp_path / "a").read_bytes()})})
    assert read_all([tmp_path]) == ({"a": IN_A, "b!a": IN_A}, [])


def test_a_reading_can_be_given_up(tmp_path: Path) -> None:
    """Its files are closed, also those on disk inside archives."""
    (tmp_path / "x").write_bytes(zipped({"in.zip": zipped({"a": MANY})}))
    before = opened()
    with (
        open_source([str(tmp_path)], ReadOptions(block_bytes=100)) as source,
        closing(source.files()) as files,
        source.blocks(next(files)) as reading,
    ):
        next(reading)
        assert opened() - before
    assert opened() == before


def opened() -> set[str]:
    """The files that this process has open."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_a_file_that_is_passed_over_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """It never continues with bytes of the next one."""
    written(tmp_path, {"x": MANY, "y": A})
    with open_source([str(tmp_path)], ReadOptions(block_bytes=100)) as source:
        files = source.files()
        reading = source.blocks(next(files))
        next(reading)
        next(files)
        with pytest.raises(RuntimeError, match="the next file was asked for"):
            next(reading)
        list(files)


@settings(max_examples=25, deadline=None)
@given(
    text=st.text('{}"n:1\n\r', max_size=200),
    sizes=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_blocks_do_not_change_records(
    tmp_path_factory: pytest.TempPathFactory, text: str, sizes: tuple[int, int]
) -> None:
    """Two ways of cutting a file into blocks give the same records, lines and digest."""
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_text(text, newline="")
    results = []
    for size in sizes:
        with open_source(
            [str(path)], ReadOptions(block_bytes=size, framing=Framing.LINES)
        ) as source:
            for file in source.files():
                reading = source.blocks(file)
                records = numbered(list(reading))
                results.append((records, reading.digest_at(len(records))))
    assert results[0] == results[1]


def test_broken_sources_have_a_code() -> None:
    """For machines."""
    assert BrokenSource("x", 5, "why").code == "broken_source"


def test_the_digest_of_plain_lines_is_that_of_the_file(tmp_path: Path) -> None:
    """As `zcat FILE | sha256sum` says it, whatever the compression."""
    path = written(tmp_path, {"a.jsonl.gz": gzip.compress(MANY)}) / "a.jsonl.gz"
    with open_source([str(path)], ReadOptions(block_bytes=999)) as source:
        files = source.files()
        file = next(files)
        reading = source.blocks(file)
        records = sum(len(block.records) for block in reading)
        assert reading.digest_at(records) == hashlib.sha256(MANY).hexdigest()
