"""URI templates: which URIs follow one, with which values, however strange they are."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.uri_templates import MAX_CHARACTERS, BadTemplate, UriTemplate, uri_fault


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("note://{day}", "note://friday", {"day": "friday"}),
        ("note://{day}/{hour}", "note://friday/9", {"day": "friday", "hour": "9"}),
        ("test://t/{id}/data", "test://t/123/data", {"id": "123"}),
        ("note://{day}", "note://caf%C3%A9%20%2F", {"day": "café /"}),
        ("note://{a}-{b}", "note://1-2-3", {"a": "1", "b": "2-3"}),
        ("note://{day}", "note://", None),
        ("note://{day}", "note://a/b", None),
        ("note://{day}", "note://a?b", None),
        ("note://{day}", "note://a#b", None),
        ("note://{day}", "other://a", None),
        ("note://{day}.txt", "note://.txt", None),
        ("note://{day}/{hour}", "note://friday", None),
        ("note://{day}", "note://%FF", None),
        ("note://{day}", "note://a%00", None),
        ("file:///{name}", "file:///..%2Fetc%2Fpasswd", None),
        ("file:///{name}", "file:///..", None),
        ("file:///{name}", "file:///a..b", {"name": "a..b"}),
        ("note://{day}", "note://" + "a" * MAX_CHARACTERS, None),
    ],
)
def test_a_uri_follows_a_template_with_its_values_or_not_at_all(
    template: str, uri: str, values: dict[str, str] | None
) -> None:
    assert UriTemplate.of(template).values(uri) == values


@pytest.mark.parametrize(
    ("template", "uri", "follows"),
    [
        ("file:///{+path}", "file:///a/b", True),
        ("file:///{+path}", "http://a", False),
        ("db://{table}{?limit}", "db://users?limit=3", True),
        ("db://{table}{?limit}", "db://users", True),
        ("x://fixed", "x://fixed", True),
        ("x://fixed", "x://fixed/more", False),
    ],
)
def test_of_other_expressions_it_is_told_what_may_follow_them(
    template: str, uri: str, follows: bool
) -> None:
    assert UriTemplate.of(template).matches(uri) is follows


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("note://{day", "braces that do not match"),
        ("note://day}", "braces that do not match"),
        ("{+uri}", "no scheme"),
        ("note://a b/{day}", "white space"),
        ("x://" + "/{a}" * 33, "over 32 expressions"),
        ("x://" + "a" * MAX_CHARACTERS, "at most 4,096"),
    ],
)
def test_what_is_no_template_is_refused_with_the_cure(template: str, reason: str) -> None:
    with pytest.raises(BadTemplate, match=reason):
        UriTemplate.of(template)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("note://{+day}", "no plain variable"),
        ("note://{}", "no plain variable"),
        ("note://{a}/{a}", "a variable twice"),
        ("note://{a}{b}", "text between two variables"),
        ("note://fixed", "text between two variables"),
    ],
)
def test_a_template_whose_variables_cannot_be_told_apart_has_none(
    template: str, reason: str
) -> None:
    with pytest.raises(BadTemplate, match=reason):
        _ = UriTemplate.of(template).variables


@pytest.mark.parametrize("uri", ["note://today", "urn:isbn:1", "x://ü", "a+b.c-d:e"])
def test_uris_are_taken(uri: str) -> None:
    assert uri_fault(uri) is None


@given(
    values=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_values_that_were_put_in_come_out_again(values: list[str]) -> None:
    names = [f"v{n}" for n in range(len(values))]
    template = UriTemplate.of("x://" + "/".join(f"{{{name}}}" for name in names))
    uri = "x://" + "/".join(quote(value, safe="") for value in values)

    found = template.values(uri)

    leads_out = any(".." in value.replace("\\", "/").split("/") for value in values)
    whole = (
        None if leads_out or len(uri) > MAX_CHARACTERS else dict(zip(names, values, strict=True))
    )
    assert found == whole


@given(template=st.text(alphabet="a:/{}+?#%.", max_size=60), uri=st.text(alphabet="a:/%.?#é"))
def test_no_template_and_no_uri_is_too_strange(template: str, uri: str) -> None:
    try:
        parsed = UriTemplate.of(f"a:{template}")
    except BadTemplate:
        return

    assert parsed.matches(uri) or parsed.values(uri) is None
