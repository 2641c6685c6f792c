"""What is decided where the interface leaves something open is what the sandbox does; each gap has
a test, here or elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from forwarder.contract.gaps import GAPS
from tests.contract.calls import CalledSandbox, error_of, serving
from tests.support import management as seed
from tests.support.clock import FakeClock
from tests.support.documents import shown_in

DAY: Final = 24 * 3600.0
Test = TypeVar("Test", bound=Callable[..., Any])
HERE: Final[set[str]] = set()
"""Gaps that a test below shows."""
ELSEWHERE: Final = {
    "read-only": "tests/contract/test_fields.py::test_what_is_read_only",
    "no-value-yet": "tests/contract/test_endpoints.py::test_success",
    "null": "tests/contract/test_fields.py::test_wrong_values",
    "lengths": "tests/contract/test_fields.py::test_wrong_values",
    "intervals": "tests/contract/test_fields.py::test_wrong_values",
    "destination-types": "tests/contract/test_fields.py::test_wrong_values",
    "sample-rate": "tests/contract/test_fields.py::test_wrong_values",
    "sso-enforcement": "tests/contract/test_fields.py::test_what_is_accepted_is_there",
    "project-settings": "tests/contract/test_fields.py::test_what_is_accepted_is_there",
    "project-access": "tests/contract/test_fields.py::test_what_is_accepted_is_there",
    "defaults": "tests/contract/test_fields.py::test_defaults",
    "send-email": "tests/contract/test_fields.py::test_defaults",
    "action-payloads": "tests/contract/test_fields.py::test_what_actions_accept",
    "newer-fields": "tests/management/test_calling.py::test_what_a_newer_service_adds_is_kept",
    "roles": "tests/contract/test_fields.py::test_embedded_users_are_the_members",
    "creation-mode": "tests/sandbox/manage/test_projects.py::test_a_dashboard",
    "json-values": "tests/sandbox/manage/test_validation.py::test_what_cannot_be_kept",
    "verify-scope": "tests/contract/test_endpoints.py::test_scopes",
    "logs-scope": "tests/contract/test_endpoints.py::test_scopes",
    "scopes": "tests/contract/test_endpoints.py::test_scopes",
    "no-body": "tests/contract/test_endpoints.py::test_strict_answers",
    "logs-body": "tests/contract/test_endpoints.py::test_strict_answers",
    "keys": "tests/contract/test_endpoints.py::test_no_key_and_unknown_keys",
    "isolation": "tests/contract/test_endpoints.py::test_another_organization",
    "malformed-ids": "tests/contract/test_endpoints.py::test_unknown_and_malformed_ids",
    "slashes": "tests/contract/test_endpoints.py::test_without_the_slash",
    "management-errors": "tests/contract/test_errors.py::test_errors",
    "check-order": "tests/contract/test_errors.py::test_the_first_of_several_errors",
    "body-size": "tests/contract/test_errors.py::test_limits_of_bodies",
    "page-size": "tests/contract/test_pages.py::test_bad_limits_and_offsets",
    "capture-answer": "tests/contract/test_ingestion.py::test_success",
    "group-flags": "tests/contract/test_flags.py::test_flags_are_set_in_the_services_form",
    "ingestion-failures": "tests/contract/test_ingestion.py::test_failures",
    "nameless-events": "tests/contract/test_ingestion.py::test_what_is_not_ingested",
    "shapes": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "historical-values": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "property-types": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "timestamp-types": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "distinct-id-types": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "flag-types": "tests/contract/test_odd_bodies.py::test_answers_are_alike",
    "body-limit": "tests/contract/test_odd_bodies.py::test_the_largest_body",
    "survey-without-id": (
        "tests/contract/test_odd_bodies.py::test_an_event_of_a_survey_without_its_survey"
    ),
    "ignored-fields": "tests/cli/test_manage_domains.py::test_what_is_ignored_is_reported",
    "other-methods": "tests/contract/test_ingestion.py::test_post_only",
    "project-keys": "tests/contract/test_ingestion.py::test_keys_of_projects",
    "compressions": "tests/contract/test_ingestion.py::test_what_clients_may_compress_with",
    "forwarded-for": "tests/contract/test_flags.py::test_places_follow_from_the_documented_header",
    "decide-versions": "tests/contract/test_flags.py::test_the_versions_of_answers",
    "decide-fields": (
        "tests/sandbox/flags/test_service_answers.py::test_decide_by_the_contract_and_strictly"
    ),
    "decide-numbers": (
        "tests/sandbox/flags/test_service_answers.py::test_an_invalid_number_is_null"
    ),
    "run-transitions": (
        "tests/sandbox/exports/test_scheduler.py::test_a_run_goes_through_its_states"
    ),
    "interval-alignment": "tests/sandbox/exports/test_intervals.py::test_what_a_schedule_runs_next",
    "missed-intervals": "tests/sandbox/exports/test_scheduler.py::test_a_pause_loses_nothing",
    "exported-events": "tests/sandbox/exports/test_scheduler.py::test_each_event_is_exported_once",
    "export-changes": (
        "tests/sandbox/exports/test_scheduler.py::test_a_run_keeps_the_settings_that_it_began_with"
    ),
    "exported-files": (
        "tests/sandbox/exports/test_shipping.py::test_names_follow_from_the_work_and_its_interval"
    ),
    "exported-records": (
        "tests/sandbox/exports/test_records.py::test_properties_are_as_they_were_sent"
    ),
    "private-destinations": "tests/sandbox/exports/test_network.py::test_private_addresses",
    "flag-forms": "tests/contract/test_flags.py::test_flags_are_set_in_the_services_form",
    "flag-evaluation": "tests/end_to_end/test_flags.py::test_the_sdk_decides_as_the_service_does",
    "evaluated-properties": (
        "tests/contract/test_flags.py::test_properties_of_the_request_come_first_one_by_one"
    ),
    "flag-errors": "tests/contract/test_flags.py::test_one_flag_that_fails_leaves_the_others_right",
    "rate-limits": "tests/management/test_calling.py::test_a_change_waits_when_it_came_too_early",
}
NOTHING: Final = {"notifications", "management-versions"}
"""Gaps of which there is nothing to see, because there is nothing."""


def closes(*gaps: str) -> Callable[[Test], Test]:
    """Mark a test as showing what was decided about these gaps."""
    HERE.update(gaps)
    return lambda test: test


def test_every_gap_is_shown() -> None:
    """Each gap has a test that exists, and nothing is called a gap that isn't one."""
    assert HERE | set(ELSEWHERE) | NOTHING == {gap.name for gap in GAPS}
    named = (proof.split("::") for proof in ELSEWHERE.values())
    assert [name for path, name in named if name not in shown_in(path)] == []


async def _made(
    service: CalledSandbox, call: str, body: dict[str, Any], **options: Any
) -> dict[str, Any]:
    reply = await service.call(call, body, **options)
    assert reply.status == 201, reply.text
    answered: dict[str, Any] = reply.json
    return answered


@closes("levels", "last-owner")
async def test_the_last_owner_stays(tmp_path: Path) -> None:
    """An organization's only owner can't leave; once there is another, the first can."""
    async with serving(tmp_path) as service:
        assert (
            error_of(await service.call("members delete", user__uuid=seed.OWNER))[2] == "last_owner"
        )
        answer = await service.call("members update", {"level": 15}, user__uuid=seed.ADMIN)
        assert answer.json["level"] == 15
        assert (await service.call("members delete", user__uuid=seed.OWNER)).status == 204
        assert (await service.call("members list")).status == 404
        members = (await service.call("members list", key=seed.ADMIN_KEY)).json["results"]
        assert [member["level"] for member in members] == [15, 1]


@closes("domain-names", "domain-immutable", "single-sign-on")
async def test_single_sign_on_is_for_verified_domains(tmp_path: Path) -> None:
    """On create it is ignored, on update refused until the domain is verified; the name stays;
    SAML is there once all of it is.
    """
    async with serving(tmp_path) as service:
        wanted = {"jit_provisioning_enabled": True, "sso_enforcement": "saml"}
        domain = await _made(service, "domains create", {"domain": "NEW.Example.net", **wanted})
        assert (
            domain["domain"],
            domain["jit_provisioning_enabled"],
            domain["sso_enforcement"],
        ) == ("new.example.net", False, "")
        for name, value in wanted.items():
            error = error_of(await service.call("domains update", {name: value}, id=domain["id"]))
            assert error[2:] == ("verification_needed", name)
        verified = (await service.call("domains update", wanted, id=seed.VERIFIED_DOMAIN)).json
        assert {name: verified[name] for name in wanted} == wanted
        for number, name in enumerate(("saml_entity_id", "saml_acs_url", "saml_x509_cert")):
            answer = await service.call("domains update", {name: "x"}, id=domain["id"])
            assert answer.json["has_saml"] == (number == 2)
        answer = await service.call(
            "domains update", {"domain": "new.example.net"}, id=domain["id"]
        )
        assert answer.status == 200
        assert error_of(
            await service.call("domains update", {"domain": "b.example.net"}, id=domain["id"])
        )[2:] == ("immutable", "domain")


@closes("verification")
async def test_a_domain_is_verified_by_its_challenge(tmp_path: Path) -> None:
    """As long as the challenge isn't at its name in the DNS, the domain stays unverified, and that
    is no error.
    """
    async with serving(tmp_path) as service:
        challenge = (await service.call("domains get")).json["verification_challenge"]
        for name, texts in (
            ("example.com", [challenge]),
            ("_posthog-challenge.example.com", ["another"]),
        ):
            service.dns.challenges = {name: texts}
            reply = await service.call("domains verify")
            assert (reply.status, reply.text) == (200, "")
            assert (await service.call("domains get")).json["is_verified"] is False
        service.dns.challenges = {"_posthog-challenge.example.com": ["another", challenge]}
        assert (await service.call("domains verify")).status == 200
        domain = (await service.call("domains get")).json
        assert domain["is_verified"] is (domain["verified_at"] is not None) is True
        assert error_of(await service.call("domains verify"))[2] == "already_verified"


@closes("invite-expiry", "invite-again", "invited-members")
async def test_the_life_of_an_invite(clock: FakeClock, tmp_path: Path) -> None:
    """It expires after three days and stays in the list; another one of the address replaces it,
    and combines with what hasn't expired.
    """
    access = [{"id": seed.PROJECT, "level": "member"}]

    async with serving(tmp_path, now=clock.now) as service:
        first = {"target_email": "Ann@Example.NET", "level": 8, "private_project_access": access}
        assert (await _made(service, "invites create", first))["target_email"] == "Ann@example.net"
        clock.step(3 * DAY - 1)
        again = {"target_email": "ann@example.net", "combine_pending_invites": True}
        combined = await _made(service, "invites create", again)
        assert (combined["level"], combined["private_project_access"], combined["is_expired"]) == (
            8,
            access,
            False,
        )
        clock.step(3 * DAY)
        assert [
            (invite["id"], invite["is_expired"]) for invite in await service.items("invites list")
        ][-1] == (combined["id"], True)
        renewed = await _made(service, "invites create", again)
        assert (renewed["level"], renewed["private_project_access"]) == (1, None)
        assert [
            invite["id"]
            for invite in await service.items("invites list")
            if "nn@" in invite["target_email"]
        ] == [renewed["id"]]
        assert (
            error_of(await service.call("invites create", {"target_email": "MIA@EXAMPLE.com"}))[3]
            == "target_email"
        )


@closes("bulk")
async def test_a_bulk_is_an_array_or_one_object(tmp_path: Path) -> None:
    """At most twenty are invited at once, all or none; one object is one invite, and its errors
    have no place.
    """
    async with serving(tmp_path) as service:
        people = [{"target_email": f"{number}@example.net"} for number in range(20)]
        assert (await service.call("invites bulk", people)).status == 200
        answer = await service.call("invites bulk", {"target_email": "one@example.net"})
        assert answer.status == 200
        assert len(await service.items("invites list")) == 22
        assert error_of(
            await service.call("invites bulk", [*people, {"target_email": "late@example.net"}])
        )[2:] == ("max_length", None)
        mixed = [{"target_email": "good@example.net"}, {"target_email": "mia@example.com"}]
        assert error_of(await service.call("invites bulk", mixed))[3] == "1__target_email"
        assert error_of(await service.call("invites bulk", mixed[1]))[3] == "target_email"
        assert len(await service.items("invites list")) == 22


@closes("pause-twice")
@pytest.mark.parametrize("resource", ["batch-exports", "organization-batch-exports"])
async def test_pausing_twice_is_pausing_once(
    resource: str, clock: FakeClock, tmp_path: Path
) -> None:
    """`last_paused_at` is when it was paused first; writing `paused` does
    the same as the operation.
    """
    async with serving(tmp_path, now=clock.now) as service:
        paused_at = []
        for call, body in (
            (f"{resource} pause", {}),
            (f"{resource} pause", {}),
            ("batch-exports update", {"paused": True}),
        ):
            assert (await service.call(call, body)).status == 200
            export = (await service.call("batch-exports get")).json
            paused_at.append((export["paused"], export["last_paused_at"]))
            clock.step(DAY)
        assert paused_at[0] == paused_at[1] == paused_at[2]
        for _ in range(2):
            assert (await service.call(f"{resource} unpause")).status == 200
            assert (await service.call("batch-exports get")).json["paused"] is False
        written = (await service.call("batch-exports update", {"paused": True})).json
        assert written["last_paused_at"] > paused_at[0][1]


@closes("destination-config", "export-settings", "export-range", "environments")
async def test_settings_of_batch_exports(tmp_path: Path) -> None:
    """Secrets aren't read back and survive a change of what was read; a range begins before it
    ends; `team_id` is the project.
    """
    async with serving(tmp_path) as service:
        export = (await service.call("batch-exports get")).json
        assert (export["team_id"], export["schema"]) == (seed.PROJECT, None)
        assert set(export["destination"]["config"]) == {"bucket_name", "region"}
        changed = {**export["destination"]["config"], "region": "us-east-1"}
        answer = await service.call(
            "batch-exports update", {"destination": {"type": "S3", "config": changed}}
        )
        destination = answer.json["destination"]
        assert destination == {"type": "S3", "config": changed}
        times = {"start_at": "2026-01-31T12:00:00+01:00", "end_at": "2026-01-31T11:00:00Z"}
        assert error_of(await service.call("batch-exports update", times))[:2] == (
            400,
            "validation_error",
        )
        answer = await service.call(
            "batch-exports update", {**times, "end_at": "2026-01-31T11:00:01Z"}
        )
        assert answer.status == 200
        filters = {"filters": [{"key": "$browser", "value": ["Firefox", None]}]}
        answer = await service.call("batch-exports update", filters)
        assert answer.json["filters"] == filters["filters"]


@closes("backfill", "retry", "latest-runs", "export-deletion")
async def test_runs_of_batch_exports(tmp_path: Path) -> None:
    """A backfill is a run an interval, clipped to its range; a retry is a run of its own; the
    newest ten are shown, the newest first; with the export they are gone from the API, and shown
    by the sandbox.
    """
    async with serving(tmp_path, export_root=tmp_path / "exported") as service:
        folder = {"interval": "day", "destination": {"type": "Folder", "config": {"path": "shop"}}}
        assert (await service.call("batch-exports update", folder)).status == 200
        old = await _runs(service)
        answer = await service.call(
            "batch-exports backfill",
            {"start_at": "2026-01-01T06:00:00Z", "end_at": "2026-01-03T00:00:00Z"},
        )
        assert answer.status == 200
        second, first, *others = await _runs(service)
        assert [
            (run["status"], run["data_interval_start"][:16], run["data_interval_end"][:16])
            for run in (first, second)
        ] == [
            ("Completed", "2026-01-01T06:00", "2026-01-02T00:00"),
            ("Completed", "2026-01-02T00:00", "2026-01-03T00:00"),
        ]
        assert others == old
        assert (await service.call("batch-export-runs retry", {}, id=first["id"])).status == 200
        retried, *others = await _runs(service)
        assert others == [second, first, *old]
        times = {"id", "created_at", "finished_at", "last_updated_at"}
        assert {name for name in retried if retried[name] != first[name]} <= times
        for _ in range(9):
            answer = await service.call(
                "batch-exports backfill",
                {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T01:00:00Z"},
            )
            assert answer.status == 200
        runs = await _runs(service)
        assert (len(runs), runs[-1]["id"]) == (10, retried["id"])
        assert (await service.call("batch-exports delete")).status == 204
        for call in (
            "batch-exports get",
            "batch-exports delete",
            "batch-export-runs retry",
            "organization-batch-exports pause",
        ):
            assert error_of(await service.call(call))[0] == 404
        answer = await service.ask(
            "GET", f"/sandbox/batch-export-runs?batch_export={seed.EXPORT}", key=None
        )
        shown = answer.json
        assert (shown["count"], shown["results"][0]["id"]) == (13, runs[0]["id"])


async def _runs(service: CalledSandbox) -> list[dict[str, Any]]:
    """The latest runs, once nothing is due."""
    await service.settle()
    runs: list[dict[str, Any]] = (await service.call("batch-exports get")).json["latest_runs"]
    return runs


@closes("project-token", "primary-dashboard", "texts-of-json")
async def test_a_new_project(tmp_path: Path) -> None:
    """Its key is ingested with at once, which it then says; it has a dashboard of its own unless
    another one is its first.
    """
    async with serving(tmp_path) as service:
        project = await _made(service, "projects create", {})
        answer = await service.call("dashboards list", project_id=project["id"])
        dashboards = answer.json["results"]
        assert [dashboard["id"] for dashboard in dashboards] == [project["primary_dashboard"]]
        assert (project["default_modifiers"], project["product_intents"]) == ("{}", "[]")
        assert (project["ingested_event"], project["has_group_types"]) == (False, False)
        properties = {"$group_type": "company", "$group_key": "acme"}
        event = {
            "api_key": project["api_token"],
            "event": "$groupidentify",
            "distinct_id": "ann",
            "properties": properties,
        }
        assert (await service.client.post("/capture/", event)).status == 200
        project = (await service.call("projects get", id=project["id"])).json
        assert (project["ingested_event"], project["has_group_types"]) == (True, True)
        second = await _made(service, "projects create", {"primary_dashboard": dashboards[0]["id"]})
        assert second["primary_dashboard"] == dashboards[0]["id"]


@closes("restriction-levels", "dashboard-access")
async def test_what_dashboards_say_of_the_caller(tmp_path: Path) -> None:
    """Levels and access are of the documented values."""
    async with serving(tmp_path) as service:
        for key in (seed.OWNER_KEY, seed.MEMBER_KEY):
            for dashboard in (await service.call("dashboards list", key=key)).json["results"]:
                assert (
                    dashboard["effective_restriction_level"] == dashboard["restriction_level"] == 21
                )
                assert (dashboard["effective_privilege_level"], dashboard["user_access_level"]) in (
                    (37, "editor"),
                    (21, "viewer"),
                )
                assert dashboard["access_control_version"] == "v2"


@closes("export-operations", "project-operations", "dashboard-operations")
async def test_what_there_is_not(tmp_path: Path) -> None:
    """What the interface doesn't have is 404, or 405 where the path is there for something else."""
    environment = f"/api/environments/{seed.PROJECT}"
    organization = f"/api/organizations/{seed.ORGANIZATION}"
    exports = f"{environment}/batch_exports/{seed.EXPORT}"
    async with serving(tmp_path) as service:
        for method, path, status in (
            ("GET", f"{environment}/batch_exports/", 404),
            ("POST", f"{environment}/batch_exports/", 404),
            ("GET", f"{exports}/runs/", 404),
            ("GET", f"{exports}/runs/{seed.RUN}/", 404),
            ("GET", f"{organization}/batch_exports/{seed.EXPORT}/", 404),
            ("PATCH", f"{organization}/projects/{seed.PROJECT}/", 405),
            ("DELETE", f"{organization}/projects/{seed.PROJECT}/", 405),
            ("POST", f"{environment}/dashboards/", 405),
            ("GET", f"{environment}/dashboards/1/", 404),
        ):
            assert error_of(await service.ask(method, path))[0] == status, (method, path)


@closes("list-order")
async def test_lists_begin_with_what_was_made_first(tmp_path: Path) -> None:
    """What is made comes at the end."""
    async with serving(tmp_path) as service:
        for resource, body in (
            ("domains", {"domain": "a.example"}),
            ("invites", {"target_email": "a@a.example"}),
            ("projects", {"name": "A"}),
        ):
            before = await service.items(f"{resource} list")
            made = await _made(service, f"{resource} create", body)
            assert [entry["id"] for entry in await service.items(f"{resource} list")] == [
                *(entry["id"] for entry in before),
                made["id"],
            ]
