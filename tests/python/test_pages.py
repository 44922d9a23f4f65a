"""Every list, page by page: forwards to its end, and back to its beginning."""

from case import SECRET, Case, unique
from svix.api import (
    ApplicationIn,
    ApplicationListOptions,
    EndpointIn,
    EndpointListOptions,
    EventTypeIn,
    EventTypeListOptions,
    MessageAttemptListAttemptedDestinationsOptions,
    MessageAttemptListAttemptedMessagesOptions,
    MessageAttemptListByEndpointOptions,
    MessageAttemptListByMsgOptions,
    MessageListOptions,
)
from svix.models import Ordering

LIMIT = 3
# Two whole pages, so that the end falls on a page's end, and one that is not whole.
COUNTS = (2 * LIMIT, 2 * LIMIT + 1)


class Pages(Case):
    def walk(self, ask, options, key=lambda item: item.id):
        """All pages' keys; on the way back the same pages must come again."""
        pages, iterator = [], None
        while True:
            page = ask(options(limit=LIMIT, iterator=iterator))
            self.assertLessEqual(len(page.data), LIMIT)
            pages.append(page)
            self.assertLess(len(pages), 1000, "no end")
            if page.done:
                break
            self.assertEqual(page.iterator, key(page.data[-1]))
            self.assertEqual(page.prev_iterator, "-" + key(page.data[0]))
            iterator = page.iterator
        keys = [[key(item) for item in page.data] for page in pages]
        # Nothing lies behind the end.
        beyond = ask(options(limit=LIMIT, iterator=pages[-1].iterator))
        self.assertEqual((beyond.data, beyond.iterator, beyond.done), ([], None, True))

        back, page = [], pages[-1]
        while True:
            page = ask(options(limit=LIMIT, iterator=page.prev_iterator))
            if not page.data:
                break
            back.insert(0, [key(item) for item in page.data])
            self.assertEqual(page.done, len(back) == len(pages) - 1)
        self.assertEqual(back, keys[:-1])
        return [key for page in keys for key in page]

    def test_applications(self):
        made = [
            self.svix.application.create(ApplicationIn(name=unique("page"))).id for _ in range(7)
        ]
        # The organisation has those of all tests.
        everything = self.walk(self.svix.application.list, ApplicationListOptions)
        self.assertEqual([id for id in everything if id in made], made)
        self.assertEqual(everything, sorted(everything))

        def backwards(**rest):
            return ApplicationListOptions(order=Ordering.DESCENDING, **rest)

        self.assertEqual(self.walk(self.svix.application.list, backwards), everything[::-1])

    def test_endpoints(self):
        made = []
        ask = lambda options: self.svix.endpoint.list(self.app, options)

        def oldest_first(**rest):
            return EndpointListOptions(order=Ordering.ASCENDING, **rest)

        for count in COUNTS:
            while len(made) < count:
                wanted = EndpointIn(url="https://a.example/")
                made.append(self.svix.endpoint.create(self.app, wanted).id)
            self.assertEqual(self.walk(ask, EndpointListOptions), made[::-1])
            self.assertEqual(self.walk(ask, oldest_first), made)

    def test_event_types(self):
        made = sorted(unique("page") for _ in range(7))
        for name in made:
            self.svix.event_type.create(EventTypeIn(name=name, description=""))
        name_of = lambda item: item.name
        found = self.walk(self.svix.event_type.list, EventTypeListOptions, name_of)
        self.assertEqual([name for name in found if name in made], made)
        self.assertEqual(found, sorted(found))

    def test_messages(self):
        sent = []
        ask = lambda options: self.svix.message.list(self.app, options)
        for count in COUNTS:
            sent += [self.send({"n": n}) for n in range(count - len(sent))]
            self.assertEqual(self.walk(ask, MessageListOptions), sent[::-1])

    def test_attempts(self):
        endpoint = self.endpoint()
        sent, svix = [], self.svix.message_attempt
        by_endpoint = lambda options: svix.list_by_endpoint(self.app, endpoint, options)
        attempted = lambda options: svix.list_attempted_messages(self.app, endpoint, options)
        for count in COUNTS:
            sent += [self.send({"n": n}) for n in range(count - len(sent))]
            for message in sent:
                self.attempts_of(message, 1)
            found = self.walk(by_endpoint, MessageAttemptListByEndpointOptions)
            self.assertEqual(found, sorted(found, reverse=True))
            self.assertEqual(len(set(found)), count)
            found = self.walk(attempted, MessageAttemptListAttemptedMessagesOptions)
            self.assertEqual(found, sent[::-1])

    def test_attempts_of_a_message(self):
        endpoints = [self.endpoint(f"/{n}", secret=SECRET) for n in range(7)]
        message = self.send()
        found = self.attempts_of(message, len(endpoints))
        svix = self.svix.message_attempt
        by_message = lambda options: svix.list_by_msg(self.app, message, options)
        walked = self.walk(by_message, MessageAttemptListByMsgOptions)
        self.assertEqual(walked, [it.id for it in found])
        attempted = lambda options: svix.list_attempted_destinations(self.app, message, options)
        walked = self.walk(attempted, MessageAttemptListAttemptedDestinationsOptions)
        self.assertEqual(walked, endpoints)
        one = MessageAttemptListByMsgOptions(endpoint_id=endpoints[3])
        found = svix.list_by_msg(self.app, message, one).data
        self.assertEqual([it.endpoint_id for it in found], [endpoints[3]])
