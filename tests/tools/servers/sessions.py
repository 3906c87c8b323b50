"""A server of the handshake era over HTTP, that forgets its session when `forget` is called."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from wire import Message, text, tool

sessions: list[str] = []


def result_of(message: Message) -> Message | None:
    method = message["method"]
    if method == "initialize":
        sessions.append(f"session-{len(sessions)}")
        info = {"name": "sessions", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [tool("forget"), tool("session")]}
    if method == "tools/call":
        named = sessions[-1]
        if message["params"]["name"] == "forget":
            sessions.append("")
        return text(named)
    return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        opening = message["method"] in ("initialize", "server/discover")
        if not opening and self.headers["Mcp-Session-Id"] != sessions[-1]:
            self.reply(404)
        elif "id" not in message:
            self.reply(202)
        elif (result := result_of(message)) is not None:
            self.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            self.reply(404)

    def do_GET(self) -> None:
        self.reply(405)

    def do_DELETE(self) -> None:
        self.reply(200)

    def reply(self, status: int, message: Message | None = None) -> None:
        body = json.dumps(message).encode() if message else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        if sessions:
            self.send_header("Mcp-Session-Id", sessions[-1])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
sys.stderr.write("running\n")
sys.stderr.flush()
server.serve_forever()
