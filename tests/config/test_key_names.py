"""Names of project keys: how they are written, what is wrong with them, and what they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forwarder.config.display import as_json, as_yaml
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import Loaded, load_settings
from tests.support.cases import cases

SHOP = "phc_theshopskey0001"
BLOG = "phc_theblogskey0001"
VARIABLE = "FORWARDER_SOURCES__HTTP__API_KEYS"


def loaded(folder: Path, text: str, **environ: str) -> Loaded:
    """A configuration with this section `http`, or this whole file if it has more than one line."""
    file = folder / "forwarder.yaml"
    upstream = "upstream: {url: https://us.example.com}\n"
    file.write_text(text if "\n" in text else f"{upstream}sources: {{http: {text}}}\n")
    return load_settings(file, environ)


FORMS = {
    "a list": (f"[{SHOP}, {BLOG}]", {SHOP: "", BLOG: ""}),
    "names": (f"{{shop: {SHOP}, blog: {BLOG}}}", {SHOP: "shop", BLOG: "blog"}),
    "some names": (f"[{{shop: {SHOP}}}, {BLOG}]", {SHOP: "shop", BLOG: ""}),
    "a key that is listed twice": (f"[{SHOP}, {{shop: {SHOP}}}, {SHOP}]", {SHOP: "shop"}),
    "a name without a key": (f"{{shop: {SHOP}, blog: }}", {SHOP: "shop"}),
    "a key of the environment": ("{shop: '${KEY}'}", {SHOP: "shop"}),
    "nothing": ("{}", {}),
}


@cases("written, keys", FORMS.values(), ids=FORMS.keys())
def test_keys_are_a_list_or_have_names(tmp_path: Path, written: str, keys: dict[str, str]) -> None:
    """Each key is accepted, with its name if it has one."""
    settings = loaded(tmp_path, f"{{api_keys: {written}}}", KEY=SHOP).settings
    assert dict(settings.sources.http.api_keys) == keys
    assert settings.key_names == {key: name for key, name in keys.items() if name}


@cases(
    "written, keys",
    [
        (f"{SHOP},{BLOG}", {SHOP: "", BLOG: ""}),
        (f"shop={SHOP}, {BLOG}", {SHOP: "shop", BLOG: ""}),
        (json.dumps([{"shop": SHOP}, BLOG]), {SHOP: "shop", BLOG: ""}),
        (json.dumps({"shop": SHOP, "blog": BLOG}), {SHOP: "shop", BLOG: "blog"}),
    ],
)
def test_the_environment_names_keys(tmp_path: Path, written: str, keys: dict[str, str]) -> None:
    """As text or as JSON, in place of the file's."""
    result = loaded(tmp_path, "{api_keys: [phc_ofthefile00001]}", **{VARIABLE: written})
    assert dict(result.settings.sources.http.api_keys) == keys


def test_keys_of_a_file_join_those_with_names(tmp_path: Path) -> None:
    """They can have names, too; a key that has one keeps it. Two names of one key are reported."""
    keys = tmp_path / "keys"
    text = f"{{api_keys: {{shop: {SHOP}}}, api_keys_file: {keys}}}"
    for line, name in ((BLOG, ""), (f"blog={BLOG}", "blog")):
        keys.write_text(f"# ours\n{line}\n{SHOP}\n")
        api_keys = loaded(tmp_path, text).settings.sources.http.api_keys
        assert dict(api_keys) == {SHOP: "shop", BLOG: name}
    keys.write_text(f"{BLOG}\nstore={SHOP}\n")
    with pytest.raises(InvalidConfiguration) as caught:
        loaded(tmp_path, text)
    (problem,) = caught.value.problems
    assert problem.key == "sources.http.api_keys_file"
    assert f"{keys}, line 2: shop and store have the same key" in problem.message


MISTAKES = {
    "two names of one key": (
        f"{{shop: {SHOP}, blog: {SHOP}}}",
        "sources.http.api_keys.blog shop and blog have the same key: leave one name",
    ),
    "two keys of one name": (
        f"[{{shop: {SHOP}}}, {{shop: {BLOG}}}]",
        "sources.http.api_keys[1] shop names two keys: give each a name of its own",
    ),
    "words": (f"{{my shop: {SHOP}}}", "sources.http.api_keys.my shop the name isn't a plain word"),
    "a word of ours": (f"{{other: {SHOP}}}", "other can't be a name"),
    "the wrong way round": (f"{{{SHOP}: shop}}", "write the name first, {shop: phc_…}"),
    "a personal key": ("{shop: phx_personal0001}", "it is a personal key"),
    "a number": ("7", "is a list of keys, or a mapping of names to keys"),
}


@cases("written, message", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_name_is_reported_where_it_stands(
    tmp_path: Path, written: str, message: str
) -> None:
    """With its line and what to write, and without the key."""
    with pytest.raises(InvalidConfiguration) as caught:
        loaded(tmp_path, f"{{api_keys: {written}}}")
    (problem,) = caught.value.problems
    assert problem.where.endswith("forwarder.yaml:2")
    assert message in f"{problem.key} {problem.message}: {problem.hint}"
    assert SHOP not in problem.message + problem.hint


def test_names_are_shown_and_keys_are_masked(tmp_path: Path) -> None:
    """In YAML and in JSON, in the form in which they can be written."""
    some = loaded(tmp_path, f"{{api_keys: [{{shop: {SHOP}}}, {BLOG}]}}")
    assert "api_keys: [{shop: phc_…0001}, phc_…0001]" in as_yaml(some)
    named = as_json(loaded(tmp_path, f"{{api_keys: {{shop: {SHOP}}}}}"))
    assert named["settings"]["sources"]["http"]["api_keys"] == {"shop": "phc_…0001"}


def test_a_key_at_a_destination_has_its_senders_name(tmp_path: Path) -> None:
    """Unless it stands for keys of several names, or has a name itself."""
    text = (
        "upstreams:\n"
        "  us: {url: https://us.example.com}\n"
        "  eu: {url: https://eu.example.com, api_keys: {phc_a: phc_b, phc_c: phc_one, "
        "phc_d: phc_one, phc_e: phc_f}}\n"
        "sources: {http: {api_keys: {a: phc_a, c: phc_c, d: phc_d, e: phc_e, f: phc_f}}}\n"
    )
    names = loaded(tmp_path, text).settings.key_names
    assert names["phc_b"] == "a"
    assert names["phc_f"] == "f"
    assert "phc_one" not in names
