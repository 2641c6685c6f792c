"""Users, as other resources have them embedded. There is no endpoint for them: a seed makes them."""

from __future__ import annotations

import json
import sqlite3

from forwarder.contract.resources import User


def embedded_user(database: sqlite3.Connection, user: int) -> User:
    """A user by number. There must be one."""
    row = database.execute(
        "SELECT id, uuid, distinct_id, first_name, last_name, email, is_email_verified, hedgehog_config, role_at_organization"
        " FROM users WHERE id = ?",
        (user,),
    ).fetchone()
    number, uuid, distinct_id, first_name, last_name, email, is_email_verified, hedgehog_config, role_at_organization = row
    return User(
        id=number,
        uuid=uuid,
        distinct_id=distinct_id,
        first_name=first_name,
        last_name=last_name,
        email=email,
        is_email_verified=bool(is_email_verified),
        hedgehog_config=json.loads(hedgehog_config),
        role_at_organization=role_at_organization,
    )
