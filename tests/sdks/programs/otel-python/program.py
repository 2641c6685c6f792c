"""An application that logs by OpenTelemetry's SDK for Python, and exports what it logs by OTLP
over HTTP.

    python program.py --host http://127.0.0.1:8320 --count 1000 --journal sent.jsonl [--mode gzip]

Each log record is a line of the journal. The program ends when the SDK says that
everything was exported.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

MODES = {
    "protobuf": Compression.NoCompression,
    "gzip": Compression.Gzip,
    "deflate": Compression.Deflate,
}


def main() -> None:
    """Log, and wait until it is exported."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--key")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--mode", choices=MODES, default="protobuf")
    options = parser.parse_args()

    exporter = OTLPLogExporter(
        endpoint=f"{options.host}/v1/logs", compression=MODES[options.mode], timeout=40
    )
    provider = LoggerProvider(
        resource=Resource.create({"service.name": "shop", "service.version": "1.2.3"})
    )
    provider.add_log_record_processor(
        BatchLogRecordProcessor(exporter, schedule_delay_millis=100, export_timeout_millis=40_000)
    )
    logger = provider.get_logger("shop.orders", "4.5")
    with options.journal.open("w") as journal:
        for n in range(options.count):
            person = f"person-{n % 7}"
            attributes = {
                "n": n,
                "big": 2**60 + n,
                "share": 0.5,
                "paid": n % 2 == 0,
                "tags": ["a", "ü"],
            }
            logger.emit(
                LogRecord(
                    timestamp=time.time_ns(),
                    severity_number=SeverityNumber.INFO,
                    severity_text="INFO",
                    body={"text": f"order {n} 茶", "lines": [1, {"sku": "x"}]},
                    attributes={"user.id": person, **attributes},
                    event_name="order placed",
                )
            )
            journal.write(
                json.dumps({"event": "order placed", "distinct_id": person, "n": n}) + "\n"
            )
    if not provider.force_flush(40_000):
        raise SystemExit("the SDK gave up")
    provider.shutdown()


main()
