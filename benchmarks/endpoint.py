"""A chat-completions endpoint that costs nothing: it answers by a marker in the user message.

The marker is `BENCH:<kind>:<key>=<value>:...`; the kinds are

* `chain` (`turns`, `ms`, `id`): calls `lookup` that many times, one a turn, then answers;
* `parent` (`n`, `turns`, `ms`): hands `n` chains to sub-agents by parallel calls, then answers;
* `table`: makes a table with one tool, counts it with a second, adds up a column with a third.

It counts tokens as characters / 4 over messages, tool calls and tool schemas, checks each tool
result that it is shown, and tells its counts at `GET /stats`. `POST /reset` sets them to zero.
"""

import asyncio
import itertools
import json
import re
import sys
from statistics import median
from typing import Any

Json = dict[str, Any]
MARKER = re.compile(r"BENCH:(\w+)((?::\w+=\w+)*)")
_CALL_IDS = itertools.count(1)  # frameworks take two calls with one id for the same call
REFERENCE = re.compile(r"ref:[A-Za-z0-9_.-]+")


class Stats:
    """What was asked since the last reset."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        self.received_bytes = self.in_flight = self.most_in_flight = 0
        self.per_request: list[int] = []
        self.first: dict[str, list[int]] = {}
        self.schemas: dict[str, list[int]] = {}
        self.faults: list[str] = []

    def as_json(self) -> Json:
        """Return the counts."""
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "received_bytes": self.received_bytes,
            "most_in_flight": self.most_in_flight,
            "per_request": self.per_request[:200],
            "median_prompt": median(self.per_request) if self.per_request else 0,
            "first_prompt": {kind: median(counts) for kind, counts in self.first.items()},
            "schemas": {kind: median(counts) for kind, counts in self.schemas.items()},
            "faults": self.faults[:5],
            "fault_count": len(self.faults),
        }


def text_of(message: Json) -> str:
    """Return the text of a message, whether it is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def prompt_tokens(request: Json) -> tuple[int, int]:
    """Return the tokens of a request, and those of its tool schemas within them."""
    schemas = sum(len(json.dumps(tool["function"])) for tool in request.get("tools") or [])
    characters = schemas
    for message in request["messages"]:
        characters += len(text_of(message))
        for call in message.get("tool_calls") or []:
            characters += len(call["function"]["name"]) + len(call["function"]["arguments"])
    return characters // 4, schemas // 4


def find_task(messages: list[Json]) -> tuple[str, dict[str, str], int]:
    """Return kind, parameters and place of the last user message with a marker."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user" and (found := MARKER.search(text_of(messages[at]))):
            pairs = (pair.split("=") for pair in found[2].split(":") if pair)
            return found[1], dict(pairs), at
    raise ValueError("no marker in any user message")


Calls = list[tuple[str, Json]]


def decide(request: Json, stats: Stats) -> tuple[str, Calls, int, str]:
    """Return the reply's text, its tool calls, the latency in ms and the kind of the task."""
    kind, given, at = find_task(request["messages"])
    later = request["messages"][at + 1 :]
    turn = sum(message["role"] == "assistant" for message in later)
    results = [text_of(message) for message in later if message["role"] == "tool"]
    schema = {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or []}
    if kind == "chain":
        text, calls = chain(given, turn, results, stats)
    elif kind == "parent":
        text, calls = parent(given, turn, results, schema, stats)
    else:
        text, calls = over_table(turn, results, stats)
    unknown = {name for name, _ in calls} - set(schema)
    if unknown:
        raise ValueError(f"{sorted(unknown)} not among the tools {sorted(schema)}")
    return text, calls, int(given.get("ms", 0)), kind if turn == 0 else ""


def chain(given: dict[str, str], turn: int, results: list[str], stats: Stats) -> tuple[str, Calls]:
    """Call `lookup` once a turn, then answer with the last value seen."""
    name = given.get("id", "0")
    if turn and f"value of {name}-{turn - 1}" not in results[-1]:
        stats.faults.append(f"chain {name}, turn {turn}: was shown {results[-1][:200]!r}")
    if turn < int(given["turns"]):
        return "", [("lookup", {"key": f"{name}-{turn}"})]
    return f"done {name}", []


def parent(
    given: dict[str, str], turn: int, results: list[str], schema: Json, stats: Stats
) -> tuple[str, Calls]:
    """Hand out `n` chains at once, then answer."""
    count = int(given["n"])
    if turn == 0:
        name = next(name for name in ("delegate", "spawn") if name in schema)
        rest = f"turns={given['turns']}:ms={given.get('ms', 0)}"
        texts = [f"BENCH:chain:{rest}:id={i}" for i in range(count)]
        return "", [(name, hand_out(schema[name], text)) for text in texts]
    done = {number for text in results for number in re.findall(r"done (\d+)", text)}
    missing = [i for i in range(count) if str(i) not in done]
    if missing or len(results) != count:
        first = results[0][:300] if results else ""
        stats.faults.append(f"parent: {len(missing)} of {count} missing; was shown {first!r}")
    return f"joined {len(results)}", []


def hand_out(schema: Json, text: str) -> Json:
    """Return arguments for a tool that starts a sub-agent, as its own schema wants them."""
    properties: Json = schema["parameters"]["properties"]
    for name in ("input", "task", "query", "request"):
        if name in properties:
            arguments: Json = {name: text}
            break
    else:
        raise ValueError(f"no task among {sorted(properties)}")
    if "tools" in properties:
        arguments["tools"] = ["lookup"]
    return arguments


def over_table(turn: int, results: list[str], stats: Stats) -> tuple[str, Calls]:
    """Pass what `make_table` gave, as it was shown, to two further tools."""
    if turn == 0:
        return "", [("make_table", {})]
    found = REFERENCE.search(results[0][:4000]) if len(results[0]) < 8000 else None
    shown = found[0] if found else results[0]
    if turn == 1:
        return "", [("count_rows", {"table": shown})]
    if turn == 2:
        return "", [("sum_column", {"table": shown, "column": "amount"})]
    if "2000" not in results[1] or "999000" not in results[2]:
        stats.faults.append(f"table: was shown {results[1][:200]!r}, {results[2][:200]!r}")
    return f"{results[1][:80]} rows, sum {results[2][:80]}", []


def completion(text: str, calls: Calls, usage: Json) -> Json:
    """Return a chat completion."""
    message: Json = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{next(_CALL_IDS)}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for name, arguments in calls
        ]
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [choice],
        "usage": usage,
    }


def as_stream(whole: Json) -> bytes:
    """Return a completion as the events of a stream."""
    choice = whole["choices"][0]
    delta = dict(choice["message"])
    calls = delta.get("tool_calls", [])
    delta.update({"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
    if not calls:
        del delta["tool_calls"]
    base = {**whole, "object": "chat.completion.chunk", "usage": None}
    ends = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [ends]},
        {**base, "choices": [], "usage": whole["usage"]},
    ]
    return b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + b"data: [DONE]\n\n"


def answer(request: Json, size: int, stats: Stats) -> tuple[bytes, bytes, int]:
    """Return a reply's content type and body, and after how many ms it is to be sent."""
    prompt, schemas = prompt_tokens(request)
    text, calls, latency_ms, opened = decide(request, stats)
    written = len(text) + sum(len(name) + len(json.dumps(given)) for name, given in calls)
    stats.requests += 1
    stats.received_bytes += size
    stats.prompt_tokens += prompt
    stats.completion_tokens += written // 4
    stats.per_request.append(prompt)
    if opened:
        stats.first.setdefault(opened, []).append(prompt)
        stats.schemas.setdefault(opened, []).append(schemas)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": written // 4,
        "total_tokens": prompt + written // 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    whole = completion(text, calls, usage)
    if request.get("stream"):
        return b"text/event-stream", as_stream(whole), latency_ms
    return b"application/json", json.dumps(whole).encode(), latency_ms


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; requests one after another."""

    stats = Stats()

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collect a request, then reply."""
        self._buffer += data
        while len(self._buffer) >= self._need:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            found = re.search(rb"\r\ncontent-length: *(\d+)", head)
            self._need = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < self._need:
                return
            body = bytes(self._buffer[end + 4 : self._need])
            del self._buffer[: self._need]
            self._need = 0
            self._serve(head, body)

    def _serve(self, head: bytes, body: bytes) -> None:
        stats = Connection.stats
        if head.startswith(b"get /stats"):
            self._send(200, b"application/json", json.dumps(stats.as_json()).encode())
        elif head.startswith(b"post /reset"):
            Connection.stats = Stats()
            self._send(200, b"application/json", b"{}")
        else:
            self._complete(body, stats)

    def _complete(self, body: bytes, stats: Stats) -> None:
        try:
            kind, payload, latency_ms = answer(json.loads(body), len(body), stats)
        except (ValueError, KeyError, IndexError, StopIteration) as error:
            stats.faults.append(f"bad request: {error!r}")
            refusal = json.dumps({"error": {"message": repr(error), "type": "invalid"}})
            self._send(400, b"application/json", refusal.encode())
            return
        stats.in_flight += 1
        stats.most_in_flight = max(stats.most_in_flight, stats.in_flight)
        if latency_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(latency_ms / 1e3, self._finish, kind, payload, stats)
        else:
            self._finish(kind, payload, stats)

    def _finish(self, kind: bytes, payload: bytes, stats: Stats) -> None:
        stats.in_flight -= 1
        self._send(200, kind, payload)

    def _send(self, status: int, kind: bytes, payload: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(head % (status, kind, len(payload)) + payload)


async def serve() -> None:
    """Listen on a free port, print it and serve until stdin is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Whoever started this process holds the other end of stdin, even when it dies.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
