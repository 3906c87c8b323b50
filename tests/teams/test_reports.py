"""Reports within bounds: nothing long travels as text, and nothing is lost."""

from pathlib import Path

from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.memory.store import Store
from guildry.teams.messages import Report, Spent
from guildry.teams.reports import brief, digest, finished_json, merged, report_json, shortened


def reference(name: str) -> Reference:
    return Reference(
        id=f"id-{name}",
        name=name,
        namespace="r1",
        media_type="text/plain",
        size=10,
        digest="sha256:00",
        sketch="2 lines",
        preview="one\ntwo",
        owner="r1/1",
        created_at=0.0,
    )


def test_a_brief_names_the_state_the_summary_and_the_references() -> None:
    report = Report("partial", "Half of it", (reference("a"), reference("b")), reason="no tokens")

    assert brief("reader", report) == (
        "[reader: partial] Half of it\nIt stopped because: no tokens\nIt made: ref:a, ref:b"
    )


def test_a_brief_is_cut_and_names_how_many_references_there_are() -> None:
    report = Report("done", "x" * 500, tuple(reference(f"n{n}") for n in range(25)))

    first, second = brief("reader", report, 100).split("\n")
    assert first == f"[reader: done] {'x' * 99}…"
    assert second.endswith("ref:n19, 5 more")


def test_a_digest_shares_its_room_among_all_reports() -> None:
    reports = [(f"n{n}", Report("done", "y" * 3_000)) for n in range(10)]

    lines = digest(reports, 5_000).split("\n")
    assert [len(line) for line in lines] == [len("[n0: done] ") + 500] * 10


def test_references_are_merged_in_order_each_once() -> None:
    a, b, c = reference("a"), reference("b"), reference("c")

    assert merged((a, b), [], (b, c, a)) == (a, b, c)


def test_a_record_holds_the_answer_where_there_is_one() -> None:
    assert report_json(Report("done", "ok")) == {
        "status": "done",
        "report": "ok",
        "references": [],
        "reason": "finished",
    }
    assert report_json(Report("done", "ok", answer=0))["answer"] == 0


async def test_a_short_report_travels_as_it_is_and_a_long_one_is_stored_whole(
    tmp_path: Path,
) -> None:
    async with Store.open(tmp_path / "guildry.db") as store:
        objects = ObjectStore(store, tmp_path / "objects")
        short, long = Report("done", "x" * 2_000), Report("done", "x" * 2_001)

        assert await shortened(short, objects, name="a", namespace="r1", owner="r1/1") is short
        cut = await shortened(long, objects, name="a", namespace="r1", owner="r1/1")
        assert len(cut.summary) <= 2_000
        assert cut.summary.endswith("… [2,001 characters, whole in ref:a_report]")
        assert await objects.value(cut.references[0]) == long.summary


async def test_what_a_client_gets_names_the_answer_and_why_it_is_not_whole(
    tmp_path: Path,
) -> None:
    async with Store.open(tmp_path / "guildry.db") as store:
        objects = ObjectStore(store, tmp_path / "objects")
        report = Report("partial", "Half", (reference("a"),), answer=[1], reason="no tokens")
        got = await finished_json("r1", "partial", report, Spent(), objects, "local", "local")

        assert list(got) == ["run", "status", "report", "references", "usage", "reason", "answer"]
        assert [each["reference"] for each in got["references"]] == ["ref:a"]
