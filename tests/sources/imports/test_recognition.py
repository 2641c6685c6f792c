"""What files look like that don't fit the format, and what a preflight says of them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.conversion import EventFilters, FinishPolicy
from forwarder.sources.imports.format import ChosenFormat, ChosenMapping, FormatContext
from forwarder.sources.imports.formats.catalog import BY_NAME, FORMATS
from forwarder.sources.imports.preflight import HOPELESS, run_preflight
from forwarder.sources.imports.preflight_report import PreflightResult
from forwarder.sources.imports.recognition import SHOWN, looks_of, looks_of_text
from tests.golden_imports.exports import EXPORTS
from tests.sources.imports.preflights import TERMS
from tests.sources.imports.samples import mapped
from tests.support.cases import cases

UNKNOWN: Final = {"mapping": "", "mapping-csv": "csv"}
"""What the files of exports look like whose records are of no vendor."""
SEGMENT: Final = (
    b'{"type":"track","event":"e","userId":"u1","messageId":"m%d","timestamp":"2024-01-01T00:0'
    b'0:00Z"}\n'
)
NATIVE: Final = b'{"event":"e","distinct_id":"u1","timestamp":"2024-01-01T00:00:00Z"}\n'
TABLE: Final = b"id;kind;created at;user\n1;a;2024-01-01;u1\n2;b;2024-01-02;u2\n"
PAGE: Final = (
    b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>\n<body>\n"
    b"oops</body></html>\n"
)


def chosen(name: str, **options: Any) -> ChosenFormat:
    """A format as the command chooses it."""
    form = BY_NAME[name]
    given = FormatContext(mapping=ChosenMapping(mapped.RULES, mapped.mapping))
    made = form.options(**options)
    return ChosenFormat(name, {}, lambda _: form.make(made, given), form.times(made, given))


def preflight(
    format_name: str,
    *paths: Path,
    accepted: frozenset[str] = frozenset(),
    delimiter: str = ",",
    **options: Any,
) -> PreflightResult:
    """The analysis of files by a format."""
    reading = ReadOptions(framing=BY_NAME[format_name].framings[0], delimiter=delimiter)
    finish = FinishPolicy("oldest", geoip=False, job_id="j")
    with open_source([str(path) for path in paths], reading) as source:
        report, _ = run_preflight(
            source,
            chosen(format_name, **options),
            finish,
            filters=EventFilters(),
            terms=TERMS,
            progress=lambda *_: None,
            formats=FORMATS,
        )
    return PreflightResult.assess(report, accepted)


def page(result: PreflightResult) -> str:
    """As a person sees it."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(result.page(), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """The folder, with these files in it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@cases("name", EXPORTS)
def test_every_file_of_an_export_is_recognized_and_none_for_another(
    tmp_path: Path, name: str
) -> None:
    """Also packed, and with the records in it that no format accepts."""
    written(
        tmp_path,
        {
            file: content
            for file, content in EXPORTS[name](150).files.items()
            if not file.startswith("rules")
        },
    )
    with open_source([str(tmp_path)]) as source:
        names = [file.name for file in source.files()]
        looks = looks_of(source, names, FORMATS)
    assert {look.format for look in looks.values()} == {UNKNOWN.get(name, name)}
    assert len(looks) == len(names)


@cases("name", [export for export in EXPORTS if export not in UNKNOWN])
@cases(
    "wanted",
    [form.name for form in FORMATS if not (form.takes_mapping or form.mapping_file)],
)
def test_an_export_in_another_format_is_named_and_nothing_proposes_to_accept_it(
    tmp_path: Path, name: str, wanted: str
) -> None:
    """Whichever format was meant and whichever was typed: the page says which one to try."""
    written(tmp_path, EXPORTS[name](40).files)
    result = preflight(wanted, tmp_path)
    if wanted == name:
        assert not result.report.unfit_files
        assert not result.report.others
        return
    shown = page(result)
    if wanted == "posthog" and not result.report.unfit_files:
        # tables and events of any origin may be the service's
        codes = {finding.code for finding in result.findings}
        assert {"native": "other-format", "csv": "unknown-columns"}[name] in codes
        return
    assert f"forwarder import {name} …" in shown
    assert "--accept many-refused" not in shown


EXPORTED: Final = (
    b'{"uuid":"0f8fad5b-d9cb-469f-a165-70867728950e","event":"e","distinct_id":"u1",'
    b'"properties":{},"person_id":"p","team_id":1,"timestamp":"2024-01-01T00:00:00Z"}\n'
)


def test_the_services_own_export_is_named_although_it_fits(tmp_path: Path) -> None:
    """Its events are events as forwarder's own, and more: the page says which format knows that.
    Without them there is nothing to say.
    """
    written(tmp_path, {"a/1.jsonl": EXPORTED, "a/2.jsonl": EXPORTED, "b/3.jsonl": NATIVE})
    shown = page(preflight("native", tmp_path))
    assert "2 of 3 files look like the service's own export." in shown
    assert "`forwarder import posthog …`" in shown
    assert "look like" not in page(preflight("native", tmp_path / "b"))


def test_a_table_of_the_services_events_is_recognized(tmp_path: Path) -> None:
    """By its columns; and columns that the service doesn't have are named."""
    table = (
        b"uuid,event,distinct_id,properties,timestamp,elements_chain,plan\n"
        b"0f8fad5b-d9cb-469f-a165-70867728950e,e,u1,{},2024-01-01 00:00:00.000000,,pro\n"
    )
    written(tmp_path, {"query.csv": table})
    assert "`forwarder import posthog …`" in page(preflight("native", tmp_path))
    shown = page(preflight("posthog", tmp_path))
    assert "1 column would not be sent: 'plan'." in shown


@cases(
    ("content", "text", "todo"),
    [
        (b"", "an empty file", "Export it again"),
        (b" \n\n", "an empty file (only white space)", "Export it again"),
        (bytes(range(256)) * 4, "binary data", "Leave it out"),
        (PAGE, "an HTML page (502 Bad Gateway)", "Download it again"),
        (
            b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
            "XML",
            "Download it again",
        ),
        (
            b'{"error":"unauthorized"}',
            "JSON lines with the fields error",
            "`forwarder import mapping …`",
        ),
        (
            b'{"a":1,"items":[{"b":2},{"b":3}]}',
            "one JSON object whose field 'items' is a list",
            "jq -c '.[\"items\"][]'",
        ),
        (
            b"[%b,%b]" % (SEGMENT.strip(), SEGMENT.strip()),
            "Segment's logs, as a JSON array",
            "`forwarder import segment …`",
        ),
        (b"[\n  {}\n]", "a JSON array with the fields ", "`forwarder import mapping …`"),
        (
            json.dumps(json.loads(NATIVE), indent=2).encode(),
            "events as forwarder's own JSON lines",
            "`forwarder import native …`",
        ),
        (
            TABLE,
            "a table (CSV, separated by semicolons) with the columns id, kind, created at, user",
            "csv … --delimiter ';'`",
        ),
        (TABLE.replace(b";", b"\t"), "separated by tabs", r"csv … --delimiter '\t'`"),
        (
            NATIVE.replace(b'"e"', b'"caf\xe9"'),
            "not in UTF-8 but perhaps in cp1252",
            "--encoding cp1252",
        ),
        (NATIVE.decode().encode("utf-16-le"), "text in utf-16-le", "Add --encoding utf-16-le."),
        (
            b"a line\nand another, longer one\n",
            "text that is neither JSON nor a table",
            "Name the files of the export",
        ),
        (b"{not json\n", "text that begins like JSON and isn't", ""),
    ],
)
def test_what_a_text_looks_like(content: bytes, text: str, todo: str) -> None:
    """In words, and with what to do about it."""
    looks = looks_of_text(content, FORMATS)
    assert text in looks.text
    assert todo in looks.todo("amplitude")


def test_packed_files_are_recognized_by_what_is_in_them(tmp_path: Path) -> None:
    """In a zip of packed files; of Parquet its columns count; only the files that are
    asked about.
    """
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet  # noqa: PLC0415 -- an optional dependency

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a.json.gz", gzip.compress(SEGMENT % 1))
        opened.writestr("b.html", PAGE)
    written(tmp_path, {"x.zip": archive.getvalue()})
    parquet.write_table(pa.table({"event_type": ["e"], "user_id": ["u"]}), tmp_path / "y.parquet")
    parquet.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "z.parquet")
    with open_source([str(tmp_path)]) as source:
        names = [file.name for file in source.files()]
        texts = [look.text for look in looks_of(source, names, FORMATS).values()]
        assert texts == [
            "Segment's logs",
            "an HTML page (502 Bad Gateway)",
            "Amplitude's export, as Parquet",
            "Parquet with the columns a, b",
        ]
        assert list(looks_of(source, names[1:2], FORMATS)) == names[1:2]


def test_a_table_says_which_columns_it_has_and_which_option_names_one(tmp_path: Path) -> None:
    """With the nearest: the same name, what it is often called, or a similar one."""
    result = preflight("csv", written(tmp_path, {"a.csv": TABLE.replace(b";", b",")}))
    shown = page(result)
    assert (
        "there is no column event: name it by --event-column, perhaps --event-column kind; "
        "the columns are id, kind"
    ) in shown
    result = preflight("csv", tmp_path, event="kind")
    assert (
        "there is no column distinct_id: name it by --distinct-id-column, perhaps "
        "--distinct-id-column user;"
    ) in page(result)
    result = preflight("csv", tmp_path, event="kind", distinct_id="user")
    assert (
        "perhaps --timestamp-column 'created at'; the columns are id, kind, created at, user"
        in page(result)
    )
    semicolons = page(preflight("csv", written(tmp_path, {"a.csv": TABLE})))
    assert "Add --delimiter ';'." in semicolons
    given = page(preflight("csv", tmp_path, delimiter=";"))
    assert "perhaps --event-column kind" in given
    assert "Add --delimiter" not in given


def test_files_beside_the_export_can_be_left_out_or_accepted(tmp_path: Path) -> None:
    """They are distinguished from bad records among good ones, which count by themselves."""
    good = b"".join(NATIVE.replace(b"u1", b"u%d" % number) for number in range(300))
    files = {"a.jsonl": good + b"{bad\n", "b.html": PAGE, "c.json": b""}
    result = preflight("native", written(tmp_path, files))
    findings = {finding.code: finding for finding in result.findings}
    assert findings["unfit-files"].sentence == (
        "1 of 3 files is of another format than native: looks like an HTML page (502 Bad Gateway)."
    )
    assert findings["some-refused"].sentence == "1 of 301 records would be refused (0.3322 %)."
    assert "accept it: --accept unfit-files" in page(result)
    assert not preflight("native", tmp_path, accepted=frozenset({"unfit-files"})).stopping


def test_of_files_without_end_that_do_not_fit_only_the_beginning_is_read(tmp_path: Path) -> None:
    """Unless that was accepted: then all of it is analyzed."""
    written(tmp_path, {"a.jsonl": SEGMENT * (3 * HOPELESS)})
    result = preflight("mixpanel", tmp_path)
    assert HOPELESS <= result.report.records < 2 * HOPELESS
    assert f"0 of {result.report.records:,}" in page(result)


def test_of_many_files_some_are_shown(tmp_path: Path) -> None:
    """And the others counted."""
    written(tmp_path, {f"{number}.jsonl": SEGMENT for number in range(SHOWN + 3)})
    shown = page(preflight("mixpanel", tmp_path))
    assert "and 3 more files" in shown
    assert (
        f"No record of {SHOWN + 3} files fits the format mixpanel: looks like Segment's logs."
        in shown
    )
