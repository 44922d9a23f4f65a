"""Applications, endpoints and event types through the official client."""

from datetime import datetime, timedelta, timezone

from case import SECRET, Case, unique
from svix.api import (
    ApplicationIn,
    ApplicationPatch,
    EndpointHeadersIn,
    EndpointHeadersPatchIn,
    EndpointIn,
    EndpointPatch,
    EndpointUpsertIn,
    EventTypeDeleteOptions,
    EventTypeIn,
    EventTypeListOptions,
    EventTypePatch,
    EventTypeUpsertIn,
)


class Applications(Case):
    def test_create_get_and_get_or_create(self):
        uid = unique("customer")
        wanted = ApplicationIn(name="Shop", uid=uid, throttle_rate=7, metadata={"plan": "big"})
        created = self.svix.application.create(wanted)
        self.assertTrue(created.id.startswith("app_"))
        self.assertEqual((created.name, created.uid, created.throttle_rate), ("Shop", uid, 7))
        self.assertEqual(created.metadata, {"plan": "big"})
        age = datetime.now(timezone.utc) - created.created_at
        self.assertLess(abs(age), timedelta(minutes=1))
        self.assertEqual(self.svix.application.get(created.id), created)
        self.assertEqual(self.svix.application.get(uid), created)
        same = self.svix.application.get_or_create(ApplicationIn(name="Other", uid=uid))
        self.assertEqual(same, created)
        other = unique("customer")
        fresh = self.svix.application.get_or_create(ApplicationIn(name="Other", uid=other))
        self.assertEqual((fresh.name, fresh.uid), ("Other", other))
        self.assertNotEqual(fresh.id, created.id)

    def test_replace_and_patch(self):
        uid = unique("customer")
        created = self.svix.application.upsert(uid, ApplicationIn(name="One", uid=uid))
        replaced = self.svix.application.upsert(uid, ApplicationIn(name="Two", uid=uid))
        self.assertEqual((replaced.id, replaced.name), (created.id, "Two"))
        self.assertGreaterEqual(replaced.updated_at, created.updated_at)
        self.assertEqual(replaced.created_at, created.created_at)
        patch = ApplicationPatch(metadata={"a": "b"}, throttle_rate=3)
        patched = self.svix.application.patch(uid, patch)
        self.assertEqual((patched.name, patched.throttle_rate), ("Two", 3))
        self.assertEqual(patched.metadata, {"a": "b"})
        # What is null is reset, what is absent stays.
        patched = self.svix.application.patch(uid, ApplicationPatch(uid=None))
        self.assertEqual((patched.uid, patched.throttle_rate), (None, 3))
        self.assertEqual(self.svix.application.get(created.id), patched)

    def test_delete(self):
        uid = unique("customer")
        created = self.svix.application.create(ApplicationIn(name="Gone", uid=uid))
        self.assertIsNone(self.svix.application.delete(uid))
        with self.refused(404, "not_found"):
            self.svix.application.get(created.id)
        with self.refused(404, "not_found"):
            self.svix.application.delete(created.id)
        again = self.svix.application.create(ApplicationIn(name="Gone", uid=uid))
        self.assertNotEqual(again.id, created.id)


class Endpoints(Case):
    def test_create_and_get(self):
        kind = unique("order")
        self.svix.event_type.create(EventTypeIn(name=kind, description="an order"))
        wanted = EndpointIn(
            url="https://shop.example/in?key=1",
            description="main",
            uid="main",
            throttle_rate=9,
            event_types=[kind],
            channels=["eu", "us"],
            metadata={"team": "a"},
            secret=SECRET,
            headers={"X-Shop": "1", "X-Token": "2"},
        )
        created = self.svix.endpoint.create(self.app, wanted)
        self.assertTrue(created.id.startswith("ep_"))
        self.assertEqual(created.url, "https://shop.example/in?key=1")
        self.assertEqual((created.description, created.uid), ("main", "main"))
        self.assertEqual((created.throttle_rate, created.disabled), (9, False))
        self.assertEqual((created.event_types, created.channels), ([kind], ["eu", "us"]))
        self.assertEqual(created.metadata, {"team": "a"})
        self.assertEqual(self.svix.endpoint.get(self.app, created.id), created)
        self.assertEqual(self.svix.endpoint.get(self.app, "main"), created)
        self.assertEqual(self.svix.endpoint.list(self.app).data, [created])
        self.assertEqual(self.svix.endpoint.get_secret(self.app, "main").key, SECRET)
        headers = self.svix.endpoint.get_headers(self.app, "main")
        self.assertEqual(headers.headers, {"X-Shop": "1", "X-Token": "2"})
        self.assertEqual(headers.sensitive, [])

    def test_replace_and_patch(self):
        wanted = EndpointIn(url="https://one.example/", channels=["a"], secret=SECRET, uid="it")
        created = self.svix.endpoint.create(self.app, wanted)
        by_put = EndpointUpsertIn(url="https://two.example/", uid="it", disabled=True)
        replaced = self.svix.endpoint.upsert(self.app, created.id, by_put)
        self.assertEqual((replaced.id, replaced.url), (created.id, "https://two.example/"))
        self.assertEqual((replaced.channels, replaced.disabled), (None, True))
        self.assertEqual(self.svix.endpoint.get_secret(self.app, "it").key, SECRET)
        patch = EndpointPatch(description="now", channels=["b"], disabled=False)
        patched = self.svix.endpoint.patch(self.app, "it", patch)
        self.assertEqual((patched.url, patched.description), ("https://two.example/", "now"))
        self.assertEqual((patched.channels, patched.disabled), (["b"], False))
        patched = self.svix.endpoint.patch(self.app, "it", EndpointPatch(channels=None))
        self.assertEqual((patched.channels, patched.description), (None, "now"))
        new = EndpointUpsertIn(url="https://new.example/", uid="new")
        fresh = self.svix.endpoint.upsert(self.app, "new", new)
        self.assertNotEqual(fresh.id, created.id)
        self.assertEqual(self.svix.endpoint.get(self.app, "new"), fresh)

    def test_headers(self):
        endpoint = self.endpoint()
        wanted = {"X-One": "1", "X-Two": "2", "Authorization": "Bearer abc"}
        sent = EndpointHeadersIn(headers=wanted)
        self.assertIsNone(self.svix.endpoint.set_headers(self.app, endpoint, sent))
        shown = self.svix.endpoint.get_headers(self.app, endpoint)
        self.assertEqual(shown.headers, {"X-One": "1", "X-Two": "2"})
        self.assertEqual(shown.sensitive, ["Authorization"])
        patch = EndpointHeadersPatchIn(headers={"X-Three": "3"}, delete_headers=["X-Two"])
        self.assertIsNone(self.svix.endpoint.patch_headers(self.app, endpoint, patch))
        shown = self.svix.endpoint.get_headers(self.app, endpoint)
        self.assertEqual(shown.headers, {"X-One": "1", "X-Three": "3"})
        # The very next message carries them.
        self.send()
        (request,) = self.receiver.wait_for(1)
        found = [request.headers.get(name) for name in ("x-one", "x-two", "x-three")]
        self.assertEqual(found, ["1", None, "3"])
        self.assertEqual(request.headers["authorization"], "Bearer abc")

    def test_delete(self):
        endpoint = self.endpoint()
        self.assertIsNone(self.svix.endpoint.delete(self.app, endpoint))
        with self.refused(404, "not_found"):
            self.svix.endpoint.get(self.app, endpoint)
        self.assertEqual(self.svix.endpoint.list(self.app).data, [])


class EventTypes(Case):
    def test_all_of_its_life(self):
        name = unique("invoice.paid")
        schema = {"1": {"type": "object", "properties": {"id": {"type": "string"}}}}
        wanted = EventTypeIn(name=name, description="paid", schemas=schema)
        created = self.svix.event_type.create(wanted)
        self.assertEqual((created.name, created.description), (name, "paid"))
        self.assertEqual((created.archived, created.deprecated), (False, False))
        self.assertEqual(created.schemas, schema)
        self.assertEqual(self.svix.event_type.get(name), created)
        with self.refused(409, "event_type_exists"):
            self.svix.event_type.create(wanted)

        patched = self.svix.event_type.patch(name, EventTypePatch(deprecated=True))
        self.assertEqual((patched.deprecated, patched.schemas), (True, schema))
        replaced = self.svix.event_type.upsert(name, EventTypeUpsertIn(description="new"))
        self.assertEqual((replaced.description, replaced.deprecated), ("new", False))
        self.assertIsNone(replaced.schemas)
        other = unique("invoice.sent")
        fresh = self.svix.event_type.upsert(other, EventTypeUpsertIn(description="sent"))
        self.assertEqual(fresh.name, other)

        self.assertIsNone(self.svix.event_type.delete(name))
        self.assertEqual(self.svix.event_type.get(name).archived, True)
        self.assertNotIn(name, self.names())
        self.assertIn(name, self.names(include_archived=True))
        with self.invalid("body", "eventTypes"):
            archived = EndpointIn(url="https://a.example/", event_types=[name])
            self.svix.endpoint.create(self.app, archived)
        # Created again, it is back.
        self.assertEqual(self.svix.event_type.create(wanted).archived, False)
        self.svix.event_type.delete(name, EventTypeDeleteOptions(expunge=True))
        with self.refused(404, "not_found"):
            self.svix.event_type.get(name)

    def test_a_list_holds_schemas_only_when_asked(self):
        name = unique("with-schema")
        schemas = {"1": {"type": "object"}}
        self.svix.event_type.create(EventTypeIn(name=name, description="", schemas=schemas))
        found = {it.name: it for it in self.pages(with_content=True)}
        self.assertEqual(found[name].schemas, schemas)
        found = {it.name: it for it in self.pages(with_content=False)}
        self.assertFalse(found[name].schemas)

    def names(self, **options):
        return [it.name for it in self.pages(**options)]

    def pages(self, **options):
        found, iterator = [], None
        while True:
            asked = EventTypeListOptions(limit=250, iterator=iterator, **options)
            page = self.svix.event_type.list(asked)
            found += page.data
            if page.done:
                return found
            iterator = page.iterator
