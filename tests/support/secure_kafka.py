"""A broker with a listener for each way to authenticate, and rules about who may read what.

Fixtures, registered in tests/conftest.py: `secure_kafka`, one broker for each process that runs
such tests, and `access`, the settings that let one in. Its user may read everything but in the
group `FORBIDDEN_GROUP` and of the topics `FORBIDDEN_TOPIC` and `VISIBLE_TOPIC`.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.protocol.admin import CreateAclsRequest

from forwarder.demo.broker import Broker, BrokerListener, BrokerOptions
from forwarder.sources.kafka.security import Security
from tests.support.certificates import Authority, Certificate
from tests.support.kafka import EXTERNAL, admin, create_topic

USER: Final = "reader"
PASSWORD: Final = "pä ss=w'örd "
"""With whatever somebody could forget to escape or strip, but for a comma and a quote, which
Kafka's storage tool doesn't take.
"""

FORBIDDEN_GROUP: Final = "forbidden-group"
FORBIDDEN_TOPIC: Final = "forbidden-topic"
VISIBLE_TOPIC: Final = "visible-topic"
"""It may be seen, and not read."""
TOPIC: Final = "events"
"""It holds nothing."""
ALL: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
MODES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "TLS": ("TLS", {"protocol": "SSL"}),
    "mutual TLS": ("MUTUAL", {"protocol": "SSL", "certificate": True}),
    "PLAIN over TLS": ("SECURE", {"protocol": "SASL_SSL", "mechanism": "PLAIN"}),
    "SCRAM-SHA-256 over TLS": ("SECURE", {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256"}),
    "SCRAM-SHA-512 over TLS": ("SECURE", {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512"}),
    "OAUTHBEARER over TLS": ("SECURE", {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"}),
    "PLAIN": ("LOGIN", {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"}),
    "SCRAM-SHA-256": ("LOGIN", {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-256"}),
    "SCRAM-SHA-512": ("LOGIN", {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512"}),
    "OAUTHBEARER": ("LOGIN", {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER"}),
}
"""The listener, and what `Access.security` is told."""
_MODULE: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class SecureKafka:
    """The broker, and what is needed to authenticate."""

    broker: Broker
    authority: Authority
    client: Certificate
    """By the authority that the broker trusts."""

    @property
    def bootstrap(self) -> str:
        """Of the listener that asks for nothing, for what a test prepares."""
        return self.broker.bootstrap

    def address(self, listener: str) -> str:
        """PLAIN, TLS, MUTUAL, LOGIN (SASL_PLAINTEXT), SECURE (SASL_SSL), SCRAMONLY (SASL_SSL),
        EXPIRED (TLS), STRANGER (TLS), FARAWAY (which says that it is where no one listens).
        """
        return self.broker.address(listener)


class Access:
    """The right settings for a listener, and files for them."""

    def __init__(self, kafka: SecureKafka, folder: Path) -> None:
        self.kafka = kafka
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.token_file = folder / "token"
        self.token_file.write_text(token() + "\n")

    def security(
        self, *, protocol: str, mechanism: str | None = None, certificate: bool = False
    ) -> Security:
        """Settings that let one in."""
        security = Security(protocol=protocol, mechanism=mechanism)
        if protocol.endswith("SSL"):
            security = dataclasses.replace(security, ca_file=self.kafka.authority.ca_file)
        if certificate:
            security = dataclasses.replace(
                security, cert_file=self.kafka.client.cert_file, key_file=self.kafka.client.key_file
            )
        if mechanism == "OAUTHBEARER":
            return dataclasses.replace(security, token_file=self.token_file)
        return (
            dataclasses.replace(security, username=USER, password_file=self.password_file)
            if mechanism
            else security
        )

    def mode(self, name: str) -> tuple[str, Security]:
        """Address and settings of one of `MODES`."""
        listener, settings = MODES[name]
        return self.kafka.address(listener), self.security(**settings)

    @staticmethod
    def section(security: Security) -> dict[str, str]:
        """Settings as a configuration has them."""
        return {
            key: str(value)
            for key, value in dataclasses.asdict(security).items()
            if value is not None
        }


@pytest.fixture
def access(secure_kafka: SecureKafka, tmp_path: Path) -> Access:
    """Whatever is needed to authenticate."""
    return Access(secure_kafka, tmp_path)


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One broker for this process."""
    if os.environ.get(EXTERNAL):
        pytest.skip(f"the broker at {EXTERNAL} has other users and certificates")
    folder = tmp_path_factory.mktemp("secure-kafka")
    authority = Authority(folder)
    with Broker(_options(authority, folder)) as broker:
        asyncio.run(_prepare(broker.bootstrap))
        yield SecureKafka(broker, authority, authority.issue("client"))


def token(sub: str = USER, life: float = 3600.0) -> str:
    """What the broker takes for a token: not signed at all, as is enough between it and a test."""
    claims = {"sub": sub, "iat": time.time() - 1, "exp": time.time() + life}
    return ".".join([_base64({"alg": "none"}), _base64(claims), ""])


def _base64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _options(authority: Authority, folder: Path) -> BrokerOptions:
    usual = _keystore(authority.issue("broker"), folder / "broker.pem")
    expired = _keystore(
        authority.issue("expired", life=-datetime.timedelta(days=1)), folder / "expired.pem"
    )
    stranger = _keystore(authority.issue("elsewhere.example", local=False), folder / "stranger.pem")
    clients = {
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca_file),
    }
    listeners = (
        BrokerListener("PLAIN"),
        BrokerListener("TLS", "SSL", usual),
        BrokerListener("MUTUAL", "SSL", usual | clients),
        BrokerListener("LOGIN", "SASL_PLAINTEXT", _login(ALL)),
        BrokerListener("SECURE", "SASL_SSL", usual | _login(ALL)),
        BrokerListener("SCRAMONLY", "SASL_SSL", usual | _login(("SCRAM-SHA-256", "SCRAM-SHA-512"))),
        BrokerListener("FARAWAY", advertised="127.0.0.1:1"),
        BrokerListener("EXPIRED", "SSL", expired),
        BrokerListener("STRANGER", "SSL", stranger),
    )
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": ",".join(ALL),
    }
    users = tuple(f'SCRAM-SHA-{size}=[name="{USER}",password="{PASSWORD}"]' for size in (256, 512))
    return BrokerOptions(listeners, rules, users)


def _keystore(certificate: Certificate, file: Path) -> dict[str, str]:
    file.write_bytes(certificate.key_file.read_bytes() + certificate.cert_file.read_bytes())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}


def _login(mechanisms: tuple[str, ...]) -> dict[str, str]:
    modules = {
        "PLAIN": f'{_MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "SCRAM-SHA-256": f"{_MODULE}.scram.ScramLoginModule required;",
        "SCRAM-SHA-512": f"{_MODULE}.scram.ScramLoginModule required;",
        "OAUTHBEARER": (
            f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    reported = {
        f"{mechanism.lower()}.sasl.jaas.config": modules[mechanism] for mechanism in mechanisms
    }
    return reported | {"sasl.enabled.mechanisms": ",".join(mechanisms)}


async def _prepare(bootstrap: str) -> None:
    """No one but `somebody` may use the forbidden ones: where there is a rule, who isn't named in
    it is refused.
    """
    await create_topic(bootstrap, FORBIDDEN_TOPIC)
    await create_topic(bootstrap, VISIBLE_TOPIC)
    await create_topic(bootstrap, TOPIC)
    group = 3
    topic = 2
    literal = 3
    read = 3
    describe = 8
    allow = 3
    rules = (
        (group, FORBIDDEN_GROUP, "somebody", read),
        (topic, FORBIDDEN_TOPIC, "somebody", read),
        (topic, VISIBLE_TOPIC, USER, describe),
    )
    async with admin(bootstrap) as client:
        for kind, name, user, what in rules:
            answer = await client._send_to_controller(
                CreateAclsRequest(kind, name, literal, f"User:{user}", "*", what, allow)
            )
            assert answer.creation_responses[0][0] == 0, answer
