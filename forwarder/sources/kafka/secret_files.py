"""Secrets, from the configuration or from files that are read again each time, and what is said when one can't be had."""

from __future__ import annotations

from pathlib import Path

from aiokafka.errors import KafkaError

from forwarder.core.errors import ForwarderError


class SecurityError(ForwarderError, KafkaError):  # type: ignore[misc]  # aiokafka's is untyped
    """What is needed to connect isn't there. `key` is the setting, below `security`. It is one of Kafka's errors, too, so that a client
    in mid-life takes it for a failed connection and tries again, instead of losing the task that met it."""

    code = "kafka_security"

    def __init__(self, key: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = f"security.{key}"

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def read_secret(key: str, value: str | None, file: Path | None) -> str:
    """The secret `key`: what is in `file` now, without the line end that editors add, else `value`. Raises `SecurityError`."""
    if file is None:
        if not value:
            raise SecurityError(key, f"it is needed here, or `{key}_file`")
        return value
    secret = read_file(f"{key}_file", file)
    return secret.removesuffix("\n").removesuffix("\r")


def read_file(key: str, file: Path) -> str:
    """The text in `file`, which isn't empty. Raises `SecurityError`, without repeating any of it."""
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise SecurityError(key, f"{file} isn't text in UTF-8") from None  # the error would hold the bytes
    except (OSError, ValueError) as error:
        raise SecurityError(key, f"{file} can't be read: {getattr(error, 'strerror', None) or 'its path is not one'}") from error
    if not text.strip():
        raise SecurityError(key, f"{file} is empty")
    return text
