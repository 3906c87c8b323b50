"""Model endpoints: which models one has, and the first of them. Knows no configuration file."""

from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit, urlunsplit

import anyio

from guildry.errors import ModelRejected, ModelReplyError, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildry.server.config import ModelSetting
    from guildry.teams.chat_model import ChatModel
    from guildry.teams.model import Completion, Request

__all__ = ["FirstModel", "chat_model", "list_models", "listing_url"]

_LISTING_S: Final = 5.0
_CHAT: Final = "/chat/completions"


def listing_url(url: str) -> str:
    """Return where an endpoint lists its models, for whatever part of its URL was given."""
    parts = urlsplit(url.strip())
    path = parts.path.rstrip("/").removesuffix(_CHAT) or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, f"{path}/models", parts.query, ""))


async def list_models(setting: "ModelSetting", *, timeout_s: float = _LISTING_S) -> list[str]:
    """Return the names of the models that an endpoint has.

    Raises:
        ModelUnavailable: it gives no answer in time.
        ModelRejected: it answers, but not with a list.
    """
    import aiohttp

    key, url = setting.api_key(), listing_url(setting.url)
    shown = url.replace(urlsplit(url).netloc, urlsplit(url).netloc.rpartition("@")[2], 1)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(url, headers=headers) as reply,
        ):
            status = reply.status
            body: object = await reply.json(content_type=None) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ModelUnavailable(f"`{shown}` gives no answer ({type(error).__name__})") from error
    except ValueError:
        status, body = 200, None
    if not isinstance(body, dict):
        what = "no list of models" if status == 200 else str(status)
        raise ModelRejected(f"`{shown}` answers {what}", status)
    listed = cast("dict[str, object]", body).get("data")
    items = cast("list[object]", listed) if isinstance(listed, list) else []
    return [
        str(cast("dict[str, object]", each).get("id")) for each in items if isinstance(each, dict)
    ]


def chat_model(setting: "ModelSetting", name: str) -> "ChatModel":
    """Return the model of that name behind an endpoint."""
    from guildry.teams.chat_model import ChatModel

    return ChatModel(
        setting.url,
        name,
        api_key=setting.api_key(),
        context_tokens=setting.context_tokens,
        timeout_s=setting.timeout_s,
    )


class FirstModel:
    """Complete requests with the first model that an endpoint lists. It is asked once."""

    def __init__(self, setting: "ModelSetting") -> None:
        self._setting = setting
        self._found: ChatModel | None = None
        self._turn = anyio.Lock()

    @property
    def name(self) -> str:
        """The model's own name, once it is known."""
        return self._found.name if self._found is not None else urlsplit(self._setting.url).netloc

    @property
    def context_tokens(self) -> int:
        """How many tokens it may be sent at once, as configured."""
        return self._setting.context_tokens

    async def complete(
        self, request: "Request", *, on_text: "Callable[[str], None] | None" = None
    ) -> "Completion":
        """Return the model's reply.

        Raises:
            ModelError: as `ChatModel` does, or the endpoint lists no model.
        """
        model = self._found or await self._find()
        return await model.complete(request, on_text=on_text)

    async def aclose(self) -> None:
        """Release connections."""
        if self._found is not None:
            await self._found.aclose()

    async def _find(self) -> "ChatModel":
        async with self._turn:
            if self._found is None:
                names = await list_models(self._setting)
                if not names:
                    url = listing_url(self._setting.url)
                    raise ModelReplyError(f"`{url}` lists no model: configure its `model`")
                self._found = chat_model(self._setting, names[0])
            return self._found
