"""Whom a request for flags is about: stored and given properties, groups, types of groups,
continuity, static cohorts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, SandboxClient, batch, event, talking
from tests.sandbox.defining import define, flag, person_is, put, values
from tests.support.cases import cases


async def identify(
    client: SandboxClient, distinct_id: str, anonymous: str | None = None, **properties: Any
) -> None:
    """Make a person, maybe of an anonymous one."""
    before = {} if anonymous is None else {"$anon_distinct_id": anonymous}
    sent = event(
        event="$identify", distinct_id=distinct_id, properties={**before, "$set": properties}
    )
    assert (await client.post("/batch/", batch(sent))).status == 200


async def group(client: SandboxClient, group_type: str, key: str, **properties: Any) -> None:
    """Make a group."""
    said = {"$group_type": group_type, "$group_key": key, "$group_set": properties}
    answer = await client.post("/batch/", batch(event(event="$groupidentify", properties=said)))
    assert answer.status == 200


async def test_stored_properties_count_at_once() -> None:
    """What an event set decides the next request, for each distinct id of the person; another
    person has none of it.
    """
    async with talking() as client:
        await define(client, pro=flag(person_is("plan", "pro")))
        assert await values(client) == {"pro": False}
        await identify(client, "ann", "anonymous-1", plan="pro")
        assert [(await values(client, who))["pro"] for who in ("ann", "anonymous-1", "bob")] == [
            True,
            True,
            False,
        ]


async def test_a_request_overrides_property_by_property() -> None:
    """Given properties count above the stored ones of the same name, the others stay; nothing of
    them is kept.
    """
    async with talking() as client:
        await define(client, both=flag(person_is("plan", "pro"), person_is("seats", 3, "gt")))
        await identify(client, "ann", plan="pro", seats=2)
        assert await values(client, person_properties={"seats": 5}) == {"both": True}
        assert await values(client, person_properties={"seats": 5, "plan": None}) == {"both": False}
        assert await values(client) == {"both": False}
        [person] = await client.sandbox.persons()
        assert person.properties == {"plan": "pro", "seats": 2}


async def test_the_distinct_id_is_a_property() -> None:
    """A condition can name a person by the distinct id, known or not."""
    async with talking() as client:
        await define(client, hers=flag(person_is("distinct_id", ["ann", "7"])))
        assert [(await values(client, who))["hers"] for who in ("ann", "bob")] == [True, False]
        answer = await client.post("/decide/?v=3", {"api_key": KEY, "distinct_id": 7})
        assert answer.json["featureFlags"] == {"hers": True}


async def test_groups() -> None:
    """A flag of companies is decided by the company's key and properties, stored and given."""
    async with talking() as client:
        await define(
            client,
            big={
                "filters": {
                    **flag(person_is("seats", 10, "gt", "group"))["filters"],
                    "aggregation_group_type_index": 0,
                }
            },
            named={
                "filters": {
                    **flag(person_is("$group_key", "acme", kind="group"))["filters"],
                    "aggregation_group_type_index": 0,
                }
            },
        )
        await group(client, "company", "acme", seats=25)
        await group(client, "team", "x", seats=99)
        assert await values(client, groups={"company": "acme"}) == {"big": True, "named": True}
        assert await values(client, groups={"company": "tiny"}) == {"big": False, "named": False}
        assert await values(
            client, groups={"company": "tiny"}, group_properties={"company": {"seats": 11}}
        ) == {
            "big": True,
            "named": False,
        }
        assert await values(
            client, groups={"company": "acme"}, group_properties={"company": {"seats": 1}}
        ) == {"big": False, "named": True}
        assert await values(client, groups={"team": "x"}) == {"big": False, "named": False}
        assert await values(client) == {"big": False, "named": False}


async def test_types_of_groups_before_the_first_group() -> None:
    """Named types come first, arrived ones follow, then those of the request; definitions have the
    first two.
    """
    async with talking() as client:
        for index in range(3):
            one = flag(aggregation_group_type_index=index)
            await define(client, **{f"at_{index}": one})
        assert await values(client, groups={"team": "x"}) == {
            "at-0": True,
            "at-1": False,
            "at-2": False,
        }
        await group(client, "company", "acme")
        assert await values(client, groups={"team": "x"}) == {
            "at-0": False,
            "at-1": True,
            "at-2": False,
        }
        assert (await put(client, "group-types", ["project", "company"])).json == [
            "project",
            "company",
        ]
        assert await values(client, groups={"team": "x"}) == {
            "at-0": False,
            "at-1": False,
            "at-2": True,
        }
        definitions = await client.ask(
            "GET", f"/flags/definitions?token={KEY}", headers={"Authorization": "Bearer phx_secret"}
        )
        assert definitions.json["group_type_mapping"] == {"0": "project", "1": "company"}
        assert (await put(client, "group-types", {"0": "company"})).status == 400


HALF = {
    "ensure_experience_continuity": True,
    "filters": {"groups": [{"properties": [], "rollout_percentage": 50}]},
}


async def new_person(client: SandboxClient, *, on: bool) -> str:
    """Someone for whom the flag `lasting` is so by their own distinct id."""
    for number in range(100):
        if (await values(client, f"person-{number}"))["lasting"] is on:
            return f"person-{number}"
    raise AssertionError("a flag for half of the people is the same for a hundred")


async def test_continuity() -> None:
    """A person keeps what it was before it was identified, also after persons
    merge; another flag doesn't.
    """
    async with talking() as client:
        await define(client, lasting=HALF, fleeting={**HALF, "ensure_experience_continuity": False})
        anonymous = await new_person(client, on=True)
        known = await new_person(client, on=False)
        third = "third-person"
        assert (await values(client, known, anonymous=anonymous))["lasting"] is True
        assert (await values(client, known))["lasting"] is False, "nothing is kept of nobody"
        await client.post("/batch/", batch(event(distinct_id=known)))
        assert (await values(client, known, anonymous=anonymous))["lasting"] is True
        assert (await values(client, known))["lasting"] is True
        await identify(client, known, anonymous)
        assert (await values(client, known))["lasting"] is True
        merged = event(event="$merge_dangerously", distinct_id=third, properties={"alias": known})
        await client.post("/batch/", batch(event(distinct_id=third), merged))
        assert (await values(client, third))["lasting"] is True
        other = await new_person(client, on=False)
        assert (await values(client, third, anonymous=other))["lasting"] is True, (
            "the first one stays"
        )
        await define(client, lasting={**HALF, "ensure_experience_continuity": False}, other=HALF)
        assert (await values(client, known))["lasting"] is False, "it doesn't last any more"
        await define(client, lasting=HALF)
        assert (await values(client, known))["lasting"] is True
        await client.ask("DELETE", "/sandbox/events")
        assert (await values(client, known))["lasting"] is False


async def test_continuity_of_the_anonymous_person() -> None:
    """What is fixed for the anonymous person counts for a new id, until that one has its own."""
    async with talking() as client:
        await define(client, lasting=HALF)
        first = await new_person(client, on=True)
        later = await new_person(client, on=False)
        await client.post("/batch/", batch(event(distinct_id=later)))
        assert (await values(client, later, anonymous=first))["lasting"] is True
        assert (await values(client, "new", anonymous=later))["lasting"] is True
        await client.post("/batch/", batch(event(distinct_id="new")))
        assert (await values(client, "new", anonymous=later))["lasting"] is False


async def test_continuity_is_kept(tmp_path: Path) -> None:
    """It is in the database."""
    options = SandboxOptions(database=tmp_path / "x.db")
    async with talking(options) as client:
        await define(client, lasting=HALF)
        anonymous = await new_person(client, on=True)
        known = await new_person(client, on=False)
        await client.post("/batch/", batch(event(distinct_id=known)))
        await values(client, known, anonymous=anonymous)
    async with talking(options) as client:
        assert (await values(client, known))["lasting"] is True


async def test_cohorts() -> None:
    """A cohort by conditions, one within another, and a static one of distinct ids, whichever of
    the person's is named.
    """
    async with talking() as client:
        tree = {
            "type": "OR",
            "values": [
                {
                    "type": "AND",
                    "values": [person_is("plan", "pro"), person_is("id", 7, "in", "cohort")],
                }
            ],
        }
        answer = await put(client, "cohorts/7", {"distinct_ids": ["anonymous-1"]})
        assert answer.json["is_static"] is True
        assert (await put(client, "cohorts/8", {"filters": {"properties": tree}})).status == 200
        await define(
            client,
            inner=flag(person_is("id", 7, "in", "cohort")),
            outer=flag(person_is("id", 8, "in", "cohort")),
        )
        assert await values(client, "anonymous-1") == {"inner": True, "outer": False}
        await identify(client, "ann", "anonymous-1", plan="pro")
        assert await values(client) == {"inner": True, "outer": True}
        assert await values(client, "bob", person_properties={"plan": "pro"}) == {
            "inner": False,
            "outer": False,
        }
        deleted = await client.ask("DELETE", f"/sandbox/cohorts/7?api_key={KEY}")
        assert deleted.status == 204
        reply = (await client.post("/decide/?v=3", {"api_key": KEY, "distinct_id": "ann"})).json
        assert reply["featureFlags"].get("inner") in (None, False)


@cases(
    ("asked", "expected"),
    [
        ({"flag_keys_to_evaluate": ["a", "unknown"]}, {"a": True}),
        ({"flag_keys_to_evaluate": []}, {}),
        ({"evaluation_contexts": ["app"]}, {"a": True, "b": True}),
        ({"evaluation_contexts": ["site"]}, {"a": True}),
        ({"disable_flags": True}, {}),
        ({"flag_keys_to_evaluate": None}, {"a": True, "b": True}),
    ],
)
async def test_which_flags(asked: dict[str, Any], expected: dict[str, bool]) -> None:
    """A request can name flags or contexts, or have none decided."""
    async with talking() as client:
        await define(client, a={"active": True}, b={"active": True, "evaluation_contexts": ["app"]})
        assert await values(client, **asked) == expected
