"""`forwarder config` as a person types it."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from forwarder.cli.config import app
from forwarder.core.users import user_name
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.filesystems import bind_socket

GOOD = "phc_0123456789hunter2good"
OTHER = "phc_0123456789hunter2gone"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test; no width but a wide one."""
    for name in [name for name in os.environ if name.startswith("FORWARDER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


def run(*arguments: str, **environ: str) -> Result:
    """What a command answers."""
    return CliRunner().invoke(
        app, list(arguments), env={f"FORWARDER_{name}": value for name, value in environ.items()}
    )


@dataclass
class DecideService:
    """A service that answers `/decide` by a table of keys, and keeps what it was asked."""

    answers: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    silent: threading.Event | None = None
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    body: bytes = b'{"featureFlags": {}}'
    url: str = ""

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> int:
        """The status for a question."""
        self.asked.append((path, headers, body))
        if self.silent:
            self.silent.wait(10)
        return self.answers.get(str(body["api_key"]), 401)


@pytest.fixture
def service() -> Iterator[DecideService]:
    """A service on a real socket."""
    service = DecideService({GOOD: 200})

    class DecideHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = service.answer(self.path, dict(self.headers), body)
            self.send_response_only(status)
            for name, value in service.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(service.body)))
            self.end_headers()
            self.wfile.write(service.body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), DecideHandler) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        service.url = f"http://127.0.0.1:{server.server_port}"
        yield service
        if service.silent:
            service.silent.set()
        server.shutdown()
        thread.join()


def online(service: DecideService, *keys: str, **environ: str) -> Result:
    """`check --online` against the service, with these project keys."""
    settings = {"UPSTREAM__URL": service.url, "SOURCES__HTTP__API_KEYS": ",".join(keys), **environ}
    return run("check", "--online", **settings)


def test_check_says_ok(tmp_path: Path) -> None:
    """A configuration that can be used: exit code 0, and what was read."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://h.example.com}\n")
    result = run("check", "--config", str(file), LOG__LEVEL="debug")
    assert (result.exit_code, result.stdout) == (
        0,
        f"OK: {file}, and 1 key from the environment; checked as user {user_name()}\n",
    )


def test_check_hints_at_keys_that_are_not_listed(tmp_path: Path) -> None:
    """A first start in an outage can't tell made-up keys from good ones; that is no error, and
    with a list there is nothing to say.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://h.example.com}\n")
    assert (
        "hint: sources.http.api_keys is empty: in an outage at the first start"
        in run("check", "--config", str(file)).stderr
    )
    assert (
        "verify_keys is off"
        in run("check", "--config", str(file), UPSTREAM__VERIFY_KEYS="false").stderr
    )
    assert (
        run("check", "--elsewhere", "--config", str(file), SOURCES__HTTP__API_KEYS="phc_a").stderr
        == ""
    )


def test_check_tells_everything_on_standard_error(tmp_path: Path) -> None:
    """File, line, key, what and how to repair; exit code 2."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream:\n  url: https://h.example.com\n  timout: 1s\nbatch: {max_age: 5}\n")
    result = run("check", "--config", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        f"{file}:3: upstream.timout: unknown setting\n    did you mean upstream.timeout?"
        in result.stderr
    )
    assert f"{file}:4: batch.max_age: 5 has no unit of time" in result.stderr


def test_check_as_json(tmp_path: Path) -> None:
    """Problems, or hints, each with its place, key and hint; secrets are masked."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://h.example.com}\n")
    result = run("check", "--output", "json", "--config", str(file))
    report = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (report["valid"], report["file"], report["problems"]) == (True, str(file), [])
    assert report["checked_as"] == user_name()
    assert "sources.http.api_keys" in {hint["key"] for hint in report["hints"]}
    file.write_text(f"upstream:\n  url: https://h.example.com\n  {GOOD}: 1s\n")
    result = run("check", "--online", "--output", "json", "--config", str(file))
    assert (result.exit_code, "hunter2" in result.output) == (2, False)
    (problem,) = json.loads(result.stdout)["problems"]
    assert (problem["where"], problem["message"]) == (f"{file}:3", "unknown setting")


def test_a_quiet_check(tmp_path: Path) -> None:
    """Nothing is printed of a configuration that can be used, not even hints."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://h.example.com}\n")
    result = run("check", "--quiet", "--config", str(file))
    assert (result.exit_code, result.output) == (0, "")
    file.write_text("upstream: {}\n")
    result = run("check", "--quiet", "--config", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "upstream.url" in result.stderr


def test_check_counts_variables() -> None:
    """A variable that sets one key of an item is one, and so is one that holds a list of items."""
    item = {
        "SOURCES__KAFKA__0__TOPICS": "x",
        "SOURCES__KAFKA__0__BOOTSTRAP_SERVERS": "h:1",
        "UPSTREAM__URL": "https://h",
    }
    assert "3 keys from the environment" in run("check", "--config", "/dev/null", **item).stdout
    whole = {
        "SOURCES__KAFKA": '[{"topics": "x", "bootstrap_servers": "h:1"}]',
        "UPSTREAM__URL": "https://h",
    }
    assert "2 keys from the environment" in run("check", "--config", "/dev/null", **whole).stdout


def test_check_compiles_mappings(tmp_path: Path) -> None:
    """An expression that jq can't read is reported with its line, and what it
    says; a whole one is fine.
    """
    file = tmp_path / "forwarder.yaml"
    text = """
upstream: {url: https://h.example.com}
sources:
  kafka:
    - {bootstrap_servers: "h:9092", topics: x}
    - name: foreign
      bootstrap_servers: h:9092
      topics: [y]
      format: json
      api_key_header: project
      mapping:
        event: .type
        properties:
          plan: .plan |
"""
    file.write_text(text)
    result = run("check", "--config", str(file))
    assert result.exit_code == 2
    assert (
        f"{file}:13: sources.kafka[1].mapping.properties.plan: jq can't compile .plan |"
        in result.stderr
    )
    file.write_text(text.replace(".plan |", ".plan"))
    assert run("check", "--config", str(file)).exit_code == 0
    result = run("check", "--config", str(file), SOURCES__KAFKA__1__MAPPING__TIMESTAMP=".at |")
    assert (
        "FORWARDER_SOURCES__KAFKA__1__MAPPING__TIMESTAMP: sources.kafka[1].mapping.timestamp: "
        "jq can't compile"
    ) in result.stderr


def test_check_compiles_what_logs_need(tmp_path: Path) -> None:
    """Their mappings, the patterns of their records, and what OTLP's records are mapped by; all
    that is wrong at once.
    """
    file = tmp_path / "forwarder.yaml"
    text = r"""
upstream: {url: https://h.example.com}
sources:
  http:
    otlp:
      mapping: {event: .body, distinct_id: .user}
      api_key: phc_aaaaaaaa
  logs:
    - path: /var/log/app.log
      api_key: phc_aaaaaaaa
      multiline: {start: '^\['}
      mapping:
        event: .type
        distinct_id: .user
"""
    file.write_text(text)
    assert run("check", "--config", str(file)).exit_code == 0
    file.write_text(text.replace(".type", ".type |").replace(".body", ".body |"))
    result = run("check", "--config", str(file))
    assert result.exit_code == 2
    assert f"{file}:13: sources.logs[0].mapping.event: jq can't compile .type |" in result.stderr
    assert f"{file}:6: sources.http.otlp.mapping.event: jq can't compile .body |" in result.stderr
    file.write_text(text.replace(r"'^\['", "'(?u)x'"))
    assert (
        f"{file}:11: sources.logs[0].multiline.start: '(?u)x' is no regular expression"
        in run("check", "--config", str(file)).stderr
    )


def test_check_without_an_upstream_gives_an_example() -> None:
    """The message can be copied."""
    result = run("check", "--config", "/dev/null")
    assert result.exit_code == 2
    assert "FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run" in result.stderr


def test_check_of_a_file_that_is_not_there() -> None:
    """A wrong path is a wrong configuration."""
    result = run("check", "--config", "/nonexistent/forwarder.yaml")
    assert result.exit_code == 2
    assert "/nonexistent/forwarder.yaml: can't be read: No such file or directory" in result.stderr


def test_online_is_content_with_any_answer_without_keys(service: DecideService) -> None:
    """Nothing to ask for but whether someone is there."""
    service.answers[""] = 400
    result = online(service)
    assert (result.exit_code, result.stdout.splitlines()[1]) == (
        0,
        f"{service.url} answers (HTTP 400)",
    )
    ((path, _, body),) = service.asked
    assert (path, body["api_key"]) == ("/decide?v=3", "")


def test_online_is_content_if_every_key_is_known(service: DecideService) -> None:
    """One question a key."""
    service.answers[OTHER] = 200
    result = online(service, GOOD, OTHER)
    assert (result.exit_code, result.stdout.splitlines()[1]) == (
        0,
        f"{service.url} answers and knows 2 of the api_keys",
    )
    assert [body["api_key"] for _, _, body in service.asked] == [GOOD, OTHER]


def test_online_names_an_unknown_key_masked(service: DecideService) -> None:
    """Events of such a key would be lost without a word: exit code 1."""
    result = online(service, GOOD, OTHER)
    assert result.exit_code == 1
    assert result.stdout.startswith("The configuration is valid: ")
    assert "knows 1 of the api_keys\nphc_…gone is unknown to it" in result.stderr
    assert "hunter2" not in result.output


def test_online_as_json(service: DecideService) -> None:
    """Each upstream with its keys' statuses; keys are masked."""
    result = run(
        *("check", "--online", "--output", "json"),
        UPSTREAM__URL=service.url,
        SOURCES__HTTP__API_KEYS=f"{GOOD},{OTHER}",
    )
    (upstream,) = json.loads(result.stdout)["upstreams"]
    assert (result.exit_code, upstream["url"], upstream["reached"]) == (1, service.url, True)
    assert [key["status"] for key in upstream["keys"]] == [200, 401]
    assert "hunter2" not in result.output


@pytest.mark.parametrize("status", [403, 500, 503])
def test_online_cannot_tell_from_other_answers(service: DecideService, status: int) -> None:
    """The service is not well: exit code 3."""
    service.answers[OTHER] = status
    result = online(service, GOOD, OTHER)
    assert result.exit_code == 3
    assert f"phc_…gone can't be checked (HTTP {status})" in result.stderr
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    ("status", "headers", "body", "said", "hint"),
    [
        (
            302,
            {"Location": "/elsewhere"},
            b"",
            "redirects to /elsewhere (HTTP 302)",
            "an address that answers itself",
        ),
        (
            200,
            {"Content-Type": "text/html; charset=utf-8"},
            b"<html>",
            "a web page (HTTP 200)",
            "the address that SDKs send events to",
        ),
        (
            401,
            {"Content-Type": "text/html"},
            b"<html>",
            "a web page (HTTP 401)",
            "the address that SDKs send events to",
        ),
        (
            401,
            {"WWW-Authenticate": "Basic"},
            b"{}",
            "asks for a login (HTTP 401)",
            "upstream.proxy, with user and password",
        ),
        (
            407,
            {"Proxy-Authenticate": "Basic"},
            b"",
            "asks for a login (HTTP 407)",
            "upstream.proxy, with user and password",
        ),
        (
            404,
            {"Content-Type": "application/json"},
            b"{}",
            "has no /decide (HTTP 404)",
            "the address that SDKs send events to",
        ),
        (
            200,
            {"Content-Type": "application/json"},
            b'{"status": "ok"}',
            "it is another API",
            "the address that SDKs send events to",
        ),
        (200, {}, b"", "it is another API", "the address that SDKs send events to"),
    ],
)
def test_online_recognizes_what_is_not_the_service(
    service: DecideService,
    *,
    status: int,
    headers: dict[str, str],
    body: bytes,
    said: str,
    hint: str,
) -> None:
    """A redirect, a website, a login, another API or a wrong path: exit code 3, what answers, and
    what to set; nothing is followed.
    """
    service.answers[GOOD] = status
    service.headers = headers
    service.body = body
    result = online(service, GOOD)
    assert result.exit_code == 3
    assert f"{service.url} " in result.stderr
    assert said in result.stderr
    assert hint in result.stderr
    assert len(service.asked) == 1


def test_online_says_that_the_clock_is_off(service: DecideService) -> None:
    """An hour's difference to the service's own time is a line; that changes no exit code."""
    service.headers["Date"] = "Wed, 25 Nov 2020 12:00:00 GMT"
    result = online(service, GOOD)
    assert result.exit_code == 0
    assert "ahead of the upstream's: events without a timestamp get its time" in result.stdout


def test_online_recognizes_the_other_scheme(service: DecideService, tmp_path: Path) -> None:
    """HTTPS to a port without TLS, and HTTP to one with it."""
    result = online(service, GOOD, UPSTREAM__URL=service.url.replace("http:", "https:"))
    assert (result.exit_code, "can't be reached" in result.stderr) == (3, True)
    assert "this port speaks HTTP without TLS: write http:// in upstream.url" in result.stderr
    issued = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.cert_file, issued.key_file)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        result = run("check", "--online", UPSTREAM__URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert result.exit_code == 3
    assert "this port speaks TLS: write https:// in upstream.url" in result.stderr


def test_online_check_reports_an_unreachable_service() -> None:
    """A refused connection: exit code 3, and what to look at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = run("check", "--online", UPSTREAM__URL=f"http://127.0.0.1:{free.getsockname()[1]}")
    assert result.exit_code == 3
    assert "can't be reached" in result.stderr
    assert "upstream.proxy" in result.stderr


def test_online_check_times_out(service: DecideService) -> None:
    """A service that says nothing is as good as none."""
    service.silent = threading.Event()
    result = online(service, GOOD, UPSTREAM__TIMEOUT="100ms")
    assert result.exit_code == 3
    assert "can't be reached: " in result.stderr


def test_online_goes_through_the_proxy(service: DecideService) -> None:
    """As deliveries will, with the proxy's user and password, which are not shown."""
    proxy = service.url.replace("http://", "http://user:hunter2@")
    result = online(
        service, GOOD, UPSTREAM__URL="http://upstream.invalid/base", UPSTREAM__PROXY=proxy
    )
    assert result.exit_code == 0, result.output
    ((path, headers, _),) = service.asked
    assert path == "http://upstream.invalid/base/decide?v=3"
    assert headers["Proxy-Authorization"].startswith("Basic ")
    assert "hunter2" not in result.output


def test_show_needs_no_upstream() -> None:
    """It shows what there is, from defaults and environment alone."""
    result = run("show", "--config", "/dev/null", BATCH__MAX_AGE="2s")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines() if " max_age" in line] == [
        ["max_age:", "2s", "#", "FORWARDER_BATCH__MAX_AGE"]
    ]


def test_show_as_json() -> None:
    """For programs, with secrets masked."""
    result = run("show", "--output", "json", "--config", "/dev/null", SOURCES__HTTP__API_KEYS=GOOD)
    shown = json.loads(result.stdout)
    assert shown["settings"]["sources"]["http"]["api_keys"] == ["phc_…good"]
    assert shown["origins"]["sources.http.api_keys"] == "FORWARDER_SOURCES__HTTP__API_KEYS"
    assert "hunter2" not in result.output


def test_show_of_a_broken_configuration() -> None:
    """What can't be used can't be shown."""
    result = run("show", "--config", "/dev/null", BATCH__MAX_AGE="soon")
    assert result.exit_code == 2
    assert "FORWARDER_BATCH__MAX_AGE: batch.max_age" in result.stderr


def test_schema_is_a_json_schema() -> None:
    """An editor can use what is printed."""
    result = run("schema")
    assert result.exit_code == 0
    Draft202012Validator.check_schema(json.loads(result.stdout))


@cases("command", ["check", "show", "schema"])
def test_help_has_an_example(command: str) -> None:
    """Everyone copies the example."""
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: forwarder config {command}" in result.stdout


FILES = """
upstream: {{url: 'https://127.0.0.1:9', ca_file: {0}}}
sources:
  http:
    api_keys_file: {0}
    tls: {{cert_file: {0}, key_file: {0}}}
    otlp: {{api_key_file: {0}, mapping: {{event: .e, distinct_id: .u}}}}
  kafka:
    - bootstrap_servers: 'h:1'
      topics: x
      api_key_file: {0}
      security:
        protocol: SASL_SSL
        mechanism: PLAIN
        username: u
        password_file: {0}
        ca_file: {0}
        cert_file: {0}
        key_file: {0}
  logs:
    - path: /var/log/x
      api_key: phc_a
      mapping: {{event: .e, distinct_id: .u, hash: {{field: .u, salt_file: {0}}}}}
rules:
  - {{match: {{distinct_id_file: {0}}}, drop: true}}
  - {{hash: {{field: .u, salt_file: {0}}}}}
"""
"""Everything that a daemon reads by a configured path."""


@cases(
    ("put", "words"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (Path.mkdir, "Is a directory"),
        (bind_socket, "it is a socket, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ],
)
@pytest.mark.timeout(180)
def test_a_path_of_no_file_is_a_mistake_wherever_it_is_set(
    tmp_path: Path, put: Callable[[Path], object], words: str
) -> None:
    """Every key that names one is reported with what is there, and nothing waits for it."""
    odd = tmp_path / "odd"
    put(odd)
    file = tmp_path / "forwarder.yaml"
    file.write_text(FILES.format(odd))
    done = run("check", "--elsewhere", "--config", str(file))
    assert done.exit_code == 2
    lines = done.output.splitlines()
    named = {
        key
        for line in lines
        if words in line and (key := line.removeprefix(f"{file}:").partition(": ")[2].split(":")[0])
    }
    assert {key for key in named if key.endswith("_file")} == {
        "upstream.ca_file",
        *[f"sources.http.{key}" for key in ("api_keys_file", "otlp.api_key_file")],
        *[f"sources.http.tls.{key}" for key in ("cert_file", "key_file")],
        "sources.kafka[0].api_key_file",
        *[
            f"sources.kafka[0].security.{key}"
            for key in ("password_file", "ca_file", "cert_file", "key_file")
        ],
        "sources.logs[0].mapping.hash.salt_file",
        "rules[0].match.distinct_id_file",
    }


def test_a_configuration_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As of `--config <(sops -d …)`; an empty one is a writer that failed, not the defaults."""
    for text, status, words in (
        ("upstream: {url: 'http://127.0.0.1:9'}", 0, "OK"),
        ("", 2, "nothing came through the pipe"),
    ):
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
        done = run("check", "--elsewhere", "--config", f"/dev/fd/{reader}")
        os.close(reader)
        assert (done.exit_code, words in done.output) == (status, True)


def test_check_says_which_limit_of_memory_full_buffers_need() -> None:
    """A hint with the figures to set, and the exit code of a configuration that can be used."""
    result = run(
        "check",
        "--elsewhere",
        UPSTREAM__URL="https://us.i.example.com",
        LIMITS__MEMORY="128MiB",
    )
    assert result.exit_code == 0
    assert "hint: buffer.max_bytes doesn't fit: full buffers take 64MiB of memory" in result.output
    assert "raise limits.memory to 178MiB, or lower buffer.max_bytes to 19MiB" in result.output
