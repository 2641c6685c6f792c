"""The metrics and labels that a PromQL expression speaks of, as a parser of the language
understands it.
"""

from __future__ import annotations

from typing import Any

import pytest


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric that is selected, with the labels that are matched. Skips the test without the
    parser; fails if this is no PromQL.
    """
    selected = []
    for node in _nodes(expression):
        selector = getattr(node, "vector_selector", node)
        if type(selector).__name__ == "VectorSelector":
            matchers = selector.matchers
            selected.append(
                (
                    str(selector.name),
                    {str(matcher.name) for matcher in getattr(matchers, "matchers", matchers)},
                )
            )
    return selected


def grouping_labels(expression: str) -> set[str]:
    """The labels that aggregations and matchings name (`by`, `on`, …)."""
    labels: set[str] = set()
    for node in _nodes(expression):
        modifier = getattr(node, "modifier", None)
        if modifier is None:
            continue
        labels |= {str(label) for label in getattr(modifier, "labels", ())}
        matching = getattr(modifier, "matching", None)
        labels |= (
            {str(label) for label in getattr(matching, "labels", ())}
            if matching is not None
            else set()
        )
    return labels


def _nodes(expression: str) -> list[Any]:
    parser = pytest.importorskip("promql_parser", reason="promql-parser isn't installed")
    nodes: list[Any] = []
    parser.walk(parser.parse(expression), nodes.append)
    return nodes
