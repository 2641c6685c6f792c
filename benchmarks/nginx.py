"""nginx as a proxy before the sink, as it is measured beside forwarder: on one core, without a
log, with connections that are kept open.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.processes import BenchmarkError, Program, free_port, running

MISSING: Final = "nginx isn't installed (Debian: apt-get install nginx-light)"
_PATH: Final = "/usr/sbin:/usr/local/sbin"
"""Where it is where these folders are on the path of the administrator alone."""
_CONFIGURATION: Final = """
daemon off; master_process off; pid {home}/pid; error_log {home}/errors;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; client_max_body_size 20m; \
client_body_buffer_size 4m;
  client_body_temp_path {home}/1; proxy_temp_path {home}/2; fastcgi_temp_path {home}/3; \
uwsgi_temp_path {home}/4; scgi_temp_path {home}/5;
  upstream service {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_http_version 1.1; proxy_set_header Connection ""; proxy_pass \
http://service; }}
  }}
}}
"""


def find_nginx() -> str | None:
    """The program, if it is installed."""
    return shutil.which("nginx") or shutil.which("nginx", path=_PATH)


@contextlib.contextmanager
def nginx(upstream_port: int, core: int) -> Iterator[tuple[Program, int]]:
    """Run nginx before the sink until the block ends: the program, and where it listens. Raises
    `BenchmarkError` if it isn't installed.
    """
    command = find_nginx()
    if command is None:
        raise BenchmarkError(MISSING)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as home:
        configuration = Path(home) / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(home=home, upstream=upstream_port, port=port)
        )
        with running(
            [command, "-p", home, "-e", f"{home}/errors", "-c", str(configuration)], core, port
        ) as program:
            yield program, port
