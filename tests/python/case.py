"""What every test of the Python client needs: a client, its own application, a receiver."""

import functools
import os
import time
import unittest
import uuid

from receiver import PATIENCE_SECS, Receiver
from svix.api import (
    ApplicationIn,
    EndpointIn,
    MessageIn,
    Svix,
    SvixOptions,
)
from svix.exceptions import HttpError, HTTPValidationError

URL = os.environ["POSTHASTE_TEST_URL"]
TOKEN = os.environ["POSTHASTE_TEST_TOKEN"]
# For endpoints that are given one.
SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@functools.cache
def client(token: str = TOKEN) -> Svix:
    # Without the client's own repetitions, which would hide a 5xx of ours.
    return Svix(token, SvixOptions(server_url=URL, retry_schedule=[]))


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.svix = client()
        self.app = self.svix.application.create(ApplicationIn(name=self.id())).id
        self.receiver = Receiver()
        self.addCleanup(self.receiver.close)
        # Cleanups run last to first, and this one even if the test has failed.
        self.addCleanup(lambda: self.assertEqual(self.receiver.faults, []))

    def endpoint(self, path: str = "/hook", **more) -> str:
        """A new endpoint at the receiver, which then expects its secret."""
        wanted = EndpointIn(url=self.receiver.url(path), **more)
        endpoint = self.svix.endpoint.create(self.app, wanted).id
        self.receiver.secrets = [self.svix.endpoint.get_secret(self.app, endpoint).key]
        return endpoint

    def send(self, payload: dict | None = None, event_type: str = "test.event", **more) -> str:
        message = MessageIn(event_type=event_type, payload=payload or {"n": 1}, **more)
        return self.svix.message.create(self.app, message).id

    def until(self, ask, done):
        """Asks again and again until `done` likes the answer, which is returned."""
        give_up_at = time.monotonic() + PATIENCE_SECS
        while True:
            answer = ask()
            if done(answer):
                return answer
            self.assertLess(time.monotonic(), give_up_at, f"it stays at {answer}")
            time.sleep(0.02)

    def attempts_of(self, message: str, count: int):
        """The message's attempts, newest first, once there are `count` in the history."""
        ask = lambda: self.svix.message_attempt.list_by_msg(self.app, message).data
        return self.until(ask, lambda attempts: len(attempts) >= count)

    def refused(self, status: int, code: str):
        """The block must be answered with this error."""
        return _Refused(self, HttpError, status, code)

    def invalid(self, *loc: str):
        """The block must be answered with 422 that names this place."""
        return _Refused(self, HTTPValidationError, 422, list(loc))


class _Refused:
    def __init__(self, case, kind, status, expected):
        self.case, self.kind, self.status, self.expected = case, kind, status, expected

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.case.assertIsNotNone(error, "nothing was refused")
        if not isinstance(error, self.kind):
            return False
        self.error = error
        self.case.assertEqual(error.status_code, self.status)
        if self.kind is HttpError:
            self.case.assertEqual(error.code, self.expected)
            self.case.assertTrue(error.detail)
        else:
            self.case.assertIn(self.expected, [problem.loc for problem in error.detail])
            self.case.assertTrue(all(it.msg and it.type for it in error.detail))
        return True
