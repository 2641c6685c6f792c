"""Each effect of the interface document's Events table, asked of the sandbox after an SDK has sent
the event through forwarder.
"""

from __future__ import annotations

from tests.sdks.outcomes import SdkOutcome
from tests.sdks.variants import FIRST, V1, Variant, for_each

every_variant = for_each([*FIRST, *V1])


@every_variant
async def test_person_properties(outcome: SdkOutcome) -> None:
    """What an application says of a person is known of that person, whichever call it
    says it by.
    """
    async with outcome.asking() as ask:
        ann = await ask.person("ann")
    assert ann is not None
    assert {name: ann["properties"].get(name) for name in ("plan", "email", "name")} == {
        "plan": "pro",
        "email": "ann@example.com",
        "name": "Ann Müller 茶",
    }


@every_variant
async def test_set_once_keeps_what_was_first(outcome: SdkOutcome) -> None:
    """A property that is set once isn't changed by a later event."""
    async with outcome.asking() as ask:
        ann = await ask.person("ann")
    assert ann is not None
    assert ann["properties"]["first_seen"] == "2026-01-01"


@every_variant
async def test_identify_says_who_a_person_is(outcome: SdkOutcome) -> None:
    """`$identify` with `$set` changes the properties of its person, and is an event of
    that person.
    """
    async with outcome.asking() as ask:
        ann = await ask.person("ann")
        identified = await ask.events("$identify")
    assert ann is not None
    assert {event["person"] for event in identified} == {ann["id"]}


@every_variant
async def test_alias_makes_one_person_of_two_ids(outcome: SdkOutcome) -> None:
    """`$create_alias` merges the event's id into the alias, which becomes the main one."""
    async with outcome.asking() as ask:
        before = await ask.person("anon-7")
        after = await ask.person("bea")
        cart = await ask.event("cart opened")
    assert before == after
    assert after is not None
    assert (after["distinct_id"], set(after["distinct_ids"])) == ("bea", {"bea", "anon-7"})
    assert cart["distinct_id"] == "anon-7"
    assert cart["person"] == after["id"]


@every_variant
async def test_a_group_is_described(outcome: SdkOutcome) -> None:
    """`$groupidentify` creates the group with its properties, a date among them."""
    async with outcome.asking() as ask:
        acme = (await ask.groups())["company", "acme"]
        paid = await ask.event("invoice paid")
    assert {name: acme[name] for name in ("name", "seats", "since")} == {
        "name": "Acme",
        "seats": 5,
        "since": "2026-01-01T00:00:00Z",
    }
    assert paid["groups"] == {"company": "acme"}


@every_variant
async def test_a_group_that_is_only_mentioned_is_not_made(outcome: SdkOutcome) -> None:
    """An event with `$groups` belongs to them, and creates none."""
    async with outcome.asking() as ask:
        groups = await ask.groups()
        lost = await ask.event("invoice lost")
    assert set(groups) == {("company", "acme")}
    assert lost["groups"] == {"company": "ghost"}


@every_variant
async def test_surveys(outcome: SdkOutcome) -> None:
    """`survey shown`, `survey dismissed` and `survey sent` are there with the survey's id, the
    last with the answer.
    """
    async with outcome.asking() as ask:
        events = [await ask.event(f"survey {what}") for what in ("shown", "dismissed", "sent")]
    assert [event["properties"]["$survey_id"] for event in events] == ["s-1"] * 3
    assert events[2]["properties"]["$survey_response"] == "tea"


@every_variant
async def test_flag_calls(outcome: SdkOutcome) -> None:
    """A flag that was asked for is reported by the SDK itself (`new-checkout`), and one that the
    application tells is there beside it.
    """
    async with outcome.asking() as ask:
        called = {
            event["properties"]["$feature_flag"]: event["properties"]
            for event in await ask.events("$feature_flag_called")
        }
    assert set(called) == {"new-checkout", "old-banner"}
    assert called["old-banner"]["$feature_flag_response"] == "red"


@every_variant
async def test_events_are_attributed_to_flags(outcome: SdkOutcome) -> None:
    """`$feature/<key>` is a property of the event, with the variant."""
    async with outcome.asking() as ask:
        seen = await ask.event("banner seen")
    assert seen["properties"]["$feature/old-banner"] == "red"


@every_variant
async def test_views(outcome: SdkOutcome) -> None:
    """`$pageview` has its address, `$screen` its name."""
    async with outcome.asking() as ask:
        pages = await ask.events("$pageview")
        screen = await ask.event("$screen")
    assert "https://shop.example.com/tea?q=1#top" in [
        page["properties"]["$current_url"] for page in pages
    ]
    assert screen["properties"]["$screen_name"] == "Checkout"


@every_variant
async def test_an_anonymous_event_makes_no_person(variant: Variant, outcome: SdkOutcome) -> None:
    """With `$process_person_profile: false` the event is there and no one comes of it."""
    async with outcome.asking() as ask:
        glimpsed = await ask.event("page glimpsed")
        ann = await ask.person("ann")
        passer_by = await ask.person("passer-by")
    assert glimpsed["properties"]["$process_person_profile"] is False
    assert passer_by is None
    assert ann is not None
    if variant.sdk == "js":  # the visitor says later who it was
        assert glimpsed["distinct_id"] in ann["distinct_ids"]
    else:
        assert glimpsed["person"] is None


@every_variant
async def test_an_event_keeps_its_own_time(outcome: SdkOutcome) -> None:
    """An event that is reported with a time long ago has that time, but for the seconds between the
    SDK's `sent_at` and the arrival.
    """
    async with outcome.asking() as ask:
        imported = await ask.event("order imported")
    assert imported["timestamp"].startswith(("2026-03-01T10:00:", "2026-03-01T09:59:59"))
