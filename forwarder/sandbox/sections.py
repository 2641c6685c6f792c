"""What the sections of a seed are made of."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.judging import checked_token

NAMESPACE: Final = UUID("0d6a2ff4-6d1c-5a52-9a43-5b0c3f7d7f70")
"""Of the ids that follow from what an entry says."""


class Section(BaseModel):
    """An entry of a seed: what isn't known, or of another type, is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _check_key(api_key: str) -> str:
    try:
        return checked_token(api_key)
    except Refusal as refusal:
        raise ValueError(f"this is {refusal.message}") from None


Key: TypeAlias = Annotated[str, AfterValidator(_check_key)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"\S")]
Time: TypeAlias = Annotated[AwareDatetime, Field(strict=False)]
Id: TypeAlias = Annotated[UUID, Field(strict=False)]
