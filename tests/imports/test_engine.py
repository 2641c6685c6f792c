"""A run of an import against a scripted service: what arrives, what is kept, and where the next run goes on."""

from __future__ import annotations

import asyncio
import gzip
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.imports import engine
from forwarder.imports.counts import SourceOrderCounts
from forwarder.sources.files.records import SourceChanged
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.day_batches import BatchLimits
from forwarder.sources.imports.pacing import ImportPace, QuietHours, SharedLine
from tests.imports.imports import OK, Answer, Service, Setting, by_file, events_in, line, uuid_of, write
from tests.support.clock import FakeClock

BUSY = Reply(503, retry_after=1.0, body=b"later")


def three_files(folder: Path, each: int = 20, days: int = 2) -> list[Path]:
    """Three files of events of some persons on a few days."""
    return [
        write(
            folder / f"{name}.jsonl",
            [line(at * each + n, day=n * days // each, person=f"p{n % 7}") for n in range(each)],
        )
        for at, name in enumerate("abc")
    ]


def refusing(*numbers: int, status: int = 400) -> Callable[[Batch], Reply]:
    """A service that refuses requests with one of these events in it."""
    return lambda batch: Reply(status, body=b"no") if {each["properties"]["n"] for each in events_in(batch)} & set(numbers) else OK


def times(count: int, answer: Reply | None, then: Answer = lambda _: OK) -> Answer:
    """The same answer so many times, and then another."""
    left = count

    def say(batch: Batch) -> Reply | None:
        nonlocal left
        left -= 1
        return answer if left >= 0 else then(batch)

    return say


def after(requests: int, do: Callable[[Setting], None]) -> Callable[[Setting], Awaitable[None]]:
    """Do something once so many requests were sent."""
    done = False

    async def look(setting: Setting) -> None:
        nonlocal done
        if not done and len(setting.service.sent) >= requests:
            done = True
            do(setting)

    return look


def assert_all_there(setting: Setting, count: int) -> None:
    """Each of so many events was taken or is a dead letter, and the books say so."""
    saved = setting.saved
    assert saved is not None
    assert saved.complete, saved
    assert saved.books.difference == 0
    assert saved.books.read == count
    delivered = set(setting.service.uuids)
    assert len(delivered) == saved.books.delivered
    assert len(setting.letters.kept) == sum(saved.books.refused.values())
    assert sum(day.delivered for day in saved.totals.days.values()) == len(delivered)


async def test_all_of_a_source_arrives_once(tmp_path: Path) -> None:
    """In its order, a day a batch; and the checkpoint says that nothing is left."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    await setting.run()
    assert_all_there(setting, 60)
    assert sorted(setting.service.uuids) == sorted(uuid_of(n) for n in range(60))
    assert max(map(len, setting.service.sent)) <= 5
    for batch in setting.service.sent:
        assert len({msgspec.json.decode(event)["timestamp"][:10] for event in batch}) == 1
    assert setting.engine.progress().in_flight == 0


async def test_a_person_s_events_arrive_in_the_order_of_the_source(tmp_path: Path) -> None:
    """Also where a service is slow with some of them, and several requests are under way."""
    setting = Setting(three_files(tmp_path, each=60), tmp_path / "state", concurrency=4)
    setting.service.answer = lambda _: BUSY if len(setting.service.sent) % 5 == 2 else OK
    await setting.run()
    assert_all_there(setting, 180)
    seen: dict[str, list[int]] = {}
    for event in map(msgspec.json.decode, setting.service.taken):
        seen.setdefault(event["distinct_id"], []).append(event["properties"]["n"])
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_a_merge_comes_after_what_its_other_person_did_before(tmp_path: Path) -> None:
    """An `$identify` names two persons: it overtakes events of neither, and isn't overtaken by theirs."""
    lines = [line(n, person="anonymous-device") for n in range(5)]
    lines.append(line(5, person="ann", name="$identify", anonymous="anonymous-device").replace(b'"anonymous"', b'"$anon_distinct_id"'))
    lines += [line(n, person="other") for n in range(6, 10)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", concurrency=4)
    setting.service.answer = times(3, BUSY)
    await setting.run()
    order = [event["properties"]["n"] for event in map(msgspec.json.decode, setting.service.taken)]
    assert order.index(5) > max(order.index(n) for n in range(5))


async def test_one_refused_event_is_found_and_kept_with_its_place(tmp_path: Path) -> None:
    """The others of its batch arrive."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(refusing(23)))
    await setting.run()
    assert_all_there(setting, 60)
    assert setting.letters.lines == {f"{tmp_path}/b.jsonl:4": "refused"}
    assert uuid_of(23) not in setting.service.uuids
    saved = setting.saved
    assert saved is not None
    assert saved.books.refused == {"refused": 1}
    assert saved.totals.examples["refused"][0].line == 4


async def test_events_that_are_too_large_for_the_service_become_dead_letters(tmp_path: Path) -> None:
    """A service that answers 413 gets smaller and smaller requests, and then no more of these events, since it accepts others."""
    setting = Setting(three_files(tmp_path, each=4), tmp_path / "state", service=Service(refusing(0, 3, 11, status=413)))
    await setting.run()
    assert_all_there(setting, 12)
    assert len(setting.letters.kept) == 3


async def test_a_service_that_answers_413_to_everything_is_waited_for(tmp_path: Path) -> None:
    """That no event fits is more likely a proxy's word: nothing becomes a dead letter, and in the end everything arrives."""
    setting = Setting(three_files(tmp_path, each=4), tmp_path / "state", service=Service(times(12, Reply(413))))
    await setting.run()
    assert_all_there(setting, 12)
    assert not setting.letters.kept
    assert any("refuses" in told.waiting for told in setting.told)


async def test_a_service_that_refuses_everything_is_waited_for(tmp_path: Path) -> None:
    """Nothing is buried on the word of what may be a proxy; then all goes on, and not one event at a time."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(times(12, Reply(400, body=b"a firewall"))))
    await setting.run()
    assert_all_there(setting, 60)
    assert not setting.letters.kept
    assert any("refuses" in told.waiting for told in setting.told)
    assert len(setting.service.sent) < 12 + 25


async def test_a_refused_event_that_is_the_last_of_all_is_found_too(tmp_path: Path) -> None:
    """No other event is left to show that the service takes any: one that it took is sent once more, the same."""
    lines = [line(0), line(1), line(2, day=1)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", service=Service(refusing(2)))
    setting.service.answer = lambda batch: BUSY if len(setting.service.sent) == 1 else refusing(2)(batch)
    await setting.run(seconds=60)
    assert_all_there(setting, 3)
    assert setting.letters.lines == {f"{tmp_path}/a.jsonl:3": "refused"}


async def test_a_batch_that_begins_with_a_refused_event_leaves_one_that_was_taken_too(tmp_path: Path) -> None:
    """For a later run: a replay of the refused event may be all that it has to send."""
    setting = Setting([write(tmp_path / "a.jsonl", [line(0), line(1), line(2)])], tmp_path / "state", service=Service(refusing(0)))
    await setting.run(seconds=60)
    assert setting.letters.lines == {f"{tmp_path}/a.jsonl:1": "refused"}
    assert setting.saved is not None
    assert msgspec.json.decode(setting.saved.witness)["uuid"] == uuid_of(2)


async def test_a_refused_event_that_is_all_that_is_left_is_found_by_a_later_run(tmp_path: Path) -> None:
    """Which has nothing else to send: the checkpoint remembers an event that was taken."""
    lines = [line(n, person="ann") for n in range(6)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state")
    setting.service.answer = lambda batch: None if refusing(5)(batch).status == 400 else OK
    await setting.run(after(2, lambda it: it.engine.stop()))
    setting.service.answer = refusing(5)
    await setting.run(seconds=60)
    assert_all_there(setting, 6)
    assert len(setting.letters.kept) == 1


async def test_an_outage_of_minutes_is_waited_for(tmp_path: Path) -> None:
    """With growing pauses; progress says why nothing goes."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(times(12, Reply(None, error="connection refused"))))
    await setting.run()
    assert_all_there(setting, 60)
    assert setting.clock.monotonic() - 1000 > 20
    assert any("connection refused" in told.waiting for told in setting.told)


async def test_a_key_that_is_refused_in_mid_run_halts_until_it_is_taken(tmp_path: Path) -> None:
    """401: the lane is probed, and nothing is lost."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    unknown = times(4, Reply(401, body=b"unknown key"))
    setting.service.answer = lambda batch: unknown(batch) if len(setting.service.sent) > 3 else OK
    await setting.run()
    assert_all_there(setting, 60)
    assert any("unknown key" in told.waiting for told in setting.told)


async def test_bad_lines_are_dead_letters_before_they_count(tmp_path: Path) -> None:
    """With file and line, and the rest arrives."""
    lines = [line(n) for n in range(10)]
    lines[3], lines[7] = b'{"event":"cut', b"[]"
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state")
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.books.difference == 0
    assert len(set(setting.service.uuids)) == 8
    assert f"{tmp_path}/a.jsonl:4" in setting.letters.lines


async def test_a_broken_file_among_others_is_told_and_the_others_arrive(tmp_path: Path) -> None:
    """The import isn't complete. Where the same records come in a whole file, a run goes on after those that it had."""
    paths = three_files(tmp_path)
    whole = gzip.compress(paths[1].read_bytes())
    broken = tmp_path / "b.jsonl.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    setting = Setting([paths[0], broken, paths[2]], tmp_path / "state")
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert [error.file for error in setting.engine.broken] == [str(broken)]
    assert not saved.complete
    assert {uuid_of(n) for n in (*range(20), *range(40, 60))} <= set(setting.service.uuids)
    had = len(setting.service.taken)
    broken.write_bytes(whole)
    await setting.run()
    assert_all_there(setting, 60)
    assert len(setting.service.taken) == 60
    assert had < 60


async def test_each_batch_is_saved_when_it_is_settled(tmp_path: Path) -> None:
    """So a kill brings back what was in flight, and not what was settled since some second: here the fourth answer never comes."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", concurrency=1)
    setting.service.answer = times(3, OK, lambda _: None)
    saved: list[int] = []

    async def killed_with_the_fourth(it: Setting) -> None:
        if len(it.service.sent) == 4 and it.saved is not None and it.saved.books.read == 15:
            saved.append(it.saved.books.read)
            it.folder.dead = True
            it.engine.stop()

    await setting.run(killed_with_the_fourth, seconds=engine.STOP_SECONDS + 10)
    assert saved
    assert setting.saved is not None
    assert setting.saved.books.read == 15
    setting.service.answer = lambda _: OK
    await setting.run()
    assert len(setting.service.uuids) == len(set(setting.service.uuids)) == 60


async def test_stopped_it_ends_when_what_is_under_way_is_settled(tmp_path: Path) -> None:
    """Nothing new begins; the next run sends what is left, and nothing of what was settled."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", pace=ImportPace(10.0))
    await setting.run(after(3, lambda it: it.engine.stop()))
    first = len(setting.service.sent)
    assert first < 12
    assert setting.saved is not None
    assert setting.saved.books.delivered == len(setting.service.taken)
    await setting.run()
    assert_all_there(setting, 60)
    assert len(setting.service.uuids) == 60


async def test_stopped_it_doesn_t_begin_what_waits_for_its_turn(tmp_path: Path) -> None:
    """At a slow rate a window of events would take minutes; only requests that are under way are waited for."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", pace=ImportPace(1.0))
    began = setting.clock.monotonic()
    await setting.run(after(2, lambda it: it.engine.stop()))
    assert len(setting.service.sent) == 2
    assert setting.clock.monotonic() - began < 10


async def test_stopped_it_ends_soon_though_an_answer_never_comes(tmp_path: Path) -> None:
    """What was under way is sent again by the next run, the same bytes."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(lambda _: None))
    await setting.run(after(1, lambda it: it.engine.stop()), seconds=engine.STOP_SECONDS + 10)
    lost = setting.service.sent[0]
    setting.service.answer = lambda _: OK
    await setting.run()
    assert_all_there(setting, 60)
    assert lost in setting.service.sent[1:]


async def test_stopped_in_an_outage_it_ends_at_once(tmp_path: Path) -> None:
    """What waits to be sent again isn't on its way: the next run sends it."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(lambda _: Reply(None, error="connection refused")))
    began = setting.clock.monotonic()
    await setting.run(after(4, lambda it: it.engine.stop()), seconds=100)
    stopped = next(told for told in setting.told if told.waiting)
    assert "connection refused" in stopped.waiting
    assert setting.clock.monotonic() - began < 12
    setting.service.answer = lambda _: OK
    await setting.run()
    assert_all_there(setting, 60)


async def test_stopped_while_marked_letters_can_t_be_read_it_ends(tmp_path: Path) -> None:
    """All else is there by then, and saved."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    setting.replays.readable.clear()

    async def stop_at_the_end(it: Setting) -> None:
        if it.saved is not None and it.saved.complete:
            it.engine.stop()

    await setting.run(stop_at_the_end, seconds=100)
    assert_all_there(setting, 60)


async def test_stopped_before_it_began_it_leaves_a_checkpoint(tmp_path: Path) -> None:
    """A signal may come first."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    await setting.run(after(0, lambda it: it.engine.stop()))
    assert setting.saved is not None
    await setting.run()
    assert_all_there(setting, 60)


async def test_stopped_while_dead_letters_can_t_be_written_it_ends(tmp_path: Path) -> None:
    """It says why nothing could be saved; once there is room, nothing is missing."""
    paths = [write(tmp_path / "a.jsonl", [line(0), b"{", line(1)])]
    setting = Setting(paths, tmp_path / "state")
    setting.letters.blocked = "the disk is full"

    async def stop_when_told(it: Setting) -> None:
        if any(told.waiting == "the disk is full" for told in it.told) and it.clock.monotonic() > 1010:
            it.engine.stop()

    with pytest.raises(ConfigurationError, match="the disk is full"):
        await setting.run(stop_when_told, seconds=100)
    setting.letters.blocked = ""
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert (saved.books.delivered, len(setting.letters.kept)) == (2, 1)


async def test_a_refused_event_waits_for_room_among_the_dead_letters(tmp_path: Path) -> None:
    """It isn't dropped: its lane halts until there is room."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=Service(refusing(2)))
    setting.letters.blocked = "the disk is full"

    async def make_room(it: Setting) -> None:
        if it.clock.monotonic() > 1060:
            it.letters.blocked = ""

    await setting.run(make_room)
    assert_all_there(setting, 60)
    assert len(setting.letters.kept) == 1


async def test_a_state_folder_that_can_t_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending on without a checkpoint would send it all again after a kill. What was saved before is where the next run goes on."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", pace=ImportPace(5.0))
    saves = 0

    def full(*_: Any) -> None:
        nonlocal saves
        saves += 1
        if saves > 1:
            raise ConfigurationError("state can't be written: no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tests.imports.imports.Mortal.save", full)
        with pytest.raises(ConfigurationError, match="no space"):
            await setting.run()
    assert len(setting.service.taken) < 60
    await setting.run()
    assert {*setting.service.uuids} == {uuid_of(n) for n in range(60)}


async def test_a_rate_that_can_t_be_kept_ends_the_run(tmp_path: Path) -> None:
    """The file by which processes share it can't be written: nothing may be sent, and waiting would be for ever."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", pace=ImportPace(5.0, line=SharedLine(tmp_path / "gone" / "rate")))
    with pytest.raises(ConfigurationError, match=r"rate.*can't be used: No such file"):
        await setting.run(seconds=60)
    assert not setting.service.sent


async def test_a_mistake_in_settling_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't waited for what will never be settled."""

    def fail(*_: Any) -> None:
        raise ValueError("records 3 to 4 aren't open")

    monkeypatch.setattr(SourceOrderCounts, "settle", fail)
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    with pytest.raises(ValueError, match="aren't open"):
        await setting.run(seconds=60)


async def test_a_source_that_changed_in_mid_run_ends_it_and_what_arrived_is_saved(tmp_path: Path) -> None:
    """A file whose first records aren't those that were imported is told before anything of it is sent."""
    paths = three_files(tmp_path, each=60)
    setting = Setting(paths, tmp_path / "state")
    await setting.run(after(12, lambda it: it.engine.stop()))
    saved = setting.saved
    assert saved is not None
    assert saved.files[0].digested > 0
    other = [line(1000 + n) for n in range(60)]
    write(paths[0], other)
    sent = len(setting.service.sent)
    with pytest.raises(SourceChanged, match="aren't those that were imported"):
        await setting.run()
    assert len(setting.service.sent) == sent
    assert setting.saved is not None
    assert setting.saved.books == saved.books


@pytest.mark.parametrize("left", [0, 5])
async def test_a_file_with_fewer_records_than_were_imported_is_refused(tmp_path: Path, left: int) -> None:
    """Going on in it would leave out events."""
    paths = three_files(tmp_path)
    setting = Setting(paths, tmp_path / "state")
    await setting.run()
    kept = paths[1].read_bytes().splitlines()[:left]
    write(paths[1], kept)
    with pytest.raises(SourceChanged, match=r"b\.jsonl"):
        await setting.run()


async def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    """As one of an archive that changed in its middle."""
    paths = three_files(tmp_path)
    setting = Setting(paths, tmp_path / "state")
    await setting.run()
    setting.paths = paths[:2]
    with pytest.raises(SourceChanged, match=r"c\.jsonl: it no longer exists"):
        await setting.run()


async def test_a_limit_holds_over_runs(tmp_path: Path) -> None:
    """Also where it is reached in the middle of a block, and the run before ended in that block."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", filters=EventFilters(limit=27))
    await setting.run(after(4, lambda it: it.engine.stop()))
    await setting.run()
    assert len(set(setting.service.uuids)) == 27
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert saved.books.difference == 0
    await setting.run()
    assert len(setting.service.uuids) == 27


async def test_one_record_may_be_sent_left_out_refused_and_a_repeat(tmp_path: Path) -> None:
    """A batch body with events of every fate is one refused record; what is good of it arrives."""
    members = [line(0), line(0), line(1, name="not wanted"), b'{"event":"no id"}', line(2)]
    body = b'{"batch":[' + b",".join(members) + b"]}"
    filters = EventFilters(exclude_events=frozenset({"not wanted"}))
    setting = Setting([write(tmp_path / "a.jsonl", [body, line(3)])], tmp_path / "state", filters=filters)
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.books.read == 2
    assert saved.books.delivered == 1
    assert sum(saved.books.refused.values()) == 1
    assert sorted(setting.service.uuids) == sorted(uuid_of(n) for n in (0, 2, 3))
    assert len(setting.letters.kept) == 1


async def test_nothing_is_sent_in_quiet_hours_also_nothing_again(tmp_path: Path) -> None:
    """They begin while a request is being retried; it waits for their end."""
    clock = FakeClock(turns=8)  # at midnight
    service = Service(lambda _: BUSY if clock.monotonic() < 1000 + 170 else OK, clock)
    pace = ImportPace(1e6, quiet=QuietHours.parse("00:01-00:02"))
    setting = Setting(three_files(tmp_path), tmp_path / "state", clock=clock, service=service, pace=pace)
    await setting.run()
    assert_all_there(setting, 60)
    assert service.times[0] < 1060
    assert not [at for at in service.times if 1060 <= at < 1119.99]
    assert [at for at in service.times if 1119.99 <= at < 1170]
    assert any("quiet hours" in told.waiting or "later" in told.waiting for told in setting.told)


async def test_a_429_slows_it_down(tmp_path: Path) -> None:
    """Nothing is sent before the time that it asks for."""
    clock = FakeClock(turns=8)
    service = Service(times(1, Reply(429, retry_after=120.0)), clock)
    setting = Setting(three_files(tmp_path), tmp_path / "state", clock=clock, service=service, pace=ImportPace(1000.0))
    await setting.run()
    assert_all_there(setting, 60)
    later = [at for at in service.times if at > service.times[0] + 5]
    assert min(later) >= service.times[0] + 119


async def test_a_rate_is_kept(tmp_path: Path) -> None:
    """Also over a run that is killed, because the line is a file."""
    clock = FakeClock(turns=8)
    pace = ImportPace(10.0, line=SharedLine(tmp_path / "rate"))
    setting = Setting(three_files(tmp_path), tmp_path / "state", clock=clock, service=Service(clock=clock), pace=pace)
    await setting.run(after(4, Setting.kill))
    setting.pace = ImportPace(10.0, line=SharedLine(tmp_path / "rate"))
    await setting.run()
    assert_all_there(setting, 60)
    events = [(at, len(batch)) for at, batch in zip(setting.service.times, setting.service.sent, strict=True)]
    for start, (began, _) in enumerate(events):
        sent = 0
        for at, count in events[start:]:
            assert sent <= 10.0 * (at - began) + 5 + 0.01
            sent += count


async def test_days_don_t_meet_where_batches_may_be_joined(tmp_path: Path) -> None:
    """Through a daemon, which may join what waits: events of two days are never under way together."""
    lines = [line(n, day=n % 3 if n < 30 else 3 + n // 30) for n in range(120)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", alone=True, concurrency=4)
    setting.service.answer = lambda _: BUSY if len(setting.service.sent) % 4 == 1 else OK
    await setting.run()
    assert_all_there(setting, 120)
    assert max(map(len, setting.service.days_at_once)) == 1


async def test_what_little_is_wanted_of_much_doesn_t_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that waits for more of its day leaves before too many records can't be counted because of it."""
    monkeypatch.setattr("forwarder.sources.imports.planning.MAX_WAIT_RECORDS", 50)
    lines = [line(n, name="rare" if n % 100 == 0 else "common") for n in range(1000)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", filters=EventFilters(events=frozenset({"rare"})))
    setting.limits = BatchLimits(1_000_000, 1000)
    most = 0

    async def look(it: Setting) -> None:
        nonlocal most
        most = max(most, it.engine.counts.pending)

    await setting.run(look)
    assert len(setting.service.uuids) == 10
    assert len(setting.service.sent) > 3
    assert most < 1000


async def test_reading_waits_while_too_much_can_t_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an outage the records that are left out are held too: reading stops."""
    monkeypatch.setattr(engine, "MAX_PENDING", 40)
    lines = [line(n, name="rare" if n == 0 else "common") for n in range(1000)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", filters=EventFilters(events=frozenset({"rare"})))
    setting.limits = BatchLimits(1_000_000, 1)
    setting.service.answer = times(6, BUSY)
    most = 0

    async def look(it: Setting) -> None:
        nonlocal most
        most = max(most, it.engine.counts.pending)

    await setting.run(look)
    assert len(setting.service.uuids) == 1
    assert most < 40 + 30


@dataclass(frozen=True)
class Fortune:
    """What happens to an import of 36 records."""

    script: list[int]
    """The first answers; 0: none."""
    bad: set[int]
    """Events that the service refuses."""
    garbage: set[int]
    """Records that are none."""
    persons: int
    days: list[int]
    kills: list[int]
    """After how many requests each run but the last is killed."""


FORTUNES = st.builds(
    Fortune,
    script=st.lists(st.sampled_from([200, 200, 200, 503, 500, 413, 429, 0, 302]), max_size=12),
    bad=st.sets(st.integers(1, 35), max_size=3),
    garbage=st.sets(st.integers(1, 35), max_size=3),
    persons=st.integers(1, 5),
    days=st.lists(st.integers(0, 2), min_size=36, max_size=36),
    kills=st.lists(st.integers(1, 8), max_size=3),
)


@given(FORTUNES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_answered_and_whenever_it_is_killed_each_event_settles(fortune: Fortune) -> None:
    """It arrives, or is a dead letter; what is sent again is the same; the books are right, and persons keep their order."""
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_survives(Path(name), fortune))


async def _survives(folder: Path, fortune: Fortune) -> None:
    bad, garbage, days, persons = fortune.bad, fortune.garbage, fortune.days, fortune.persons
    lines = [b'{"cut' if n in garbage else line(n, day=days[n], person=f"p{n % persons}") for n in range(36)]
    paths = [write(folder / "a.jsonl", lines[:20]), write(folder / "b.jsonl", lines[20:])]
    refuse, left = refusing(*bad), list(fortune.script)

    def answer(batch: Batch) -> Reply | None:
        status = left.pop(0) if left else 200
        if status == 0:
            return Reply(None, error="no whole answer within 30 s")
        if status == 200 or (status == 413 and sum(chunk.count for chunk in batch.chunks) == 1):  # or a good event is a dead letter
            return refuse(batch)
        return Reply(status, body=b"scripted")

    setting = Setting(paths, folder / "state", service=Service(answer), limits=BatchLimits(100_000, 4))
    for requests in fortune.kills:
        await setting.run(after(len(setting.service.sent) + requests, Setting.kill))
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.complete
    assert saved.books.difference == 0
    assert by_file(saved) == {"a.jsonl": 20, "b.jsonl": 16}
    lost = {uuid_of(n) for n in range(36) if n not in garbage} - set(setting.service.uuids)
    assert len(lost) + len(garbage) == sum(saved.books.refused.values())
    assert len(setting.letters.kept) == len(lost) + len(garbage)
    assert lost >= {uuid_of(n) for n in bad - garbage}
    same: dict[str, bytes] = {}
    for event in [event for batch in setting.service.sent for event in batch]:
        assert same.setdefault(msgspec.json.decode(event)["uuid"], event) == event
    for batch in setting.service.sent:
        assert len({msgspec.json.decode(event)["timestamp"][:10] for event in batch}) == 1
    first: dict[str, list[int]] = {}
    counted = Counter[str]()
    for event in map(msgspec.json.decode, setting.service.taken):
        counted[event["uuid"]] += 1
        if counted[event["uuid"]] == 1:
            first.setdefault(event["distinct_id"], []).append(event["properties"]["n"])
    assert all(numbers == sorted(numbers) for numbers in first.values()), first
    if not fortune.kills:
        assert sum(counted.values()) - len(counted) <= sum(1 for batch in setting.service.sent if len(batch) == 1)  # witnesses
