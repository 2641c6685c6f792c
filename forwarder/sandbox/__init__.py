"""The analytics service in small: one process on SQLite that accepts events, keeps every arrival
and shows what it holds.

It is the other end of the demo and of the end-to-end tests, so it shares no decoder with the
forwarder: an oracle with the same code would repeat the same mistakes.
"""

from forwarder.sandbox.app import Sandbox, SandboxOptions

__all__ = ["Sandbox", "SandboxOptions"]
