"""Questions in the forms of MCP, and answers as clients give them."""

from typing import Any

import pytest
from mcp_types import ClientCapabilities

from guildry.server.asking.inputs import NOTHING, UnfitAnswer, answer_of, client_takes, request_of
from guildry.tools.asking.questions import Answer, Question

FORM: dict[str, Any] = {"properties": {"age": {"type": "integer"}}, "required": ["age"]}
SAMPLE: dict[str, Any] = {
    "role": "assistant",
    "model": "m",
    "content": {"type": "text", "text": ""},
}


def declared(**capabilities: Any) -> ClientCapabilities:
    return ClientCapabilities.model_validate(capabilities)


DECLARED: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"elicitation": {}}, {"approval", "form"}),
    ({"elicitation": {"form": {}}}, {"approval", "form"}),
    ({"elicitation": {"url": {}}}, {"url"}),
    ({"elicitation": {"form": {}, "url": {}}}, {"approval", "form", "url"}),
    ({"sampling": {}, "roots": {}}, {"sampling", "roots"}),
]


@pytest.mark.parametrize(("capabilities", "kinds"), DECLARED)
@pytest.mark.requirement("mrtr.declared-only")
def test_a_client_takes_what_it_declared(capabilities: Any, kinds: set[str]) -> None:
    assert client_takes(declared(**capabilities)) == kinds


@pytest.mark.requirement("elicitation.modes")
def test_a_client_that_declared_nothing_takes_nothing() -> None:
    assert client_takes(None) == NOTHING
    assert request_of(Question(key="k", kind="form", message="?"), None) is None


def test_an_approval_names_the_tool_its_arguments_and_who_asks() -> None:
    question = Question(
        key="k",
        kind="approval",
        message="May this be done?",
        tool="remove",
        plug="files",
        arguments={"path": "é", "text": "x" * 3_000},
        chain=("local", "team", "worker"),
    )

    request = request_of(question, declared(elicitation={}))

    assert request is not None
    assert request["method"] == "elicitation/create"
    assert request["params"]["requestedSchema"] == {"type": "object", "properties": {}}
    first, tool, arguments, chain = request["params"]["message"].split("\n")
    assert first == "May this be done?"
    assert tool == "Tool: remove of files"
    assert arguments.startswith('Arguments: {"path": "é", "text": "xxx')
    assert arguments.endswith("… (3,025 characters)")
    assert chain == "Asked by: local → team → worker"


def test_short_arguments_are_shown_whole() -> None:
    question = Question(
        key="k", kind="approval", message="Call `remove`?", tool="remove", arguments={"n": 1}
    )

    request = request_of(question, declared(elicitation={}))

    assert request is not None
    assert request["params"]["message"] == 'Call `remove`?\nArguments: {"n": 1}'


def test_what_the_message_says_already_is_not_said_twice() -> None:
    question = Question(
        key="k",
        kind="approval",
        message="Call `remove` of `files`?\nAsked by: local → worker",
        tool="remove",
        plug="files",
        chain=("local", "worker"),
    )

    request = request_of(question, declared(elicitation={}))

    assert request is not None
    assert request["params"]["message"] == question.message


@pytest.mark.parametrize(
    ("sampling", "params", "sent"),
    [
        ({}, {"maxTokens": 1}, {"maxTokens": 1}),
        ({}, {"tools": []}, None),
        ({"tools": {}}, {"tools": [], "toolChoice": {}}, {"tools": [], "toolChoice": {}}),
        ({}, {"includeContext": "thisServer"}, {}),
        ({"context": {}}, {"includeContext": "none"}, {"includeContext": "none"}),
    ],
)
def test_a_model_is_asked_within_what_its_client_declared(
    sampling: Any, params: Any, sent: Any
) -> None:
    question = Question(key="k", kind="sampling", message="", params=params)

    request = request_of(question, declared(sampling=sampling))

    assert request == (
        None if sent is None else {"method": "sampling/createMessage", "params": sent}
    )


@pytest.mark.parametrize(
    ("kind", "result", "answer"),
    [
        ("approval", {"action": "accept", "content": {"x": 1}}, Answer("accept")),
        ("approval", {"action": "decline"}, Answer("decline")),
        ("form", {"action": "accept", "content": {"age": 3}}, Answer("accept", {"age": 3})),
        ("form", {"action": "cancel", "content": {"age": "?"}}, Answer("cancel")),
        ("url", {"action": "accept"}, Answer("accept")),
        ("roots", {"roots": []}, Answer("accept", {"roots": []})),
        ("sampling", SAMPLE, Answer("accept", SAMPLE)),
    ],
)
def test_an_answer_is_taken_as_it_is_meant(kind: Any, result: Any, answer: Answer) -> None:
    question = Question(key="k", kind=kind, message="?", schema=FORM)

    assert answer_of(question, result, "") == answer


@pytest.mark.parametrize(
    ("kind", "result", "fault"),
    [
        ("form", 5, "no object"),
        ("form", {}, "no `action`"),
        ("approval", {"action": "yes"}, "no `action`"),
        ("form", {"action": "accept", "content": [1]}, "no `content` object"),
        ("form", {"action": "accept"}, "`age` is missing"),
        ("form", {"action": "accept", "content": {"age": "x"}}, "give an integer"),
        ("roots", {"roots": 1}, "see `roots`"),
        ("sampling", {"role": "assistant"}, "not usable"),
    ],
)
@pytest.mark.requirement("elicitation.checked")
def test_an_answer_that_does_not_fit_is_refused_with_what_is_wrong(
    kind: Any, result: Any, fault: str
) -> None:
    question = Question(key="k", kind=kind, message="?", schema=FORM)

    with pytest.raises(UnfitAnswer, match=fault):
        answer_of(question, result, "")


def test_a_form_whose_schema_is_broken_takes_any_content() -> None:
    question = Question(key="k", kind="form", message="?", schema={"properties": {"a": 5}})

    answer = answer_of(question, {"action": "accept", "content": {"a": 1}}, "ada")

    assert answer == Answer("accept", {"a": 1}, "ada")
