"""first-party.md: its configurations say what forwarder serves. nginx and Caddy run with
theirs in tests/sdks/test_first_party.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from forwarder.config.load import load_settings
from forwarder.sources.http.passthrough.allowed import PassedRoutes
from forwarder.sources.http.protocol.routes import Routes
from tests.sdks.toolchains import require
from tests.support.documents import page, snippet, text_of

FILE = page("first-party")
[OURS, TRAEFIK] = re.findall(r"^```yaml\n(.*?)^```", text_of(FILE), re.DOTALL | re.MULTILINE)
[INIT, NEXT] = re.findall(r"^```js\n(.*?)^```", text_of(FILE), re.DOTALL | re.MULTILINE)
ADDRESS = "http://127.0.0.1:8320"


def loaded(folder: Path) -> tuple[str, str]:
    """The prefix that the document configures, and where forwarder listens then."""
    (folder / "forwarder.yaml").write_text(OURS, "utf-8")
    http = load_settings(folder / "forwarder.yaml", {}).settings.sources.http
    assert [str(network) for network in http.trusted_proxies] == ["127.0.0.1/32"]
    [prefix] = http.path_prefix
    return prefix, f"http://{http.listen}"


def test_its_settings_serve_its_paths(tmp_path: Path) -> None:
    """With them the paths in the text are served below the prefix, at the
    address that all proxies have.
    """
    prefix, address = loaded(tmp_path)
    assert address == ADDRESS
    routes = Routes([prefix])
    allowed = PassedRoutes()
    assert f"api_host: '{prefix}'" in INIT
    named = {
        span.removesuffix("…") for span in re.findall(rf"`({prefix}/[a-z][^`]*)`", text_of(FILE))
    }
    assert {f"{prefix}{path}" for path in ("/e/", "/flags/", "/array/", "/static/", "/s/")} <= named
    for path in (
        f"{name}x.js".encode() if name.endswith(("array/", "static/")) else name.encode()
        for name in named
    ):
        assert (
            routes.find(path)[0] is not routes.other
            or allowed.find(routes.target(path)) is not None
        )
    for language in ("nginx", "caddyfile"):
        assert f"{prefix}/" in snippet(FILE, language)
        assert address.removeprefix("http://") in snippet(FILE, language)


def test_traefik(tmp_path: Path) -> None:
    """Its router asks for the prefix as a whole segment, and its service is forwarder."""
    prefix, address = loaded(tmp_path)
    http = yaml.safe_load(TRAEFIK)["http"]
    [router] = http["routers"].values()
    assert f"PathPrefix(`{prefix}/`)" in router["rule"]
    assert "middlewares" not in router
    assert http["services"][router["service"]]["loadBalancer"]["servers"] == [{"url": address}]


def test_next_js(tmp_path: Path) -> None:
    """Its rewrites lead to the same path of forwarder, and slashes at the end are left alone.
    JavaScript itself reads them.
    """
    require("node")
    prefix, address = loaded(tmp_path)
    (tmp_path / "next.config.js").write_text(NEXT, "utf-8")
    ask = (
        "const c = require('./next.config.js'); c.rewrites().then(r => "
        "console.log(JSON.stringify([c.skipTrailingSlashRedirect, r])))"
    )
    reported = subprocess.run(
        ["node", "-e", ask], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(reported) == [
        True,
        [{"source": f"{prefix}/:path*", "destination": f"{address}{prefix}/:path*"}],
    ]
