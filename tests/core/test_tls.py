"""The certificates of servers are checked the same on every Python."""

from __future__ import annotations

import ast
import ssl
from pathlib import Path

import pytest

from forwarder.core.tls import client_context
from tests.support.cases import cases
from tests.support.certificates import Authority
from tests.support.repository import name, trees

NEWER_DEFAULTS = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
"""What Python 3.13 began to set."""


@cases("own_authority", [False, True])
def test_no_default_of_the_interpreter_decides_whom_to_trust(
    own_authority: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags that a Python sets by default are as if it did not; names are still checked."""
    create = ssl.create_default_context

    def create_as_newer(*, cafile: Path | None = None) -> ssl.SSLContext:
        context = create(cafile=cafile)
        context.verify_flags |= NEWER_DEFAULTS
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_as_newer)
    context = client_context(Authority(tmp_path).ca_file if own_authority else None)
    assert not context.verify_flags & NEWER_DEFAULTS
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_every_client_checks_certificates_this_way() -> None:
    """Nothing else in the product creates a client's context from the interpreter's defaults."""
    others = [
        f"{name(path)}:{node.lineno}"
        for path, tree in trees("forwarder", "create_default_context", "HTTPSConnection")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("create_default_context", "HTTPSConnection"))
        and "CLIENT_AUTH" not in (said := ast.unparse(node))
        and not any(call in said for call in ("client_context()", "https_context()"))
        and name(path) != "forwarder/core/tls.py"
    ]
    assert others == []
