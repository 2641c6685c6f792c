"""Workers' processes that do nothing but say what a test wants them to: as cheap as an
interpreter, and as real as their signals.

`FAKE_WORKER` in their environment is a JSON object from a worker's number to how it behaves; `{}`
stands for one that just works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from forwarder.admin.status import document
from forwarder.telemetry.snapshot import Snapshot
from forwarder.workers.worker_process import Launch

_SCRIPT: Final = """
import json, os, signal, socket, sys

given = json.loads(os.environ["_FORWARDER_WORKER"])
number = str(given["role"]["number"])
how = json.loads(os.environ["FAKE_WORKER"]).get(number, {})
line = socket.socket(fileno=given["channel"])

def say(kind, body):
    line.sendall(kind + len(body).to_bytes(4, "big") + body)

if "log" in how:
    with open(how["log"], "a") as log:
        log.write(json.dumps(given["role"]) + "\\n")
if "fails" in how:
    say(b"F", json.dumps({"message": how["fails"], "hint": "mend it"}).encode())
    sys.exit(2)
if "exits" in how:
    sys.exit(how["exits"])
shown = json.dumps(how["shown"]).encode()
if "deaf" in how:
    signal.pause()
if "late" not in how:
    say(b"S", shown)
if "input" in how and not sys.stdin.read():
    say(b"I", b"")
if not given["role"]["listens"] and "idle" not in how:
    say(b"E", shown)
    sys.exit(0)
while head := line.recv(3):
    text = line.recv(int.from_bytes(head[1:], "big"))
    if head[:1] == b"p":
        if not how.get("mute"):
            say(b"=", b"!")
    elif head[:1] == b"?":
        if not how.get("mute"):
            say(b"=", shown)
    elif head[:1] == b"f":
        say(b"=", json.dumps([{"lane": "lane", "where": "worker " + number, "since": \
1.0}]).encode())
    elif head[:1] == b"t":
        say(b"=", json.dumps({"events": [json.loads(text)], "skipped": 2, "lost": \
int(number)}).encode())
    elif head[:1] == b"r":
        shown = json.dumps({**how["shown"], "warnings": ["reloaded"]}).encode()
    elif head[:1] in how.get("ends", "si").encode():
        say(b"E", shown)
        sys.exit(how.get("code", 0))
"""


def fake(shown: Snapshot, **workers: Mapping[str, Any]) -> Launch:
    """How to start such processes: each shows `shown`, unless `w<number>` says `shown`,
    `fails`, `exits`, `code`, `ends` (the commands that end it), `mute`, `input` (it reads standard
    input, which is empty, to its end), `late` (it never says that it works), `deaf` (it does
    nothing at all), `idle` or `log` (a file for its role).
    """
    behaviour = {str(number): {"shown": _plain(shown)} for number in range(10)}
    for name, how in workers.items():
        reported = {
            key: _plain(value) if isinstance(value, Snapshot) else value
            for key, value in how.items()
        }
        behaviour[name.removeprefix("w")].update(reported)
    return Launch([sys.executable, "-S", "-c", _SCRIPT], {"FAKE_WORKER": json.dumps(behaviour)})


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(document(snapshot))))
