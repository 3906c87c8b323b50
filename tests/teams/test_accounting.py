"""Accounts of a run: what was sent, and what would have been sent by value."""

from guildry.memory.events import Entry, EventKind
from guildry.teams.accounting import Accounts, account


class Diary:
    """Entries of a journal, written one a second."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def note(self, kind: EventKind, agent: str, **data: object) -> None:
        number = len(self.entries) + 1
        self.entries.append(Entry("r1", number, 100.0 + number, kind, agent, data))

    def spawn(self, agent: str, parent: str | None, *references: str) -> None:
        self.note("spawn", agent, parent=parent, references=list(references))

    def model(self, agent: str, prompt: int, completion: int, cached: int = 0) -> None:
        self.note(
            "model",
            agent,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            duration_s=0.5,
        )

    def tool(
        self,
        agent: str,
        tool: str,
        *read: str,
        arguments: dict[str, object] | None = None,
        reference: str | None = None,
        size: int = 10,
        saved: int = 0,
        status: str = "ok",
    ) -> None:
        self.note(
            "tool",
            agent,
            tool=tool,
            arguments=arguments or {},
            status=status,
            duration_s=0.25,
            size=size,
            reference=reference,
            read=list(read),
            saved_tokens=saved,
        )

    def back(self, agent: str, *references: str) -> None:
        self.note("return", agent, references=list(references))


def test_nothing_costs_nothing() -> None:
    assert account([]) == Accounts()


def test_a_run_without_references_costs_the_same_by_value() -> None:
    diary = Diary()
    diary.spawn("r1/1", "r1")
    diary.model("r1/1", 100, 10, cached=40)
    diary.tool("r1/1", "echo")
    diary.model("r1/1", 130, 20)

    assert account(diary.entries) == Accounts(
        requests=2,
        calls=1,
        prompt_tokens=230,
        completion_tokens=30,
        cached_tokens=40,
        by_value_prompt_tokens=230,
        by_value_completion_tokens=30,
        serial_s=1.25,
        wall_s=3.0,
    )


def test_a_stored_result_is_added_to_each_later_request_of_its_agent() -> None:
    diary = Diary()
    diary.spawn("r1/1", "r1")
    diary.spawn("r1/2", "r1")
    diary.model("r1/1", 100, 10)
    diary.tool("r1/1", "table", reference="t", size=8_000, saved=1_900)
    diary.model("r1/1", 150, 10)
    diary.model("r1/2", 100, 10)
    diary.model("r1/1", 160, 10)

    accounts = account(diary.entries)

    assert accounts.prompt_tokens == 510
    assert accounts.by_value_prompt_tokens == 510 + 2 * 1_900
    assert accounts.by_value_completion_tokens == 40


def test_an_argument_by_reference_would_have_been_written_out_and_sent_again() -> None:
    diary = Diary()
    diary.spawn("r1/1", "r1")
    diary.tool("r1/1", "table", reference="t", size=8_000, saved=1_900)
    diary.model("r1/1", 100, 10)
    diary.tool("r1/1", "count", "t", arguments={"rows": "ref:table", "limit": 3})
    diary.model("r1/1", 100, 10)

    accounts = account(diary.entries)

    assert accounts.by_value_completion_tokens == 20 + 2_000
    assert accounts.by_value_prompt_tokens == 200 + 1_900 + (1_900 + 2_000)


def test_a_selected_part_and_a_refused_call_are_not_counted_as_written() -> None:
    diary = Diary()
    diary.spawn("r1/1", "r1")
    diary.tool("r1/1", "table", reference="t", size=8_000)
    diary.tool("r1/1", "count", "t", arguments={"rows": ["ref:table#/rows"]})
    diary.tool("r1/1", "count", "t", arguments={"of": {"rows": "ref:table"}}, status="refused")
    diary.model("r1/1", 100, 10)

    accounts = account(diary.entries)

    assert (accounts.by_value_prompt_tokens, accounts.by_value_completion_tokens) == (100, 10)


def test_what_a_worker_is_given_would_stand_in_its_task() -> None:
    diary = Diary()
    diary.spawn("r1", None, "input")
    diary.spawn("r1/1", "r1")
    diary.tool("r1/1", "table", reference="t", size=4_000, saved=900)
    diary.model("r1/1", 100, 10)
    diary.back("r1/1", "t")
    diary.spawn("r1/2", "r1", "t", "input")
    diary.model("r1/2", 100, 10)

    assert account(diary.entries).by_value_prompt_tokens == 200 + 900 + 1_000
    assert account(diary.entries, {"input": 400}).by_value_prompt_tokens == 2_100 + 100


def test_what_a_child_hands_back_would_stand_in_its_parents_context() -> None:
    diary = Diary()
    diary.spawn("r1/1", "r1")
    diary.model("r1/1", 100, 10)
    diary.spawn("r1/2", "r1/1")
    diary.tool("r1/2", "table", reference="t", size=4_000)
    diary.back("r1/2", "t")
    diary.tool("r1/1", "spawn")
    diary.model("r1/1", 100, 10)

    accounts = account(diary.entries)

    assert accounts.by_value_prompt_tokens == 200 + 1_000
    assert accounts.serial_s == 2 * 0.5 + 0.25  # the time of `spawn` is the child's own


def test_the_accounts_are_json() -> None:
    assert Accounts(requests=2).as_json()["requests"] == 2
    assert len(Accounts().as_json()) == 9
