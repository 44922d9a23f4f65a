"""Messages, attempts, retries, recovery and signatures through the official client."""

import asyncio
import json
from datetime import timedelta

from case import SECRET, TOKEN, URL, Case, client, unique
from receiver import verify
from svix.api import (
    EndpointPatch,
    EndpointSecretRotateIn,
    EventTypeIn,
    MessageAttemptGetOptions,
    MessageAttemptListAttemptedMessagesOptions,
    MessageAttemptListByEndpointOptions,
    MessageAttemptListByMsgOptions,
    MessageCreateOptions,
    MessageGetOptions,
    MessageIn,
    MessageListOptions,
    RecoverIn,
    SvixAsync,
    SvixOptions,
)
from svix.api.message import message_in_raw
from svix.models import (
    BackgroundTaskType,
    MessageAttemptTriggerType,
    MessageStatus,
    MessageStatusText,
    StatusCodeClass,
)
from svix.webhooks import WebhookVerificationError

# What the server is told: three waits, so four attempts by plan.
ATTEMPTS_MAX = 4
PAYLOAD = {"text": "Grüße \U0001f98a\n\"", "big": 9007199254740993, "f": 1.0, "a": [None, {}]}


class Messages(Case):
    def test_create_and_get(self):
        self.endpoint()
        wanted = MessageIn(event_type="a.b", payload=PAYLOAD, event_id="evt-1", channels=["x", "y"])
        options = MessageCreateOptions(with_content=True)
        created = self.svix.message.create(self.app, wanted, options)
        self.assertTrue(created.id.startswith("msg_"))
        self.assertEqual((created.event_type, created.event_id), ("a.b", "evt-1"))
        self.assertEqual((created.channels, created.payload), (["x", "y"], PAYLOAD))
        for name in (created.id, "evt-1"):
            whole = self.svix.message.get(self.app, name, MessageGetOptions(with_content=True))
            self.assertEqual(whole, created)
        bare = self.svix.message.get(self.app, created.id)
        self.assertEqual((bare.id, bare.payload), (created.id, {}))
        with self.refused(409, "conflict"):
            self.svix.message.create(self.app, wanted)

        (request,) = self.receiver.wait_for(1)
        self.assertEqual((request.id, request.path), (created.id, "/hook"))
        self.assertEqual(request.headers["content-type"], "application/json")
        # The very bytes that the client wrote.
        written = wanted.model_dump_json(exclude_unset=True, by_alias=True).encode()
        self.assertIn(b'"payload":' + request.body + b",", written)
        self.assertEqual(request.payload, PAYLOAD)

    def test_a_raw_payload_is_the_body(self):
        self.endpoint()
        raw = '{ "b" : 1,\n  "a" : 2.50 }'
        self.svix.message.create(self.app, message_in_raw("raw", raw))
        (request,) = self.receiver.wait_for(1)
        self.assertEqual(request.body, raw.encode())

    def test_a_key_makes_a_repeated_request_the_same_message(self):
        self.endpoint()
        options = MessageCreateOptions(idempotency_key=unique("key"))
        message = MessageIn(event_type="a", payload={"n": 1})
        first = self.svix.message.create(self.app, message, options)
        self.assertEqual(self.svix.message.create(self.app, message, options), first)
        other = MessageIn(event_type="a", payload={"n": 2})
        with self.invalid("header", "idempotency-key"):
            self.svix.message.create(self.app, other, options)
        last = self.send()
        self.receiver.wait_for(2)
        self.assertEqual(self.receiver.accepted(), [first.id, last])
        listed = [it.id for it in self.svix.message.list(self.app).data]
        self.assertEqual(listed, [last, first.id])

    def test_lists_can_be_narrowed(self):
        for event_type in ("red", "green", "blue"):
            self.send(event_type=event_type, channels=[f"c-{event_type}"])
        everything = self.svix.message.list(self.app).data
        self.assertEqual([it.event_type for it in everything], ["blue", "green", "red"])
        self.assertEqual({str(it.payload) for it in everything}, {"{}"})

        def listed(**options):
            page = self.svix.message.list(self.app, MessageListOptions(**options))
            return [it.event_type for it in page.data]

        self.assertEqual(listed(event_types=["red", "blue"]), ["blue", "red"])
        self.assertEqual(listed(channel="c-green"), ["green"])
        day = timedelta(days=1)
        newest = everything[0].timestamp
        self.assertEqual(listed(before=newest - day), [])
        self.assertEqual(listed(before=newest + day / 48), ["blue", "green", "red"])
        self.assertEqual(listed(after=newest - day), ["blue", "green", "red"])
        self.assertEqual(listed(after=newest + day / 48), [])
        page = self.svix.message.list(self.app, MessageListOptions(with_content=True, limit=1))
        self.assertEqual(page.data[0].payload, {"n": 1})

    def test_endpoints_get_what_they_ask_for(self):
        paid, sent = unique("paid"), unique("sent")
        for name in (paid, sent):
            self.svix.event_type.create(EventTypeIn(name=name, description=""))
        endpoints = {
            path: self.endpoint(path, secret=SECRET, **filters)
            for path, filters in {
                "/all": {},
                "/paid": {"event_types": [paid]},
                "/eu": {"channels": ["eu"]},
                "/paid-eu": {"event_types": [paid], "channels": ["eu", "us"]},
                "/off": {"disabled": True},
            }.items()
        }
        messages = {
            self.send(event_type=paid): ["/all", "/paid"],
            self.send(event_type=sent): ["/all"],
            self.send(event_type=paid, channels=["us"]): ["/all", "/paid", "/paid-eu"],
            self.send(event_type=sent, channels=["eu", "x"]): ["/all", "/eu"],
        }
        wanted = sorted((id, path) for id, paths in messages.items() for path in paths)
        requests = self.receiver.wait_for(len(wanted))
        self.assertEqual(sorted((it.id, it.path) for it in requests), wanted)
        # What is published for a disabled endpoint is held for it.
        held = {endpoints["/off"]: MessageStatus.PENDING}
        for message, paths in messages.items():
            wanted = held | {endpoints[path]: MessageStatus.SUCCESS for path in paths}
            ask = lambda: self.svix.message_attempt.list_attempted_destinations(self.app, message)
            self.until(lambda: {it.id: it.status for it in ask().data}, lambda it: it == wanted)


class Attempts(Case):
    def test_a_failing_receiver_gets_the_message_again_until_it_answers_well(self):
        endpoint = self.endpoint()
        statuses = iter([503, 500, 200])
        self.receiver.answer = lambda webhook_id, body: next(statuses)
        message = self.send({"order": 7})
        requests = self.receiver.wait_for(3)
        self.assertEqual([it.id for it in requests], [message] * 3)
        self.assertEqual({it.body for it in requests}, {b'{"order":7}'})
        self.assertEqual(self.receiver.accepted(), [message])

        attempts = self.attempts_of(message, 3)
        self.assertEqual([it.response_status_code for it in attempts], [200, 500, 503])
        wanted = [MessageStatus.SUCCESS, MessageStatus.FAIL, MessageStatus.FAIL]
        self.assertEqual([it.status for it in attempts], wanted)
        texts = [MessageStatusText.SUCCESS, MessageStatusText.FAIL, MessageStatusText.FAIL]
        self.assertEqual([it.status_text for it in attempts], texts)
        for attempt in attempts:
            self.assertTrue(attempt.id.startswith("atmpt_"))
            self.assertEqual((attempt.msg_id, attempt.endpoint_id), (message, endpoint))
            self.assertEqual(attempt.trigger_type, MessageAttemptTriggerType.SCHEDULED)
            self.assertEqual(attempt.url, self.receiver.url())
            # What the receiver answered is not shown unless asked for.
            self.assertEqual(attempt.response, "{}")
            self.assertGreaterEqual(attempt.response_duration_ms, 0)
        times = [it.timestamp for it in attempts]
        self.assertEqual(times, sorted(times, reverse=True))

        one = self.svix.message_attempt.get(self.app, message, attempts[1].id)
        self.assertEqual(one.id, attempts[1].id)
        options = MessageAttemptListByMsgOptions(with_content=True)
        whole = self.svix.message_attempt.list_by_msg(self.app, message, options).data
        self.assertEqual([it.response for it in whole], ["seen"] * 3)

        standing = self.svix.message_attempt.list_attempted_destinations(self.app, message)
        self.assertEqual([(it.id, it.status) for it in standing.data], [(endpoint, wanted[0])])
        self.assertIsNone(standing.data[0].next_attempt)
        listed = self.svix.message_attempt.list_attempted_messages(self.app, endpoint).data
        self.assertEqual([(it.id, it.status) for it in listed], [(message, wanted[0])])

    def test_attempts_of_an_endpoint_can_be_narrowed(self):
        endpoint = self.endpoint()
        self.receiver.answer = lambda id, body: 404 if b"bad" in body else 200
        bad = self.send({"bad": True}, "bad")
        good = self.send({"good": True}, "good", channels=["c"])
        self.attempts_of(good, 1)
        self.attempts_of(bad, ATTEMPTS_MAX)

        def listed(**options):
            asked = MessageAttemptListByEndpointOptions(**options)
            page = self.svix.message_attempt.list_by_endpoint(self.app, endpoint, asked)
            return [it.msg_id for it in page.data]

        failed = [bad] * ATTEMPTS_MAX
        self.assertEqual(sorted(listed()), sorted([good, *failed]))
        self.assertEqual(listed(status=MessageStatus.FAIL), failed)
        self.assertEqual(listed(status=MessageStatus.SUCCESS), [good])
        self.assertEqual(listed(status_code_class=StatusCodeClass.CODE4XX), failed)
        self.assertEqual(listed(event_types=["good"]), [good])
        self.assertEqual(listed(channel="c"), [good])
        asked = MessageAttemptListAttemptedMessagesOptions(status=MessageStatus.FAIL)
        page = self.svix.message_attempt.list_attempted_messages(self.app, endpoint, asked)
        self.assertEqual([it.id for it in page.data], [bad])

    def test_resend_sends_a_delivered_message_once_more(self):
        endpoint = self.endpoint()
        message = self.send({"n": 5})
        self.attempts_of(message, 1)
        self.svix.message_attempt.resend(self.app, message, endpoint)
        requests = self.receiver.wait_for(2)
        self.assertEqual([it.id for it in requests], [message, message])
        self.assertEqual(requests[0].body, requests[1].body)
        attempts = self.attempts_of(message, 2)
        wanted = [MessageAttemptTriggerType.MANUAL, MessageAttemptTriggerType.SCHEDULED]
        self.assertEqual([it.trigger_type for it in attempts], wanted)

    def test_resend_delivers_a_message_that_was_given_up(self):
        endpoint = self.endpoint()
        self.receiver.fail_with(404)
        message = self.send()
        self.attempts_of(message, ATTEMPTS_MAX)
        self.receiver.recover()
        self.svix.message_attempt.resend(self.app, message, endpoint)
        attempts = self.attempts_of(message, ATTEMPTS_MAX + 1)
        self.assertEqual([it.response_status_code for it in attempts], [200] + [404] * ATTEMPTS_MAX)
        self.assertEqual(self.receiver.accepted(), [message])
        with self.refused(409, "endpoint_disabled"):
            self.svix.endpoint.patch(self.app, endpoint, EndpointPatch(disabled=True))
            self.svix.message_attempt.resend(self.app, message, endpoint)

    def test_recover_sends_what_failed_and_nothing_else(self):
        endpoint = self.endpoint()
        before = self.send({"n": 0})
        self.attempts_of(before, 1)
        since = self.svix.message.get(self.app, before).timestamp
        self.receiver.fail_with(503)
        # More than the other server can recover without losing some.
        failed = [self.send({"n": n}) for n in range(110)]
        self.receiver.wait_for(1 + ATTEMPTS_MAX * len(failed))
        self.until(self.dead_letters, lambda count: count == len(failed))

        self.receiver.recover()
        task = self.svix.endpoint.recover(self.app, endpoint, RecoverIn(since=since))
        self.assertTrue(task.id.startswith("qtask_"))
        self.assertEqual(task.task, BackgroundTaskType.ENDPOINT_RECOVER)
        self.receiver.wait_for(1 + len(failed), accepted_only=True)
        ask = lambda: self.svix.background_task.get(task.id)
        done = self.until(ask, lambda task: str(task.status) == "finished")
        self.assertEqual(done.data["messagesSent"], len(failed))
        self.until(self.dead_letters, lambda count: count == 0)
        # Each exactly once, and what had been delivered before not at all.
        self.assertEqual(sorted(self.receiver.accepted()), sorted([before, *failed]))
        attempts = self.attempts_of(failed[0], ATTEMPTS_MAX + 1)
        self.assertEqual([it.response_status_code for it in attempts], [200] + [503] * ATTEMPTS_MAX)
        again = self.svix.endpoint.recover(self.app, endpoint, RecoverIn(since=since))
        ask = lambda: self.svix.background_task.get(again.id)
        done = self.until(ask, lambda task: str(task.status) == "finished")
        self.assertEqual(done.data["messagesSent"], 0)

    def dead_letters(self) -> int:
        found, iterator = 0, None
        while True:
            asked = MessageAttemptListAttemptedMessagesOptions(
                status=MessageStatus.FAIL, limit=250, iterator=iterator
            )
            endpoint = self.svix.endpoint.list(self.app).data[0].id
            page = self.svix.message_attempt.list_attempted_messages(self.app, endpoint, asked)
            found += len(page.data)
            if page.done:
                return found
            iterator = page.iterator


class Signatures(Case):
    def test_another_secret_or_another_body_is_not_genuine(self):
        self.endpoint()
        self.send({"n": 1})
        (request,) = self.receiver.wait_for(1)
        (secret,) = self.receiver.secrets
        verify(secret, request.headers, request.body)
        for forged_secret, body in (
            (SECRET, request.body),
            (secret, request.body + b" "),
        ):
            with self.assertRaises(WebhookVerificationError):
                verify(forged_secret, request.headers, body)

    def test_rotation_with_overlap(self):
        endpoint = self.endpoint()
        self.send()
        self.receiver.wait_for(1)
        (old,) = self.receiver.secrets
        new = self.svix.endpoint.rotate_secret(self.app, endpoint, EndpointSecretRotateIn()).key
        self.assertNotEqual(new, old)
        self.assertEqual(self.svix.endpoint.get_secret(self.app, endpoint).key, new)
        # From the next message on, whoever has either secret can verify.
        self.receiver.secrets = [old, new]
        self.send()
        request = self.receiver.wait_for(2)[1]
        self.assertEqual(len(request.signatures), 2)

    def test_rotation_at_once_to_a_given_secret(self):
        endpoint = self.endpoint()
        (old,) = self.receiver.secrets
        rotate = EndpointSecretRotateIn(key=SECRET, grace_period_seconds=0)
        self.assertEqual(self.svix.endpoint.rotate_secret(self.app, endpoint, rotate).key, SECRET)
        self.receiver.secrets = [SECRET]
        self.send()
        (request,) = self.receiver.wait_for(1)
        self.assertEqual(len(request.signatures), 1)
        with self.assertRaises(WebhookVerificationError):
            verify(old, request.headers, request.body)

    def test_a_retry_is_signed_with_the_secret_of_its_time(self):
        endpoint = self.endpoint()
        (old,) = self.receiver.secrets
        rotate = EndpointSecretRotateIn(key=SECRET, grace_period_seconds=0)

        def fail_and_rotate(webhook_id, body):
            # The receiver's lock is held, so the retry cannot come before its secret is known.
            client().endpoint.rotate_secret(self.app, endpoint, rotate)
            self.receiver.secrets = [SECRET]
            self.receiver.recover()
            return 503

        self.receiver.answer = fail_and_rotate
        message = self.send()
        requests = self.receiver.wait_for(2)
        self.assertEqual([(it.id, it.status) for it in requests], [(message, 503), (message, 200)])


class Asynchronously(Case):
    def test_the_asynchronous_client_sends_too(self):
        self.endpoint()

        async def send_many():
            svix = SvixAsync(TOKEN, SvixOptions(server_url=URL, retry_schedule=[]))
            messages = [MessageIn(event_type="many", payload={"n": n}) for n in range(40)]
            sending = [svix.message.create(self.app, message) for message in messages]
            return [message.id for message in await asyncio.gather(*sending)]

        sent = asyncio.run(send_many())
        self.assertEqual(len(set(sent)), 40)
        requests = self.receiver.wait_for(40)
        self.assertEqual(sorted(it.id for it in requests), sorted(sent))
        numbers = sorted(json.loads(it.body)["n"] for it in requests)
        self.assertEqual(numbers, list(range(40)))
