"""The choice of cases."""

from __future__ import annotations

from benchmarks.cases import BACKLOG, CASES, MEMORY, select


def test_without_a_choice_everything_is_measured() -> None:
    """No pattern means all cases; their names are different."""
    cases, memory = select([])
    assert (cases, memory) == (list(CASES), [*MEMORY, *BACKLOG])
    assert len({case.name for case in cases}) == len(cases)


def test_an_ordered_case_brings_the_one_it_is_compared_with() -> None:
    """Choosing an ordered case measures the same case without order, too."""
    cases, memory = select(["sdk-50-none-ordered"])
    assert [case.name for case in cases] == ["sdk-50-none", "sdk-50-none-ordered"]
    assert memory == []


def test_a_case_on_disk_brings_the_one_in_memory() -> None:
    """Choosing a case with the disk buffer measures the same case with the memory buffer, too."""
    assert [case.name for case in select(["stamped-1-gzip-disk"])[0]] == [
        "stamped-1-gzip",
        "stamped-1-gzip-disk",
    ]


def test_nginx_brings_the_cases_of_the_same_events() -> None:
    """Choosing nginx measures forwarder with the same bodies, too, which nginx is compared with."""
    cases, _ = select(["nginx-*"])
    assert [case.name for case in cases if not case.proxied] == [
        "stamped-1-none",
        "stamped-50-none",
        "stamped-1000-none",
    ]
    assert {case.name: case.base for case in cases if case.proxied} == {
        "nginx-1": "stamped-1-none",
        "nginx-50": "stamped-50-none",
        "nginx-1000": "stamped-1000-none",
    }


def test_patterns_choose_among_memory_too() -> None:
    """`memory*` means every measurement of memory, and no throughput."""
    assert select(["memory*"]) == ([], list(MEMORY))
