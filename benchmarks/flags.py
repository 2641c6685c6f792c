"""What `/decide` costs the sandbox: CPU time a request of a project with many flags, beside a
project of the same sandbox without any.

Each flag has five conditions, of which a visitor fails the first four at their second property and
meets the last one: no flag is decided early. One in four asks for a cohort, one in three has
variants, and every second visitor is a person whom the sandbox knows.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import BenchmarkError, Program, pinned, running
from benchmarks.targets import Machine

NAME: Final = "decide"
FLAGS: Final = 200
CONDITIONS: Final = 5
ALLOWED: Final = 0.010
"""CPU seconds of a request."""
REQUESTS: Final = 1000
WARM: Final = 50
"""Requests before, which aren't measured."""
_WITH: Final = "phc_benchmark_with_flags_000001"
_WITHOUT: Final = "phc_benchmark_without_flags_001"
_PERSONS: Final = 100


@dataclass(frozen=True, slots=True)
class DecideResult:
    """CPU seconds of a request."""

    name: str
    with_flags: float
    without: float
    enabled: int
    """Flags that were on, of the last visitor."""

    @property
    def good(self) -> bool:
        """Whether it is as cheap as wanted."""
        return self.with_flags < ALLOWED and self.enabled > 0


def measure_decide(port: int, machine: Machine, requests: int = REQUESTS) -> DecideResult:
    """Ask a sandbox for flags, one visitor after the other. Takes about ten
    seconds. Raises `BenchmarkError`.
    """
    with _sandbox(port, machine) as program, pinned(machine.load_core):
        _ask(port, _WITHOUT, range(WARM))
        without, _ = _measure(program, port, _WITHOUT, requests)
        _ask(port, _WITH, range(WARM))
        with_flags, enabled = _measure(program, port, _WITH, requests)
    return DecideResult(NAME, with_flags, without, enabled)


def decide_line(result: DecideResult) -> str:
    """The measurement in a line."""
    return (
        f"{result.name}: {result.with_flags * 1000:.1f} ms of CPU a request of {FLAGS} flags with "
        f"{CONDITIONS} conditions each, "
        f"{result.enabled} of them on; {result.without * 1000:.1f} ms without flags; less than "
        f"{ALLOWED * 1000:g} ms is wanted: "
        f"{'good' if result.good else 'NOT GOOD'}"
    )


@contextlib.contextmanager
def _sandbox(port: int, machine: Machine) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
        seed = Path(folder) / "seed.json"
        seed.write_text(json.dumps(_seed()))
        command = [
            str(Path(sys.executable).parent / "forwarder"),
            "sandbox",
            "--listen",
            f"127.0.0.1:{port}",
            "--seed",
            str(seed),
        ]
        with running(command, machine.target_core, port) as program:
            yield program


def _measure(program: Program, port: int, key: str, requests: int) -> tuple[float, int]:
    before = program.cpu_seconds()
    answer = _ask(port, key, range(requests))
    return (program.cpu_seconds() - before) / requests, sum(
        bool(value) for value in answer["featureFlags"].values()
    )


def _ask(port: int, key: str, visitors: range) -> dict[str, Any]:
    """The answer about the last of these visitors."""
    answer: dict[str, Any] = {}
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    ) as connection:
        for number in visitors:
            body = {
                "api_key": key,
                "distinct_id": f"visitor-{number % (2 * _PERSONS)}",
                "person_properties": visitor_properties(number),
            }
            connection.request(
                "POST", "/decide/?v=3", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200 or answer["errorsWhileComputingFlags"]:
                raise BenchmarkError(f"/decide answers {response.status}: {answer}")
    return answer


def _seed() -> dict[str, Any]:
    persons = [
        {
            "api_key": _WITH,
            "distinct_id": f"visitor-{number}",
            "properties": {"country": "DE", "opened": 7, "since": "2026-01-02"},
        }
        for number in range(_PERSONS)
    ]
    return {
        "projects": [{"api_key": _WITH, **flag_project()}, {"api_key": _WITHOUT}],
        "persons": persons,
    }


def visitor_properties(number: int) -> dict[str, Any]:
    """What a request says of a visitor."""
    return {
        "plan": "pro",
        "seats": number % 50,
        "version": "1.4.2",
        "email": f"visitor-{number}@example.com",
    }


def flag_project() -> dict[str, Any]:
    """The flags and cohorts."""
    return {
        "flags": [_flag(number) for number in range(FLAGS)],
        "cohorts": [_cohort(number) for number in range(1, 11)],
    }


def _flag(number: int) -> dict[str, Any]:
    meets = [
        _property("plan", "exact", ["pro", f"plan {number}"]),
        _property("seats", "lt", 1000 + number),
    ]
    if number % 4 == 0:
        meets.append({"key": "id", "type": "cohort", "operator": "in", "value": 1 + number % 10})
    groups = [
        {"properties": [meets[0], missed], "rollout_percentage": 100} for missed in _missed(number)
    ]
    shares = [("control", 50), ("test", 50)] if number % 3 == 0 else []
    variants = (
        {"variants": [{"key": key, "rollout_percentage": share} for key, share in shares]}
        if shares
        else None
    )
    payloads = {"test": '{"colour": "green"}'} if shares else {"true": "[1, 2, 3]"}
    filters = {
        "groups": [*groups, {"properties": meets, "rollout_percentage": 80}],
        "multivariate": variants,
        "payloads": payloads,
    }
    return {
        "id": number + 1,
        "key": f"flag-{number}",
        "name": f"Flag {number}",
        "active": True,
        "filters": filters,
    }


def _cohort(number: int) -> dict[str, Any]:
    alternatives = [
        {
            "type": "AND",
            "values": [
                _property("email", "icontains", "@nowhere.example"),
                _property("seats", "gt", number),
            ],
        },
        {
            "type": "AND",
            "values": [
                _property("email", "icontains", "@example.com"),
                _property("version", "semver_gte", "1.2.0"),
            ],
        },
    ]
    properties = {"type": "OR", "values": alternatives}
    return {"id": number, "name": f"Cohort {number}", "filters": {"properties": properties}}


def _property(key: str, operator: str, value: Any) -> dict[str, Any]:
    return {"key": key, "operator": operator, "value": value, "type": "person"}


def _missed(number: int) -> list[dict[str, Any]]:
    """What no visitor meets. No two flags have the same conditions, so that nothing is decided for
    several of them.
    """
    return [
        _property("email", "regex", rf"@(nowhere|elsewhere)-{number}\.example$"),
        _property("version", "semver_gt", f"2.0.{number}"),
        _property("plan", "is_not", ["pro", f"plan {number}"]),
        _property("seats", "gte", 1000 + number),
    ]
