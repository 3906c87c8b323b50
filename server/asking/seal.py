"""Sealed state: what a client keeps for us between two requests, but cannot read or change."""

import base64
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mcp_types import INVALID_PARAMS

from guildry.errors import ConfigError, StoreError
from guildry.tools.base import Json

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError

__all__ = ["KEY_BYTES", "KEY_FILE", "Seal", "binding_of", "decoded_key", "kept_key"]

KEY_FILE: Final = "state.key"
"""The file in the home that holds the key, where none is configured."""

KEY_BYTES: Final = 32
"""The least length of a key."""

_VERSION: Final = "g1."
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_MAX_CHARACTERS: Final = 1024 * 1024
_PERSON: Final = b"guildry.state.1"


def binding_of(principal: str, method: str, name: str, arguments: Mapping[str, Json]) -> bytes:
    """Return what state of that call is bound to: it cannot be opened for any other."""
    text = json.dumps([principal, method, name, arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()


class Seal:
    """Seal state with AES-256-GCM, and open what was sealed with the same key.

    Args:
        secret: at least `KEY_BYTES` bytes of secret randomness.
    """

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(hashlib.blake2b(secret, digest_size=32, person=_PERSON).digest())

    def close(self, content: Mapping[str, Json], *, binding: bytes, expires_at: float) -> str:
        """Return `content` sealed, for the call with that binding, until that time."""
        plain = json.dumps([expires_at, content], separators=(",", ":")).encode()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, plain, _VERSION.encode() + binding)
        return _VERSION + _encoded(nonce + sealed)

    def open(self, sealed: str, *, binding: bytes) -> dict[str, Json]:
        """Return what was sealed for the call with that binding.

        Raises:
            MCPError: it was changed, cut, sealed for another call or with another key, or it has
                expired: all in the same words.
        """
        from cryptography.exceptions import InvalidTag

        try:
            raw = _decoded(sealed)
            nonce, body = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
            plain = self._cipher.decrypt(nonce, body, _VERSION.encode() + binding)
            expires_at, content = json.loads(plain)
        except (ValueError, InvalidTag):
            raise _refusal() from None
        if expires_at <= time.time():
            raise _refusal()
        return dict(content)


def _refusal() -> "MCPError":
    from mcp.shared.exceptions import MCPError

    return MCPError(
        INVALID_PARAMS,
        "`requestState` is not of this call, was changed, or has expired: make the call again"
        " without `requestState` and `inputResponses`",
    )


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _decoded(sealed: str) -> bytes:
    """Return the bytes of sealed state, in the only spelling that they have.

    Raises:
        ValueError: that is not how sealed state is written.
    """
    text = sealed.removeprefix(_VERSION)
    if text == sealed or len(sealed) > _MAX_CHARACTERS or not text.isascii():
        raise ValueError("not sealed state")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encoded(raw) != text or len(raw) < _NONCE_BYTES + _TAG_BYTES:
        raise ValueError("not sealed state")
    return raw


def decoded_key(text: str, name: str) -> bytes:
    """Return the key that `text`, the value of the environment variable `name`, spells.

    Raises:
        ConfigError: it is neither hexadecimal nor base64, or it is too short.
    """
    text = text.strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        try:
            standard = text.translate(str.maketrans("-_", "+/")).rstrip("=")
            key = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
        except ValueError:
            key = b""
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"the environment variable `{name}` of `state_key_env` holds no key: give at least"
            f" {KEY_BYTES} random bytes in base64 or hexadecimal, such as `openssl rand -hex 32`"
        )
    return key


def kept_key(home: Path) -> bytes:
    """Return the key of a home, which is made at the first time, by one process alone. Blocks.

    Raises:
        StoreError: it cannot be read or written, or it is not a key.
    """
    file = home / KEY_FILE
    try:
        if not file.exists():
            _make(file)
        key = file.read_bytes()
    except OSError as error:
        raise StoreError(f"`{file}` cannot be used ({error.strerror}): mend its rights") from error
    if len(key) != KEY_BYTES:
        raise StoreError(f"`{file}` holds no key: remove it, and a new one is made")
    return key


def _make(file: Path) -> None:
    """Write a key beside `file` and link it there whole, unless another process was faster."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(descriptor, secrets.token_bytes(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            return
    finally:
        draft.unlink()
