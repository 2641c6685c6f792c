"""Plain English: phrases that have a standard form in the field stand nowhere in help, messages,
documents, and what tests say about themselves.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from tests.support.repository import ROOT, files, name, source_texts

INSTEAD: Final = {
    r"told": "reported, said",
    r"in earnest": "in production",
    r"at hand": "available, pending",
    r"(?:go|goes|going|gone|went) on(?! to)": "resume, continue, be sent",
    r"mend(?:s|ed|ing)?": "fix, repair, correct",
    r"(?:let|lets|letting) in": "authenticate, accept",
    r"turn(?:s|ed|ing)? away": "reject",
    r"puts? \w+ through": "simulate",
    r"under way": "in progress, in flight",
    r"on (?:its|their) way": "in flight",
    r"moved? aside": "quarantine",
    r"nobody": "no one by its role: no client, no operator",
    r"somebody": "the role: an operator, a client",
    r"whoever": "the role: the user, the sender",
    r"judg(?:e|es|ed|ing)": "validate, check",
    r"(?:held|hold|holds) against": "compare with, reconcile",
    r"(?:throw|throws|threw|thrown) away": "discard",
    r"condemn(?:s|ed)?": "dead-letter",
    r"carr(?:y|ies|ied) on": "resume, continue",
    r"lets? go of": "release, discard",
    r"has its say": "decides",
    r"out of hand": "immediately",
    r"(?:isn't|aren't) any more": "no longer exists",
    r"on purpose": "deliberately",
    r"in (?:the|its|their) place of": "instead of",
    r"(?<!there )is no (?:setting|uuid|time|key|number|rate|name|file|directory)": (
        "is not a …, unknown …"
    ),
    r"things? to mend": "errors",
    r"everybody": "every person, all users",
    r"in vain": "without a result",
    r"(?:is|are) wanted": "is required, needed",
    r"patience": "timeout, retry, backoff",
    r"for ever": "permanently, indefinitely",
    r"takes? the place of": "replaces",
    r"of (?:its|their) own accord": "by itself, automatically",
    r"the other way round": "the reverse",
    r"once and for all": "permanently",
    r"turn(?:s|ed)? down": "reject",
    r"parcels?": "batch",
    r"in (?:the )?long run": "eventually",
    r"(?:look|looks|looked) at first": "preflight",
}
"""Patterns of phrases, and what the field says."""
PHRASES: Final = re.compile(r"\b(?:" + "|".join(INSTEAD) + r")\b", re.IGNORECASE)

SHOWN: Final = (
    (".md", ""),
    (".yaml", "config"),
    (".yaml", "deploy"),
    (".yaml", "examples"),
    (".txt", "deploy"),
    (".js", "forwarder"),
    (".html", "forwarder"),
)
"""How names of files end that people read, and where these are: documents,
examples, manifests, pages.
"""
_COMMENT: Final = re.compile(r"(?<!:)//.*")
"""What a page's script says to those who read it: that isn't shown."""
AS_THEY_WERE: Final = ("interface.md",)
"""In the words of the service."""
FILE_KEYS: Final = frozenset({"mended"})
"""Keys of files that exist, and of the JSON that says the same."""
DOCUMENTS: Final = [
    path
    for suffix, folder in SHOWN
    for path in files(suffix, folder)
    if path.name not in AS_THEY_WERE
]


def test_help_and_messages_are_plain_english() -> None:
    """No string of the program, and no docstring of a command, has one of the phrases."""
    commands = ROOT / "forwarder" / "cli"
    problems = [
        f"{name(path)}:{line}: {phrase[0]!r} in {text[:80]!r}"
        for path, line, text, is_statement, _ in source_texts()
        if text not in FILE_KEYS and (not is_statement or path.is_relative_to(commands))
        for phrase in PHRASES.finditer(text)
    ]
    assert problems == []


def test_documents_are_plain_english() -> None:
    """No document, no text of a page, and no comment of an example or a
    manifest has one of the phrases.
    """
    problems = [
        f"{name(path)}:{line}: {phrase[0]!r}"
        for path in DOCUMENTS
        for line, text in enumerate(path.read_text().splitlines(), 1)
        for phrase in PHRASES.finditer(_COMMENT.sub("", text) if path.suffix == ".js" else text)
    ]
    assert problems == []


NAMES_OF_TESTS: Final = re.compile(f"{PHRASES.pattern}|\\btaken\\b", re.IGNORECASE)
_TITLE: Final = re.compile(r"def (test_\w+)")
ELSEWHERE: Final = "tests/simulation"
"""Tests that follow later."""


def test_docstrings_of_tests_are_plain_english() -> None:
    """None has one of the phrases, except as code."""
    problems: list[str] = []
    for path in files(".py", "tests"):
        text = path.read_text("utf-8")
        if name(path).startswith(ELSEWHERE) or not PHRASES.search(" ".join(text.split())):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                words = re.sub(r"`[^`]*`", "", ast.get_docstring(node) or "")
                phrases = PHRASES.findall(" ".join(words.split()))
                problems += [f"{name(path)}: {phrase!r}" for phrase in phrases]
    assert problems == []


def test_titles_of_tests_are_plain_english() -> None:
    """None has one of the phrases."""
    assert [
        f"{name(path)}: {title}"
        for path in files(".py", "tests")
        if not name(path).startswith(ELSEWHERE)
        for title in _TITLE.findall(path.read_text("utf-8"))
        if NAMES_OF_TESTS.search(title.replace("_", " "))
    ] == []


_NAMELESS: Final = re.compile(r"\bfor (?:\w+, )*each(?:, \w+)* in |\blambda each\b")


def test_a_loop_variable_is_named_for_what_it_is() -> None:
    """None is called `each`, which says nothing of it."""
    assert [
        f"{name(path)}:{number}"
        for folder in ("forwarder", "benchmarks", "tests")
        for path in files(".py", folder)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "each" in line and _NAMELESS.search(line)
    ] == []
