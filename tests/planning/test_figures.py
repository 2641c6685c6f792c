"""What is planned with is what docs/maintainers/figures.md says was measured."""

from __future__ import annotations

import re

from forwarder.planning.figures import BODY_EVENTS, HTTP, IMPORTS, KAFKA, OTHER
from forwarder.sources.imports.formats.catalog import FORMATS
from forwarder.telemetry.readable import plural
from tests.support.documents import text_of

SECTION = text_of("figures").partition("\n## For planning\n")[2].partition("\n## ")[0]


def rows(first: str) -> dict[str, list[int]]:
    """The numbers of the table whose head begins with `first`, by the words of each row."""
    _, head, rest = SECTION.partition(f"\n| {first} |")
    assert head, first
    lines = [line for line in rest.partition("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: [int(re.sub(r"\D", "", cell)) for cell in numbers] for name, *numbers in cells}


def test_http() -> None:
    """Events over HTTP, by bodies."""
    assert rows("Bodies of") == {str(kind): list(rates) for kind, rates in HTTP.items()}
    assert (
        f"| Bodies of | {' | '.join(plural(count, 'event') for count in BODY_EVENTS)} |".replace(
            ",", ""
        )
        in SECTION
    )


def test_kafka() -> None:
    """Records of a topic."""
    assert rows("From Kafka") == {str(kind): [rate] for kind, rate in KAFKA.items()}


def test_imports() -> None:
    """Formats of imports: each but profiles, which are persons rather than events."""
    assert rows("Format") == {form: [rate] for form, rate in IMPORTS.items()}
    with_rules_by_name = {form.name for form in FORMATS if form.mapping_file}
    assert (
        set(IMPORTS) == {form.name for form in FORMATS} - {"mixpanel-profiles"} - with_rules_by_name
    )


def test_the_rest() -> None:
    """Sizes, memory, and what is beside the load."""
    assert rows("Other") == {str(quantity): [value] for quantity, value in OTHER.items()}
