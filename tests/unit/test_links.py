"""Links to other systems: a value never decides where a link leads, and a wrong template is an error at the start."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.control.settings import InvalidSettings, read_settings
from queuectl.domain.links import FIELDS, Link, LinkPlace, LinkTemplate, filled

WRONG = {
    "javascript:alert(1)": "begins with",
    "data:text/html,{name}": "begins with",
    "//grafana.example/{name}": "begins with",
    "https://{namespace}.example/": "begins with",
    "https://{namespace}": "begins with",
    "{name}": "begins with",
    "https://grafana.example": "begins with",
    "https://user:word@grafana.example/": "no user",
    "https://grafana.example/a b": "no user and no space",
    "https://grafana.example/{nope}": "unknown field {nope}",
    "https://grafana.example/{}": "unknown field {}",
    "https://grafana.example/{0}": "unknown field {0}",
    "https://grafana.example/{name.__class__}": "unknown field {name.__class__}",
    "https://grafana.example/{name!r}": "unknown field",
    "https://grafana.example/{name:>9999999999}": "unknown field",
    "https://grafana.example/{name": "write {{ for a brace",
    "https://grafana.example/é": "ASCII",
    "https://grafana.example/" + "a" * 3000: "at most",
    "": "begins with",
}


def test_a_wrong_template_states_what_is_wrong() -> None:
    for template, text in WRONG.items():
        with pytest.raises(ValueError, match="link g: ") as error:
            LinkTemplate.parse("g", template)
        assert text in str(error.value), template
    for name in ("", " ", "x" * 41, "a\nb", "a\u202eb"):
        with pytest.raises(ValueError, match="the name of a link"):
            LinkTemplate.parse(name, "https://grafana.example/")


@settings(max_examples=40)
@given(st.text(max_size=40), st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_value_is_one_part_of_the_address(namespace: str, user: str) -> None:
    template = LinkTemplate.parse("g", "https://grafana.example/d/{namespace}/x?user={user}&a=1")
    link = template.filled({"namespace": namespace, "user": user})
    if link is None:
        assert not namespace.strip(".") or not user.strip(".")
        return
    parts = urlsplit(link.url)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "grafana.example", "")
    assert parts.path.count("/") == 3
    assert parse_qs(parts.query, keep_blank_values=True) == {"user": [user], "a": ["1"]}


def test_a_link_is_shown_where_its_fields_belong() -> None:
    templates = [
        LinkTemplate.parse("Job", "http://127.0.0.1:3000/d?ns={namespace}&from={from_ms}"),
        LinkTemplate.parse("Node", "https://g/n?node={node}"),
        LinkTemplate.parse("Logs", "https://g/l?q={{pod}}&pod={pod}&node={node}"),
    ]
    values = {"namespace": "team-a", "from_ms": "1", "node": "n 1", "pod": "p"}
    assert [t.place for t in templates] == [LinkPlace.JOB, LinkPlace.NODE, LinkPlace.POD]
    assert filled(templates, LinkPlace.NODE, values) == (Link("Node", "https://g/n?node=n%201"),)
    assert filled(templates, LinkPlace.POD, values)[0].url == "https://g/l?q={pod}&pod=p&node=n%201"
    assert filled(templates, LinkPlace.POD, {**values, "node": ""}) == ()
    assert filled(templates, LinkPlace.JOB, {"namespace": ".."}) == ()
    assert filled(templates, LinkPlace.NODE, {"node": "\ud800"})[0].url == "https://g/n?node=%3F"


def test_an_administrator_sets_links_and_a_wrong_one_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_settings().link_templates == ()
    url = "https://grafana.example/d?" + "&".join(f"{field}={{{field}}}" for field in FIELDS)
    monkeypatch.setenv("QUEUECTL_LINKS", json.dumps([{"name": "Grafana", "template": url}]))
    (link,) = read_settings().link_templates
    assert (link.name, link.place) == ("Grafana", LinkPlace.POD)
    for wrong in ('[{"name":"a","template":"https://g/{x}"}]', "[1]", "{}x", '[{"name":"a"}]'):
        monkeypatch.setenv("QUEUECTL_LINKS", wrong)
        with pytest.raises(InvalidSettings, match="QUEUECTL_LINKS"):
            read_settings()
    monkeypatch.setenv("QUEUECTL_LINKS", json.dumps([{"name": "a", "template": "https://g/"}] * 21))
    with pytest.raises(InvalidSettings, match="QUEUECTL_LINKS"):
        read_settings()
