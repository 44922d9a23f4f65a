"""Who may do what, and how the official client sees a refusal."""

from datetime import timedelta

from case import TOKEN, Case, client, unique
from svix.api import (
    ApplicationIn,
    ApplicationListOptions,
    AppPortalAccessIn,
    EndpointHeadersIn,
    EndpointIn,
    EndpointPatch,
    EventTypeIn,
    MessageIn,
    MessageListOptions,
    RecoverIn,
)


class Access(Case):
    def test_the_server_is_well(self):
        self.assertIsNone(self.svix.health.get())
        # Nobody has to be known for that.
        self.assertIsNone(client("no token").health.get())

    def test_a_bad_token_is_refused(self):
        for token in ("nonsense", "a.b.c", TOKEN[:-4] + "AAAA"):
            with self.refused(401, "authentication_failed"):
                client(token).application.list()

    def test_an_application_token_opens_its_application_only(self):
        endpoint = self.endpoint()
        access = self.svix.authentication.app_portal_access(self.app, AppPortalAccessIn())
        self.assertTrue(access.url.endswith(access.token))
        theirs = client(access.token)
        self.assertEqual(theirs.application.get(self.app).id, self.app)
        self.assertEqual([it.id for it in theirs.endpoint.list(self.app).data], [endpoint])
        second = theirs.endpoint.create(self.app, EndpointIn(url="https://a.example/"))
        theirs.endpoint.patch(self.app, second.id, EndpointPatch(description="theirs"))
        self.assertTrue(theirs.endpoint.get_secret(self.app, second.id).key)
        theirs.endpoint.delete(self.app, second.id)
        theirs.event_type.list()
        message = self.send()
        self.attempts_of(message, 1)
        self.assertEqual([it.id for it in theirs.message.list(self.app).data], [message])
        theirs.message_attempt.resend(self.app, message, endpoint)
        self.receiver.wait_for(2)

        for forbidden in (
            lambda: theirs.message.create(self.app, MessageIn(event_type="a", payload={})),
            lambda: theirs.application.list(),
            lambda: theirs.application.create(ApplicationIn(name="mine")),
            lambda: theirs.application.delete(self.app),
            lambda: theirs.event_type.create(EventTypeIn(name=unique("t"), description="")),
            lambda: theirs.authentication.app_portal_access(self.app, AppPortalAccessIn()),
        ):
            with self.refused(403, "insufficient_access"):
                forbidden()
        other = self.svix.application.create(ApplicationIn(name="other")).id
        with self.refused(404, "not_found"):
            theirs.endpoint.list(other)

    def test_a_read_only_token_changes_nothing(self):
        wanted = AppPortalAccessIn(read_only=True)
        theirs = client(self.svix.authentication.app_portal_access(self.app, wanted).token)
        self.assertEqual(theirs.endpoint.list(self.app).data, [])
        with self.refused(403, "insufficient_access"):
            theirs.endpoint.create(self.app, EndpointIn(url="https://a.example/"))

    def test_access_may_create_the_application(self):
        uid = unique("customer")
        wanted = AppPortalAccessIn(application=ApplicationIn(name="new", uid=uid))
        theirs = client(self.svix.authentication.app_portal_access(uid, wanted).token)
        self.assertEqual(theirs.application.get(uid).name, "new")


class Refusals(Case):
    def test_what_is_not_there_is_404(self):
        for ask in (
            lambda: self.svix.application.get("nobody"),
            lambda: self.svix.endpoint.list("nobody"),
            lambda: self.svix.endpoint.get(self.app, "nothing"),
            lambda: self.svix.event_type.get(unique("nothing")),
            lambda: self.svix.message.get(self.app, "nothing"),
            lambda: self.svix.message.create("nobody", MessageIn(event_type="a", payload={})),
            lambda: self.svix.message_attempt.list_by_msg(self.app, "nothing"),
            lambda: self.svix.message_attempt.list_by_endpoint(self.app, "nothing"),
        ):
            with self.refused(404, "not_found"):
                ask()

    def test_a_name_that_is_taken_is_409(self):
        uid = unique("customer")
        self.svix.application.create(ApplicationIn(name="one", uid=uid))
        with self.refused(409, "conflict"):
            self.svix.application.create(ApplicationIn(name="two", uid=uid))
        endpoint = EndpointIn(url="https://a.example/", uid="main")
        self.svix.endpoint.create(self.app, endpoint)
        with self.refused(409, "conflict"):
            self.svix.endpoint.create(self.app, endpoint)

    def test_bad_input_is_422_and_names_the_field(self):
        endpoints = self.svix.endpoint
        good = "https://a.example/"
        for place, ask in (
            ("name", lambda: self.svix.application.create(ApplicationIn(name=""))),
            ("uid", lambda: self.svix.application.create(ApplicationIn(name="a", uid="a b"))),
            ("url", lambda: endpoints.create(self.app, EndpointIn(url="ftp://a.example/"))),
            ("url", lambda: endpoints.create(self.app, EndpointIn(url="nonsense"))),
            ("secret", lambda: endpoints.create(self.app, EndpointIn(url=good, secret="x"))),
            ("channels", lambda: endpoints.create(self.app, EndpointIn(url=good, channels=[]))),
            (
                "eventTypes",
                lambda: endpoints.create(
                    self.app, EndpointIn(url=good, event_types=[unique("unknown")])
                ),
            ),
            ("eventType", lambda: self.send(event_type="a b")),
            ("eventId", lambda: self.send(event_id="a b")),
        ):
            with self.subTest(place), self.invalid("body", place):
                ask()
        endpoint = self.endpoint()
        with self.invalid("body", "headers"):
            headers = EndpointHeadersIn(headers={"Content-Length": "1"})
            endpoints.set_headers(self.app, endpoint, headers)
        message = self.svix.message.get(self.app, self.send())
        with self.invalid("body", "since"):
            long_ago = message.timestamp - timedelta(days=15)
            endpoints.recover(self.app, endpoint, RecoverIn(since=long_ago))

    def test_bad_pages_are_refused(self):
        with self.invalid("query", "limit"):
            self.svix.application.list(ApplicationListOptions(limit=251))
        with self.invalid("query", "iterator"):
            self.svix.message.list(self.app, MessageListOptions(iterator="nonsense"))

    def test_what_is_not_served_says_so(self):
        with self.refused(404, "not_implemented"):
            self.svix.streaming.stream.list()
        with self.refused(404, "not_implemented"):
            self.svix.connector.list()
