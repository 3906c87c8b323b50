"""A conversation within bounds: what was said, what it costs, and how old parts are folded away.

Folding loses nothing: what leaves the conversation is stored, and a line names where.
"""

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final

from guildry.teams.model import CHARS_PER_TOKEN, Message, ToolSpec

__all__ = ["Conversation", "Keep"]

Keep = Callable[[str, str], Awaitable[str]]
"""Store a text under a name that suits it; return a few words with its reference."""

_WORTH_FOLDING: Final = 240
_AFTER_FOLDING: Final = 0.7
_TOKENS_PER_MESSAGE: Final = 4


class Conversation:
    """The messages of one agent, with an estimate of their tokens that endpoints correct.

    Args:
        opening: the messages that are never folded.
        tools: what is shown beside the messages.
    """

    __slots__ = ("_ahead", "_chars", "_fixed", "_stored", "messages")

    def __init__(self, opening: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        self.messages: Final[list[Message]] = list(opening)
        self._fixed = len(opening)
        self._chars = sum(message.size for message in opening)
        self._ahead = sum(tool.size for tool in tools) // CHARS_PER_TOKEN
        self._stored: Final[dict[str, tuple[str, str | None]]] = {}

    @property
    def tokens(self) -> int:
        """What a model reads of it now, tools included."""
        said = self._chars // CHARS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(self.messages)
        return max(1, said + self._ahead)

    def learn(self, prompt_tokens: int) -> None:
        """Take an endpoint's count of the conversation as it is now."""
        self._ahead += prompt_tokens - self.tokens

    def add(self, message: Message) -> None:
        """Append a message."""
        self.messages.append(message)
        self._chars += message.size

    def add_result(self, call_id: str, tool: str, text: str, stored: str | None = None) -> None:
        """Append the result of a tool call, with the reference that holds it, if any does."""
        self._stored[call_id] = (tool, stored)
        self.add(Message("tool", text, call_id=call_id))

    def unused_id(self, call_id: str, taken: Container[str] = ()) -> str:
        """Return `call_id`, or one like it where an earlier call has it: some engines count anew.

        Args:
            call_id: what the model said.
            taken: further ids that are not free.
        """
        free, n = call_id, 2
        while free in self._stored or free in taken:
            free, n = f"{call_id}-{n}", n + 1
        return free

    @property
    def last_words(self) -> str:
        """What the model said last, or nothing."""
        said = (m.content for m in reversed(self.messages) if m.role == "assistant" and m.content)
        return next(said, "")

    async def fold(self, room: int, keep: Keep) -> bool:
        """Fold until the conversation fits into `room` tokens; tell whether it does.

        Old results go first, then old turns as a whole, then the results of the last turn. More is
        folded than has to be, so that the prefix then stays the same for a while.
        """
        if self.tokens <= room:
            return True
        target = int(room * _AFTER_FOLDING)
        await self._fold_results(self._fixed, self._last_turn(), target, keep)
        if self.tokens > room:
            await self._fold_turns(self._last_turn(), keep)
        if self.tokens > room:
            await self._fold_results(self._fixed, len(self.messages), room, keep)
        return self.tokens <= room

    def _last_turn(self) -> int:
        for index in range(len(self.messages) - 1, self._fixed - 1, -1):
            if self.messages[index].role == "assistant":
                return index
        return self._fixed

    async def _fold_results(self, start: int, end: int, target: int, keep: Keep) -> None:
        for index in range(start, end):
            if self.tokens <= target:
                return
            message = self.messages[index]
            if message.role != "tool" or message.size <= _WORTH_FOLDING:
                continue
            call_id = message.call_id or ""
            tool, stored = self._stored.get(call_id, ("tool", None))
            if stored is None:
                stored = await keep(f"{tool}_result", message.content)
                self._stored[call_id] = (tool, stored)
            self._replace(
                index, index + 1, [Message("tool", f"[folded: {stored}]", call_id=call_id)]
            )

    async def _fold_turns(self, end: int, keep: Keep) -> None:
        """Fold everything between the opening and the last turn into one stored text."""
        old = self.messages[self._fixed : end]
        if not old:
            return
        stored = await keep("earlier_turns", "\n\n".join(_told(message) for message in old))
        self._replace(self._fixed, end, [Message("user", f"[earlier turns, folded: {stored}]")])

    def _replace(self, start: int, end: int, messages: list[Message]) -> None:
        self._chars += sum(m.size for m in messages) - sum(m.size for m in self.messages[start:end])
        self.messages[start:end] = messages


def _told(message: Message) -> str:
    calls = "".join(f"\n{call.name}({call.arguments})" for call in message.calls)
    return f"{message.role}: {message.content}{calls}"
