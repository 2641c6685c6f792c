"""One import as a person at a terminal sees it: preflight, question, progress, signals, result."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from typer.testing import CliRunner

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_run import (
    RATE_WINDOW,
    ImportDisplay,
    code_of,
    stopped_by_signals,
    termination_interrupts,
)
from forwarder.cli.imports import app
from forwarder.cli.options import TextOutput
from forwarder.cli.tables import EVERY
from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.core.stop_requests import STOP_SIGNALS
from forwarder.daemon.imports import KeyUnverified, UpstreamRefuses
from forwarder.sources.files.record_blocks import BrokenSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from tests.cli.importing import (
    ACCEPTED,
    BROKEN,
    KEY,
    PROGRESS,
    STOPPING,
    URL,
    FakeImport,
    checkpoint,
    flow,
    refusal,
    request,
)
from tests.sources.imports.preflights import report
from tests.sources.imports.samples.manifests import manifest
from tests.support.waiting import eventually


@pytest.fixture(scope="module", autouse=True)
def libuvs_own_pipe() -> None:
    """Its first loop opens one for signals, which stays as long as the process."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
def opened(tmp_path: Path) -> FakeImport:
    """An import that would do well."""
    return FakeImport(tmp_path)


def without_refusals(opened: FakeImport) -> None:
    """Let it bring everything."""
    opened.result.books.refused.clear()


def test_a_first_run_looks_before_it_sends(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key first, then the source, then the events; at the end the report
    and where more of it is.
    """
    without_refusals(opened)
    assert flow(opened) == ExitCode.DONE
    assert opened.asked == ["check_key", "preflight", "run", "close"]
    shown = capsys.readouterr()
    assert "Nothing stops this import." in shown.out
    assert "events delivered in 3h" in shown.out
    assert f"Sending to {URL}, project phc_…good, at most 2,000 events a second" in shown.err
    for name in ("preflight.json", "report.html", "manifest.json"):
        assert str(opened.state / name) in shown.err
    assert KEY not in shown.out + shown.err
    assert json.loads((opened.state / "preflight.json").read_bytes())["stopped_by"] == []


def test_refused_records_are_exit_code_1(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said where they are."""
    assert flow(opened) == ExitCode.NO
    assert f"forwarder dead-letters ls --path {opened.state}" in capsys.readouterr().err


def test_an_unknown_key_ends_it_before_anything_is_read(opened: FakeImport) -> None:
    """The caller makes exit code 3 of it."""
    opened.refuses = refusal()
    with pytest.raises(UpstreamRefuses):
        flow(opened)
    assert opened.asked == ["check_key", "close"]


def test_a_dry_run_verifies_no_key(opened: FakeImport) -> None:
    """`upstream.verify_keys: false` is for services that can't tell."""
    settings = Settings.parse({"upstream": {"url": URL, "verify_keys": False}})
    flow(opened, request(settings=settings))
    assert "check_key" not in opened.asked


@pytest.mark.parametrize("accepted", [frozenset(), ACCEPTED - {"illegal-merges"}])
def test_findings_that_stop_it_stop_it(
    opened: FakeImport, capsys: pytest.CaptureFixture[str], accepted: frozenset[str]
) -> None:
    """Nothing is sent while one of them isn't accepted; what was found is kept, and how to continue
    is said.
    """
    opened.preflight_report = report(STOPPING)
    assert flow(opened, request(accepted=accepted)) == ExitCode.NO
    assert opened.asked == ["check_key", "preflight", "close"]
    assert "--accept illegal-merges" in capsys.readouterr().out
    assert (
        "illegal-merges" in json.loads((opened.state / "preflight.json").read_bytes())["stopped_by"]
    )


def test_findings_that_are_accepted_do_not(opened: FakeImport) -> None:
    """All of them, by code."""
    opened.preflight_report = report(STOPPING)
    flow(opened, request(accepted=ACCEPTED))
    assert "run" in opened.asked


@pytest.mark.parametrize(("stops", "code"), [(False, ExitCode.DONE), (True, ExitCode.NO)])
def test_a_dry_run_sends_nothing(
    opened: FakeImport, capsys: pytest.CaptureFixture[str], *, stops: bool, code: int
) -> None:
    """Its exit code says whether the import would start."""
    if stops:
        opened.preflight_report = report(STOPPING)
    assert flow(opened, dry_run=True) == code
    assert opened.asked == ["check_key", "preflight", "close"]
    assert ("Nothing was sent" in capsys.readouterr().err) is not stops


@pytest.mark.parametrize("lacks", [{"api_key": ""}, {"settings": Settings()}])
def test_a_dry_run_needs_neither_key_nor_service(
    opened: FakeImport, capsys: pytest.CaptureFixture[str], lacks: dict[str, object]
) -> None:
    """What isn't checked is said in the report."""
    assert flow(opened, request(**lacks), dry_run=True) == ExitCode.DONE
    assert opened.asked == ["preflight", "close"]
    words = (
        "whether the service knows the project key: that requires --upstream URL and --api-key KEY"
    )
    assert f"not checked: {words}" in capsys.readouterr().out
    assert json.loads((opened.state / "preflight.json").read_bytes())["report"]["unchecked"] == [
        words
    ]


def test_a_dry_run_needs_no_service_that_answers(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is known to be wrong ends it; a real run ends with the same error."""
    opened.refuses = KeyUnverified(
        "https://service.example.com can't be reached: no route", hint="Check the address."
    )
    assert flow(opened, dry_run=True) == ExitCode.DONE
    assert opened.asked == ["check_key", "preflight", "close"]
    assert (
        "not checked: whether the service knows the project key: https://service.example.com "
        "can't be"
    ) in capsys.readouterr().out
    with pytest.raises(KeyUnverified):
        flow(opened)
    opened.refuses = refusal()
    with pytest.raises(UpstreamRefuses):
        flow(opened, dry_run=True)


def test_a_look_as_json_is_one_document(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is on standard output."""
    assert flow(opened, dry_run=True, output=TextOutput.JSON) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["report"]["records"] == 5


def test_an_import_as_json_is_one_document(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report; the look before it is in its file."""
    flow(opened, output=TextOutput.JSON)
    assert json.loads(capsys.readouterr().out)["job"]["format"] == "mixpanel"


def test_a_later_run_resumes(opened: FakeImport, capsys: pytest.CaptureFixture[str]) -> None:
    """Without another look, and without a question; it says from where."""
    opened.saved = checkpoint()
    flow(opened)
    assert opened.asked == ["check_key", "run", "close"]
    assert "resumes from its checkpoint of 2025-06-15T15:16:40Z" in capsys.readouterr().err


def test_a_complete_one_sends_nothing(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and shows what came of it once more; no one needs to be asked about a key."""
    opened.saved = checkpoint(complete=True)
    opened.is_complete = True
    assert flow(opened) == ExitCode.DONE
    assert opened.asked == ["close"]
    shown = capsys.readouterr()
    assert "This import is complete" in shown.err
    assert "complete" in shown.out


def test_dead_letters_that_are_marked_are_sent_by_the_same_command(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source is complete then, and the import isn't."""
    opened.saved = checkpoint(complete=True)
    flow(opened)
    assert opened.asked == ["check_key", "run", "close"]
    assert "now the marked dead letters" in capsys.readouterr().err


def test_a_look_at_a_complete_one_is_a_look(opened: FakeImport) -> None:
    """`--dry-run` asks about the source, whatever became of it."""
    opened.saved = checkpoint(complete=True)
    opened.is_complete = True
    assert flow(opened, dry_run=True) == ExitCode.DONE
    assert opened.asked == ["check_key", "preflight", "close"]


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """Someone sits there and types this."""
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("n\n", False), ("", False)])
def test_who_sits_there_is_asked(
    opened: FakeImport,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    *,
    runs: bool,
) -> None:
    """Before the first event; how many, to where, and that it is for good."""
    at_a_terminal(monkeypatch, answer)
    assert flow(opened, yes=False) == ExitCode.NO
    assert ("run" in opened.asked) is runs
    assert (
        f"Send 5 events to {URL}, project phc_…good? This can't be undone. [y/N] "
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("terminals", [set(), {"stdin"}, {"stderr"}])
@pytest.mark.parametrize("earlier", [None, checkpoint(), checkpoint(complete=True)])
def test_without_a_terminal_it_sends_only_with_yes(
    opened: FakeImport,
    monkeypatch: pytest.MonkeyPatch,
    earlier: ImportCheckpoint | None,
    terminals: set[str],
) -> None:
    """A first run and one that resumes alike; the source isn't read, and the error
    says what to do.
    """
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda name=name: name in terminals)
    opened.saved = earlier
    with pytest.raises(ConfigurationError, match="isn't confirmed") as raised:
        flow(opened, yes=False)
    assert "--yes" in raised.value.hint
    assert opened.asked == ["close"]
    flow(opened)
    assert "run" in opened.asked


def test_without_a_terminal_a_look_needs_no_yes(opened: FakeImport) -> None:
    """Nor does a command that finds nothing left to send."""
    assert flow(opened, yes=False, dry_run=True) == ExitCode.DONE
    opened.saved = checkpoint(complete=True)
    opened.is_complete = True
    assert flow(opened, yes=False) == ExitCode.DONE


def test_who_said_yes_is_not_asked(
    opened: FakeImport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--yes`."""
    at_a_terminal(monkeypatch, "")
    flow(opened, yes=True)
    assert "run" in opened.asked
    assert "[y/N]" not in capsys.readouterr().err


def test_broken_files_are_reported_and_exit_code_1(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the look, and after all else was brought."""
    without_refusals(opened)
    opened.broken = (BROKEN,)
    assert flow(opened, dry_run=True) == ExitCode.NO
    assert flow(opened) == ExitCode.NO
    shown = capsys.readouterr().err
    assert shown.count("export/0.json.gz: can't be read after 17 bytes") == 3
    assert shown.count("import the new file by itself") == 3


def test_names_of_files_do_not_move_the_cursor(
    opened: FakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come from archives."""
    opened.broken = (BrokenSource("a.zip!\x1b[2J", 0, "it is cut off"),)
    flow(opened, dry_run=True)
    assert "a.zip!\\u001b[2J: can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_it_end(
    opened: FakeImport, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """What is in flight is settled, the report says that it isn't complete, and the exit code is
    that of an interruption.
    """
    opened.result = manifest(2, ended=False)
    opened.waits = lambda: os.kill(os.getpid(), number)
    assert flow(opened) == ExitCode.INTERRUPTED
    assert opened.asked == ["check_key", "preflight", "run", "stop", "close"]
    shown = capsys.readouterr()
    assert f"{number.name}: reading stops" in shown.err
    assert "not complete: the same command resumes it" in shown.out


def test_exit_codes() -> None:
    """Broken files and refused records are a no; records that were repaired since aren't."""
    done = manifest(2)
    part = manifest(2, ended=False)
    assert (code_of(part, ()), code_of(part, (BROKEN,)), code_of(done, (BROKEN,))) == (
        ExitCode.INTERRUPTED,
        ExitCode.NO,
        ExitCode.NO,
    )
    assert code_of(done, ()) == ExitCode.NO
    done.books.repaired = sum(done.books.refused.values())
    assert code_of(done, ()) == ExitCode.DONE


class Watch:
    """A clock to be turned."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Events of all runs, the rate of this one, the time left, and the books of the records."""
    watch = Watch()
    with closing(ImportDisplay(1000, 200, now=watch)) as progress:
        progress.sent(PROGRESS)
        watch.now += EVERY
        progress.sent(replace(PROGRESS, events=100, read=1300, delivered=1200, refused=20))
        watch.now += EVERY / 2
        progress.sent(replace(PROGRESS, events=150))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "importing: 300 of 1,000 events, 20 a second, 35s left; "
        "1,300 records read: 1,200 delivered, 20 refused, 1 left out, 1 repeat; 3 events in "
        "flight\n"
    )


def test_why_nothing_is_sent_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """And no time left is made up."""
    watch = Watch()
    with closing(ImportDisplay(1000, 0, now=watch)) as progress:
        watch.now += EVERY
        progress.sent(replace(PROGRESS, events=0, waiting="quiet hours until 06:00"))
    assert "importing: 0 of 1,000 events, 0 a second; " in (line := capsys.readouterr().err)
    assert line.endswith("; waiting: quiet hours until 06:00\n")


def test_a_total_that_is_not_known_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """As where the folder's look is gone; and one that was too small grows."""
    watch = Watch()
    with closing(ImportDisplay(None, 0, now=watch)) as progress:
        watch.now += EVERY
        progress.sent(replace(PROGRESS, events=50))
    with closing(ImportDisplay(10, 0, now=watch)) as progress:
        watch.now += EVERY
        progress.sent(replace(PROGRESS, events=50))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "importing: 50 events, 10 a second",
        "importing: 50 of 50 events, 10 a second",
    ]


def test_the_rate_is_that_of_lately() -> None:
    """Hours of quiet don't make what comes after them slow."""
    watch = Watch()
    speed = ImportDisplay(now=watch)
    watch.now += 3600
    assert speed.rate(36_000) == 10
    for second in range(1, int(RATE_WINDOW) + 5):
        watch.now += 1
        rate = speed.rate(36_000 + second * 2000)
    assert rate == pytest.approx(2000)


def test_what_slows_it_down_stands_beside_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """It isn't waiting then."""
    watch = Watch()
    with closing(ImportDisplay(None, 0, now=watch)) as progress:
        watch.now += EVERY
        progress.sent(replace(PROGRESS, events=50, slowed="slowed by --rate"))
    assert capsys.readouterr().err.startswith(
        "importing: 50 events, 10 a second (slowed by --rate); 10 records read"
    )


def test_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same figures; the cursor is there again after it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with closing(ImportDisplay(1000, 0)) as progress:
        progress.sent(replace(PROGRESS, waiting="quiet hours"))
        progress.sent(replace(PROGRESS, events=9))
    with closing(ImportDisplay()) as looking:
        looking.analyzed(10, 2048)
    shown = capsys.readouterr().err
    reported = (
        "7 of 1,000 events",
        "9 of 1,000 events",
        "10 records read: 7 delivered, 1 refused",
        "waiting: quiet hours",
        "the source: 10 records, 2.0 KiB",
    )
    assert [text for text in reported if text not in shown] == []


def test_preflight_progress_is_printed_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However often it is reported, a line comes every few seconds."""
    watch = Watch()
    with closing(ImportDisplay(now=watch)) as progress:
        progress.analyzed(100, 1000)
        watch.now += EVERY
        progress.analyzed(1000, 5 << 20)
        progress.analyzed(1001, 5 << 20)
    assert capsys.readouterr().err == "analyzing the source: 1,000 records, 5.0 MiB, 200 a second\n"


class AskedClock:
    """A time that stands still, and how often it was asked for."""

    def __init__(self) -> None:
        self.time = 0.0
        self.asked = 0

    def __call__(self) -> float:
        """Say it."""
        self.asked += 1
        return self.time


@pytest.fixture
def kept_handlers() -> Iterator[None]:
    """What a process that is about to exit does to its signals is undone."""
    before = [(number, signal.getsignal(number)) for number in STOP_SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_handlers")
async def test_the_second_signal_ends_it_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The first one asks it to stop; what comes with it changes nothing; after the second the
    terminal is tidied up first.
    """
    heard: list[object] = []
    clock = AskedClock()
    with stopped_by_signals(
        asyncio.get_running_loop(),
        lambda: heard.append("stop"),
        lambda: heard.append("tidy"),
        heard.append,
        clock,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: heard == ["stop"])
        os.kill(os.getpid(), signal.SIGINT)
        await eventually(lambda: clock.asked == 2)
        assert heard == ["stop"]
        clock.time = 1.0
        os.kill(os.getpid(), signal.SIGINT)
        await eventually(lambda: heard == ["stop", "tidy", ExitCode.INTERRUPTED])
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("SIGTERM: reading stops")
    assert said[1].startswith("Stopped at once")


def test_an_interruption_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, and words instead of a traceback."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forwarder.cli.import_request.request_of", interrupt)
    ended = CliRunner().invoke(app, ["native", "-"])
    assert ended.exit_code == ExitCode.INTERRUPTED
    assert ended.stderr.startswith("Interrupted. Nothing is in flight")


def test_before_it_sends_sigterm_is_what_ctrl_c_is() -> None:
    """And afterwards what it was."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
