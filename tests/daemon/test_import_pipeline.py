"""A run of an import against a scripted service: what arrives, what is kept, and when."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import NO_IDS, Chunk
from forwarder.core.outcome import Reply
from forwarder.delivery.batching import Batcher, BatchPolicy
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.imports import source
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.pacing import ImportPace, QuietHours, RateLine
from tests.daemon.imports import (
    BUSY,
    LANE,
    OK,
    ScriptedSink,
    Setting,
    after,
    assert_all_there,
    line,
    refusing,
    three_files,
    times,
    uuid_of,
    write,
)
from tests.support.clock import MIDNIGHT, BusyClock, FakeClock


async def test_all_of_a_source_arrives_once(tmp_path: Path) -> None:
    """In its order, a day a batch; and the checkpoint says that nothing is left."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    await setting.run()
    assert_all_there(setting, 60)
    assert sorted(setting.service.uuids) == sorted(uuid_of(n) for n in range(60))
    assert max(map(len, setting.service.sent)) <= 5
    for batch in setting.service.sent:
        assert len({msgspec.json.decode(event)["timestamp"][:10] for event in batch}) == 1
    assert setting.reported[-1].in_flight == 0


async def test_a_person_s_events_arrive_in_the_order_of_the_source(tmp_path: Path) -> None:
    """Also where a service is slow with some of them, and several requests are in progress."""
    setting = Setting(three_files(tmp_path, count=60), tmp_path / "state", concurrency=4)
    setting.service.answer = lambda _: BUSY if len(setting.service.sent) % 5 == 2 else OK
    await setting.run()
    assert_all_there(setting, 180)
    seen: dict[str, list[int]] = {}
    for event in map(msgspec.json.decode, setting.service.taken):
        seen.setdefault(event["distinct_id"], []).append(event["properties"]["n"])
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_a_merge_comes_after_what_its_other_person_did_before(tmp_path: Path) -> None:
    """An `$identify` names two persons: it overtakes events of neither, and
    isn't overtaken by theirs.
    """
    lines = [line(n, person="anonymous-device") for n in range(5)]
    lines.append(
        line(5, person="ann", name="$identify", anonymous="anonymous-device").replace(
            b'"anonymous"', b'"$anon_distinct_id"'
        )
    )
    lines += [line(n, person="other") for n in range(6, 10)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", concurrency=4)
    setting.service.answer = times(3, BUSY)
    await setting.run()
    order = [event["properties"]["n"] for event in map(msgspec.json.decode, setting.service.taken)]
    assert order.index(5) > max(order.index(n) for n in range(5))


async def test_one_refused_event_is_found_and_kept_with_its_place(tmp_path: Path) -> None:
    """The others of its batch arrive."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=ScriptedSink(refusing(23)))
    await setting.run()
    assert_all_there(setting, 60)
    assert setting.letters == [(f"{tmp_path}/b.jsonl:4", "refused")]
    assert uuid_of(23) not in setting.service.uuids
    saved = setting.saved
    assert saved is not None
    assert saved.books.refused == {"refused": 1}
    assert saved.totals.examples["refused"][0].line == 4


async def test_events_that_are_too_large_for_the_service_become_dead_letters(
    tmp_path: Path,
) -> None:
    """A service that answers 413 gets smaller and smaller requests, and then no more of these
    events, since it accepts others.
    """
    setting = Setting(
        three_files(tmp_path, count=4),
        tmp_path / "state",
        service=ScriptedSink(refusing(0, 3, 11, status=413)),
    )
    await setting.run()
    assert_all_there(setting, 12)
    assert len(setting.letters) == 3


async def test_a_service_that_answers_413_to_everything_is_waited_for(tmp_path: Path) -> None:
    """That no event fits is more likely a proxy's word: nothing becomes a dead letter, and in the
    end everything arrives.
    """
    setting = Setting(
        three_files(tmp_path, count=4),
        tmp_path / "state",
        service=ScriptedSink(times(12, Reply(413))),
    )
    await setting.run()
    assert_all_there(setting, 12)
    assert not setting.letters
    assert any("refuses" in reported.waiting for reported in setting.reported)


async def test_a_service_that_refuses_everything_is_waited_for(tmp_path: Path) -> None:
    """Nothing is buried on the word of what may be a proxy; then all continues, and not one event
    at a time.
    """
    setting = Setting(
        three_files(tmp_path),
        tmp_path / "state",
        service=ScriptedSink(times(12, Reply(400, body=b"a firewall"))),
    )
    await setting.run()
    assert_all_there(setting, 60)
    assert not setting.letters
    assert any("refuses" in reported.waiting for reported in setting.reported)
    assert len(setting.service.sent) < 12 + 25


async def test_a_refused_event_that_is_the_last_of_all_is_found_too(tmp_path: Path) -> None:
    """No other event is left to show that the service takes any: one that it took is sent once
    more, the same.
    """
    lines = [line(0), line(1), line(2, day=1)]
    setting = Setting(
        [write(tmp_path / "a.jsonl", lines)], tmp_path / "state", service=ScriptedSink(refusing(2))
    )
    setting.service.answer = lambda batch: (
        BUSY if len(setting.service.sent) == 1 else refusing(2)(batch)
    )
    await setting.run(seconds=60)
    assert_all_there(setting, 3)
    assert setting.letters == [(f"{tmp_path}/a.jsonl:3", "refused")]


async def test_a_batch_that_begins_with_a_refused_event_also_leaves_an_accepted_one(
    tmp_path: Path,
) -> None:
    """For a later run: a replay of the refused event may be all that it has to send."""
    setting = Setting(
        [write(tmp_path / "a.jsonl", [line(0), line(1), line(2)])],
        tmp_path / "state",
        service=ScriptedSink(refusing(0)),
    )
    await setting.run(seconds=60)
    assert setting.letters == [(f"{tmp_path}/a.jsonl:1", "refused")]
    assert setting.saved is not None
    assert msgspec.json.decode(setting.saved.witness)["uuid"] == uuid_of(2)


async def test_a_refused_event_that_is_all_that_is_left_is_found_by_a_later_run(
    tmp_path: Path,
) -> None:
    """Which has nothing else to send: the checkpoint remembers an event that was taken."""
    lines = [line(n, person="ann") for n in range(6)]
    setting = Setting(
        [write(tmp_path / "a.jsonl", lines)], tmp_path / "state", reading=ReadOptions(block_bytes=1)
    )
    setting.service.answer = lambda batch: None if refusing(5)(batch).status == 400 else OK
    await setting.run(after(2, lambda it: it.pipeline.stop()))
    setting.service.answer = refusing(5)
    await setting.run(seconds=60)
    assert_all_there(setting, 6)
    assert len(setting.letters) == 1


async def test_an_outage_of_minutes_is_waited_for(tmp_path: Path) -> None:
    """With growing pauses; progress says why nothing goes."""
    setting = Setting(
        three_files(tmp_path),
        tmp_path / "state",
        service=ScriptedSink(times(12, Reply(None, error="connection refused"))),
    )
    await setting.run()
    assert_all_there(setting, 60)
    assert setting.clock.monotonic() - 1000 > 20
    assert any("connection refused" in reported.waiting for reported in setting.reported)


async def test_a_key_that_is_refused_in_mid_run_halts_until_it_is_accepted(tmp_path: Path) -> None:
    """401: the lane is probed, and nothing is lost."""
    setting = Setting(three_files(tmp_path), tmp_path / "state")
    unknown = times(4, Reply(401, body=b"unknown key"))
    setting.service.answer = lambda batch: unknown(batch) if len(setting.service.sent) > 3 else OK
    await setting.run()
    assert_all_there(setting, 60)
    assert any("unknown key" in reported.waiting for reported in setting.reported)


async def test_bad_lines_are_dead_letters_before_they_count(tmp_path: Path) -> None:
    """With file and line, and the rest arrives."""
    lines = [line(n) for n in range(10)]
    lines[3] = b'{"event":"cut'
    lines[7] = b"[]"
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state")
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.books.difference == 0
    assert len(set(setting.service.uuids)) == 8
    assert setting.letters == [(f"{tmp_path}/a.jsonl:4", "undecodable")]


async def test_a_broken_file_is_reported_and_the_others_arrive(tmp_path: Path) -> None:
    """The import isn't complete. Where the same records come in a whole file, a run continues after
    those that it had.
    """
    paths = three_files(tmp_path)
    whole = gzip.compress(paths[1].read_bytes())
    broken = tmp_path / "b.jsonl.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    setting = Setting([paths[0], broken, paths[2]], tmp_path / "state")
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert [error.file for error in setting.pipeline.ledger.broken] == [str(broken)]
    assert not saved.complete
    assert {uuid_of(n) for n in (*range(20), *range(40, 60))} <= set(setting.service.uuids)
    had = len(setting.service.taken)
    broken.write_bytes(whole)
    await setting.run()
    assert_all_there(setting, 60)
    assert len(setting.service.taken) == 60
    assert had < 60


async def test_a_refused_event_waits_for_room_among_the_dead_letters(tmp_path: Path) -> None:
    """It isn't dropped: its lane halts until there is room."""
    setting = Setting(three_files(tmp_path), tmp_path / "state", service=ScriptedSink(refusing(2)))
    setting.fill_disk()

    async def make_room(it: Setting) -> None:
        if it.clock.monotonic() > 1060:
            it.make_room()

    await setting.run(make_room)
    assert_all_there(setting, 60)
    assert len(setting.letters) == 1
    assert any("No space left" in reported.waiting for reported in setting.reported)


async def test_a_rate_that_can_t_be_kept_ends_the_run(tmp_path: Path) -> None:
    """The file by which processes share it can't be written: nothing may be sent, and waiting
    would never end.
    """
    setting = Setting(
        three_files(tmp_path),
        tmp_path / "state",
        rate=5.0,
        line=RateLine(tmp_path / "gone" / "rate"),
    )
    with pytest.raises(ConfigurationError, match=r"rate.*can't be used: No such file"):
        await setting.run(seconds=60)
    assert not setting.service.sent


async def test_one_record_may_be_sent_left_out_refused_and_a_repeat(tmp_path: Path) -> None:
    """A batch body with events of every fate is one refused record; what is good of it arrives."""
    members = [line(0), line(0), line(1, name="not wanted"), b'{"event":"no id"}', line(2)]
    body = b'{"batch":[' + b",".join(members) + b"]}"
    filters = EventFilters(exclude_events=frozenset({"not wanted"}))
    setting = Setting(
        [write(tmp_path / "a.jsonl", [body, line(3)])], tmp_path / "state", filters=filters
    )
    await setting.run()
    saved = setting.saved
    assert saved is not None
    assert saved.books.read == 2
    assert saved.books.delivered == 1
    assert sum(saved.books.refused.values()) == 1
    assert sorted(setting.service.uuids) == sorted(uuid_of(n) for n in (0, 2, 3))
    assert len(setting.letters) == 1


async def test_a_record_with_more_events_than_the_buffer_holds_arrives(tmp_path: Path) -> None:
    """A record is settled as one: it waits until the buffer is empty, and then is
    accepted whole.
    """
    body = b'{"batch":[' + b",".join(line(n, day=n % 3) for n in range(1, 61)) + b"]}"
    setting = Setting([write(tmp_path / "a.jsonl", [line(0), body, line(61)])], tmp_path / "state")
    setting.batches = BatchPolicy(900, 4, 1.0, by_day=True)
    await setting.run(seconds=1000)
    assert sorted(setting.service.uuids) == sorted(uuid_of(n) for n in range(62))
    assert setting.saved is not None
    assert (setting.saved.complete, setting.saved.books.delivered) == (True, 3)


async def test_nothing_is_sent_in_quiet_hours_also_nothing_again(tmp_path: Path) -> None:
    """They begin while a request is being retried; it waits for their end."""
    clock = FakeClock(turns=8)  # at midnight
    service = ScriptedSink(lambda _: BUSY if clock.monotonic() < 1000 + 170 else OK, clock)
    quiet = QuietHours.parse("00:01-00:02")
    setting = Setting(
        three_files(tmp_path), tmp_path / "state", clock=clock, service=service, quiet=quiet
    )
    await setting.run()
    assert_all_there(setting, 60)
    assert service.times[0] < 1060
    assert not [at for at in service.times if 1060 <= at < 1119.99]
    assert [at for at in service.times if 1119.99 <= at < 1170]
    assert any(
        reported.waiting == "paused until 00:02 by --quiet-hours" for reported in setting.reported
    )


async def test_a_429_slows_it_down(tmp_path: Path) -> None:
    """Nothing is sent before the time that it asks for."""
    clock = FakeClock(turns=8)
    service = ScriptedSink(times(1, Reply(429, retry_after=120.0)), clock)
    setting = Setting(
        three_files(tmp_path), tmp_path / "state", clock=clock, service=service, rate=1000.0
    )
    await setting.run()
    assert_all_there(setting, 60)
    later = [at for at in service.times if at > service.times[0] + 5]
    assert min(later) >= service.times[0] + 119


async def test_a_rate_is_kept(tmp_path: Path) -> None:
    """Also over a run that is killed, because the line is a file."""
    clock = FakeClock(turns=8)
    files = three_files(tmp_path)
    line_of_all = RateLine(tmp_path / "rate")
    setting = Setting(
        files,
        tmp_path / "state",
        clock=clock,
        service=ScriptedSink(clock=clock),
        rate=10.0,
        line=line_of_all,
    )
    await setting.run(after(4, Setting.kill))
    await setting.run()
    assert_all_there(setting, 60)
    events = [
        (at, len(batch))
        for at, batch in zip(setting.service.times, setting.service.sent, strict=True)
    ]
    for start, (began, _) in enumerate(events):
        sent = 0
        for at, count in events[start:]:
            assert sent <= 10.0 * (at - began) + 5 + 0.01
            sent += count


async def test_days_don_t_meet_where_batches_may_be_joined(tmp_path: Path) -> None:
    """Through a daemon, which may join pending chunks: events of two days are never in flight
    together.
    """
    lines = [line(n, day=n % 3 if n < 30 else 3 + n // 30) for n in range(120)]
    setting = Setting([write(tmp_path / "a.jsonl", lines)], tmp_path / "state", concurrency=4)
    setting.batches = replace(setting.batches, one_day=True)
    setting.service.answer = lambda _: BUSY if len(setting.service.sent) % 4 == 1 else OK
    await setting.run()
    assert_all_there(setting, 120)
    assert max(map(len, setting.service.days_at_once)) == 1


async def test_a_small_selection_of_a_large_source_doesn_t_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waits for more of its day leaves in time, and reading waits while too many
    records can't be counted because of it.
    """
    monkeypatch.setattr(source, "MAX_PENDING", 50)
    lines = [line(n, name="rare" if n % 100 == 0 else "common") for n in range(1000)]
    setting = Setting(
        [write(tmp_path / "a.jsonl", lines)],
        tmp_path / "state",
        filters=EventFilters(events=frozenset({"rare"})),
    )
    setting.batches = BatchPolicy(1_000_000, 1000, 1.0, by_day=True)
    most = 0

    async def look(it: Setting) -> None:
        nonlocal most
        most = max(most, it.pipeline._source._watermark.window)

    await setting.run(look)
    assert len(setting.service.uuids) == 10
    assert len(setting.service.sent) > 3
    assert 0 < most < 50 + 20


async def test_reading_waits_while_too_much_can_t_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an outage the records that are left out are held too: reading stops."""
    monkeypatch.setattr(source, "MAX_PENDING", 40)
    lines = [line(n, name="rare" if n == 0 else "common") for n in range(1000)]
    setting = Setting(
        [write(tmp_path / "a.jsonl", lines)],
        tmp_path / "state",
        filters=EventFilters(events=frozenset({"rare"})),
    )
    setting.service.answer = times(6, BUSY)
    most = 0

    async def look(it: Setting) -> None:
        nonlocal most
        most = max(most, it.pipeline._source._watermark.window)

    await setting.run(look)
    assert len(setting.service.uuids) == 1
    assert 0 < most < 40 + 20


def test_a_batch_that_becomes_due_between_two_questions_is_not_forgotten() -> None:
    """Both questions of one pass have one answer: not yet, and when. Otherwise no timer is set,
    and the import stands still indefinitely.
    """
    buffer = MemoryBuffer(1 << 20, by_day=True)
    batcher = Batcher(
        buffer, BatchPolicy(1 << 20, 1, 1.0, by_day=True), ImportPace(8.0, BusyClock())
    )
    buffer.offer([Chunk(LANE, b"{}", 1, NO_IDS, MIDNIGHT, "import") for _ in range(4)])
    count = 0
    for wall in [MIDNIGHT + turn for turn in range(20)]:
        while batcher.next(LANE, wall) is not None:
            count += 1
        due = batcher.due_at(LANE, wall)
        assert due is None or due > wall
    assert count == 4
