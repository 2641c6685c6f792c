"""What a flag or a cohort from a person may have: the members of the service's own form."""

from __future__ import annotations

from forwarder.contract.flag_form import COHORT, FLAG, find_unknown_member
from forwarder.sandbox.flags.definitions import InvalidDefinition
from forwarder.sandbox.flags.stored import DefinitionKind

_FORMS = {DefinitionKind.FLAG: FLAG, DefinitionKind.COHORT: COHORT}


def reject_unknown_members(kind: DefinitionKind, content: object) -> None:
    """Raise `InvalidDefinition` for a member that the form of its kind doesn't have: a test that
    misspells one would pass. Other kinds than flags and cohorts may have any.
    """
    form = _FORMS.get(kind)
    unknown = None if form is None else find_unknown_member(content, form)
    if unknown is not None:
        raise InvalidDefinition(unknown.path, f"there is no such member, {unknown.hint}")
