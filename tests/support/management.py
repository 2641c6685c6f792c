"""Two organizations that don't know each other, as a seed: what tests of the management API call.

`ORGANIZATION` has an owner, an admin and a plain member, two projects, domains (one verified),
batch exports with runs, dashboards. `OTHER` has one of each. Keys: one for each member with every
scope, and for the owner one for each single scope.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from forwarder.contract.endpoints import KeyScope
from forwarder.sandbox import SandboxOptions

ORGANIZATION: Final = "01900000-0000-7000-8000-000000000001"
OTHER: Final = "01900000-0000-7000-8000-000000000002"
UNKNOWN: Final = "01900000-0000-7000-8000-00000000dead"
"""No id of anything."""
UNKNOWN_NUMBER: Final = 987_654

OWNER, ADMIN, MEMBER, STRANGER = (
    f"01900000-0000-7000-8000-00000000010{number}" for number in range(1, 5)
)
"""uuids of users; `STRANGER` owns `OTHER`."""
OWNER_KEY, ADMIN_KEY, MEMBER_KEY, STRANGER_KEY = (
    f"phx_test_{name}_0000000001" for name in ("owner", "admin", "member", "stranger")
)

PROJECT = 1
SECOND_PROJECT = 2
OTHER_PROJECT = 3
TOKEN, SECOND_TOKEN, OTHER_TOKEN = (f"phc_test_project_000000000{number}" for number in range(1, 4))
DOMAIN, VERIFIED_DOMAIN, OTHER_DOMAIN = (
    f"01900000-0000-7000-8000-00000000020{number}" for number in range(1, 4)
)
INVITE, OTHER_INVITE = (f"01900000-0000-7000-8000-00000000030{number}" for number in range(1, 3))
EXPORT, PAUSED_EXPORT, OTHER_EXPORT = (
    f"01900000-0000-7000-8000-00000000040{number}" for number in range(1, 4)
)
"""`EXPORT` and `PAUSED_EXPORT` are `PROJECT`'s."""
FLAG = "beta"
COHORT = 2
"""`PROJECT`'s; the number of the flag's row is the cohort's id, so that one id names both."""
RUN, OTHER_RUN = (f"01900000-0000-7000-8000-00000000050{number}" for number in range(1, 3))


def scoped_key(scope: KeyScope) -> str:
    """The owner's key that has this scope and no other."""
    return f"phx_test_only_{scope.replace(':', '_')}"


def _member(uuid: str, name: str, level: str, key: str, *more: dict[str, Any]) -> dict[str, Any]:
    keys = [{"key": key, "label": "everything", "scopes": ["*"]}, *more]
    return {
        "uuid": uuid,
        "email": f"{name}@example.com",
        "first_name": name.title(),
        "level": level,
        "personal_api_keys": keys,
    }


def _export(identity: str, name: str, *runs: str, **more: Any) -> dict[str, Any]:
    config = {
        "bucket_name": "exports",
        "region": "eu-central-1",
        "aws_secret_access_key": "hidden-secret",
    }
    return {
        "id": identity,
        "name": name,
        "destination": {"type": "S3", "config": config},
        "runs": [
            {
                "id": run,
                "status": "Failed",
                "latest_error": "no such bucket",
                "records_total_count": 7,
            }
            for run in runs
        ],
        **more,
    }


SEED: Final[dict[str, Any]] = {
    "organizations": [
        {
            "id": ORGANIZATION,
            "name": "Example Inc.",
            "members": [
                _member(
                    OWNER,
                    "olga",
                    "owner",
                    OWNER_KEY,
                    *({"key": scoped_key(scope), "scopes": [str(scope)]} for scope in KeyScope),
                ),
                _member(ADMIN, "adam", "admin", ADMIN_KEY),
                _member(MEMBER, "mia", "member", MEMBER_KEY),
            ],
            "domains": [
                {"id": DOMAIN, "domain": "example.com"},
                {
                    "id": VERIFIED_DOMAIN,
                    "domain": "verified.example.com",
                    "verified_at": "2026-01-02T03:04:05Z",
                },
            ],
            "invites": [{"id": INVITE, "target_email": "nina@example.com", "level": "admin"}],
            "projects": [
                {
                    "api_key": TOKEN,
                    "name": "Shop",
                    "flags": [
                        {
                            "key": FLAG,
                            "filters": {"groups": [{"properties": [], "rollout_percentage": 100}]},
                        }
                    ],
                    "cohorts": [{"id": COHORT, "name": "Testers", "distinct_ids": ["ann"]}],
                    "batch_exports": [
                        _export(EXPORT, "All events", RUN),
                        _export(PAUSED_EXPORT, "Persons", model="persons", paused=True),
                    ],
                    "dashboards": [
                        {"name": f"Dashboard {number}", "pinned": number == 3}
                        for number in range(1, 6)
                    ],
                },
                {"api_key": SECOND_TOKEN, "name": "App"},
            ],
        },
        {
            "id": OTHER,
            "name": "Other Ltd.",
            "members": [_member(STRANGER, "steve", "owner", STRANGER_KEY)],
            "domains": [{"id": OTHER_DOMAIN, "domain": "other.example.org"}],
            "invites": [{"id": OTHER_INVITE, "target_email": "otto@example.org"}],
            "projects": [
                {
                    "api_key": OTHER_TOKEN,
                    "name": "Theirs",
                    "batch_exports": [_export(OTHER_EXPORT, "Their events", OTHER_RUN)],
                    "dashboards": [{"name": "Theirs"}],
                }
            ],
        },
    ]
}


_SEED_TEXT: Final = json.dumps(SEED)


def seeded(folder: Path, **options: Any) -> SandboxOptions:
    """Options of a sandbox with `SEED`, which is written into `folder`."""
    path = folder / "seed.json"
    path.write_text(_SEED_TEXT)
    return SandboxOptions(seed=path, **options)
