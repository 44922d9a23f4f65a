"""A webhook receiver as our users write one: it verifies with both official libraries."""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Callable

import standardwebhooks
import svix.webhooks

# How long anything may take before a test fails instead of hanging.
PATIENCE_SECS = 30


@dataclass(frozen=True)
class Request:
    path: str
    # Names in lower case.
    headers: dict[str, str]
    body: bytes
    # What the receiver answered.
    status: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def payload(self):
        return json.loads(self.body)

    @property
    def signatures(self) -> list[str]:
        return self.headers["webhook-signature"].split(" ")


class Receiver:
    """Listens on loopback until it is closed.

    `secrets` are those that each request must verify with, every one of them. A test sets them
    before it sends; what did not verify is in `faults`, and the test case looks there at its end.
    """

    def __init__(self):
        self.secrets: list[str] = []
        self.faults: list[str] = []
        self.answer: Callable[[str, bytes], int] = lambda webhook_id, body: 200
        self._requests: list[Request] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        # It looks this often whether it is closed.
        serve = lambda: self._server.serve_forever(poll_interval=0.02)
        threading.Thread(target=serve, daemon=True).start()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def fail_with(self, status: int):
        self.answer = lambda webhook_id, body: status

    def recover(self):
        self.fail_with(200)

    def requests(self) -> list[Request]:
        with self._changed:
            return list(self._requests)

    def wait_for(self, count: int, accepted_only: bool = False) -> list[Request]:
        """All requests, once there are `count` (of those answered with 200, if so told)."""

        def enough():
            wanted = [it for it in self._requests if it.status == 200 or not accepted_only]
            return len(wanted) >= count

        with self._changed:
            came = self._changed.wait_for(enough, PATIENCE_SECS)
            seen = [(it.id, it.status) for it in self._requests]
            assert came, f"{count} requests expected, these came: {seen}"
            return list(self._requests)

    def accepted(self) -> list[str]:
        """The id of each request that was answered with 200, in order."""
        return [it.id for it in self.requests() if it.status == 200]

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        # One at a time, so that a test may change `answer` and `secrets` between requests.
        with self._changed:
            for secret in self.secrets:
                try:
                    verify(secret, headers, body)
                except Exception as error:
                    self.faults.append(f"{headers.get('webhook-id')}: {error!r}")
            if not self.secrets:
                self.faults.append("a request came before the test knew its secret")
            status = self.answer(headers.get("webhook-id", ""), body)
            self._requests.append(Request(path, headers, body, status))
            self._changed.notify_all()
            return status

    def _handler(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer leaves in one packet; in two, the second waits 40 ms for the first's ACK.
            wbufsize = -1

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = receiver._take(self.path, headers, body)
                answer = b"seen"
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments):
                pass

        return Handler


def verify(secret: str, headers: dict[str, str], body: bytes):
    """Raises unless both official libraries take the request for genuine."""
    svix.webhooks.Webhook(secret).verify(body, headers)
    standardwebhooks.Webhook(secret).verify(body, headers)
