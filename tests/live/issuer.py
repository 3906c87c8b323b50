"""An issuer of signed tokens: its keys, its JWKS on a real socket, and what it signs."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import anyio
import anyio.abc
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

__all__ = ["ISSUER", "RESOURCE", "Keys", "Signer", "claims", "signer"]

ISSUER = "https://login.example"
RESOURCE = "https://tools.example/mcp"


@dataclass(frozen=True)
class Signer:
    """A key pair."""

    kid: str
    algorithm: str
    private: Any
    jwk: dict[str, Any]

    def sign(self, payload: dict[str, Any] | None = None, **headers: Any) -> str:
        """Return a token; `headers` are put over the usual ones."""
        given = {"kid": self.kid, **headers}
        about = {key: value for key, value in given.items() if value is not None}
        payload = claims() if payload is None else payload
        return jwt.encode(payload, self.private, self.algorithm, about)


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a good token; a change to None takes a claim out."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": RESOURCE, "sub": "ada", "exp": now + 600, "scope": "tools teams"}
    return {key: value for key, value in {**usual, **changes}.items() if value is not None}


@cache
def signer(kid: str, algorithm: str = "ES256") -> Signer:
    """Return the key pair of a name, the same each time."""
    if algorithm[:2] in ("RS", "PS"):
        private: Any = rsa.generate_private_key(65537, 2048)
        jwk = RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    elif algorithm == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
        jwk = OKPAlgorithm.to_jwk(private.public_key(), as_dict=True)
    else:
        private = ec.generate_private_key(ec.SECP384R1() if "384" in algorithm else ec.SECP256R1())
        jwk = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    return Signer(kid, algorithm, private, {**jwk, "kid": kid, "use": "sig"})


@dataclass
class Keys:
    """What the issuer's server answers, which a test may change, and how often it was asked."""

    signers: list[Signer] = field(default_factory=list[Signer])
    status: str = "200 OK"
    head: str = ""
    body: bytes | None = None
    asked: int = 0
    url: str = ""
    is_silent: bool = False

    def jwks(self) -> dict[str, Any]:
        return {"keys": [each.jwk for each in self.signers]}

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[str]:
        """Serve the keys; yield their URL."""
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as tasks,
        ):
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            tasks.start_soon(listener.serve, self._answer)
            self.url = f"http://127.0.0.1:{port}/jwks.json"
            yield self.url
            tasks.cancel_scope.cancel()

    async def _answer(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            self.asked += 1
            if self.is_silent:
                await anyio.sleep_forever()
            body = self.body if self.body is not None else json.dumps(self.jwks()).encode()
            head = f"HTTP/1.1 {self.status}\r\n{self.head}content-length: {len(body)}\r\n\r\n"
            await client.send(head.encode() + body)
