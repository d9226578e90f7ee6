"""The store adapter's view of a server's responses: each status is one of Tarn's errors with a message."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlsplit
from xml.sax.saxutils import escape

import pytest

from tarn.adapters.bulk import S3Bulk
from tarn.adapters.store import S3Store
from tarn.adapters.store_listing import authorization, list_keys
from tarn.core.errors import InvalidNameError
from tarn.core.object_store import (
    GET_BYTES_MAX,
    StoreBusyError,
    Stored,
    StoreDeniedError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
    StoreTooLargeError,
    StoreUnavailableError,
)

FULL = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>{}</Message><Key>k</Key></Error>'
)


class Answers(ThreadingHTTPServer):
    """Sends the same response to every request and counts the requests."""

    status, body, asked, sent = 200, "", 0, ""
    length: int | None = None
    """Length in the head; None: that of the body."""

    def __init__(self, *address: Any) -> None:
        super().__init__(*address)
        self.alone: list[str] = []
        self.single = 204


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def answer(self) -> None:
        self.server.asked += 1
        self.server.sent = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        data = self.server.body.encode()
        self.send_response(self.server.status)
        self.send_header(
            "content-length", str(len(data) if self.server.length is None else self.server.length)
        )
        self.send_header("etag", '"1"')
        self.send_header("last-modified", "Sat, 21 Nov 2026 08:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_DELETE = do_POST = answer  # noqa: N815 - the names that the library looks for

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Answers]:
    with Answers(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def store(server: Answers) -> S3Store:
    return S3Store(
        bucket="b",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        sleep=lambda _: None,
    )


@pytest.mark.parametrize(
    ("status", "body", "error", "told"),
    [
        (503, "", StoreBusyError, "asks to slow down"),
        (429, "", StoreBusyError, "asks to slow down"),
        (403, "", StoreDeniedError, "check the store user and its policy"),
        (400, "", StoreDeniedError, "check bucket and settings"),
        (400, FULL.format("InvalidRequest", "no RequestTimeout"), StoreDeniedError, "check bucket and"),
        (400, FULL.format("RequestTimeout", "not read in time"), StoreOutcomeUnknownError, "it may have"),
        (400, FULL.format("IncompleteBody", "too short"), StoreOutcomeUnknownError, "it may have happened"),
        (408, "", StoreOutcomeUnknownError, "it may have happened"),
        (500, "", StoreOutcomeUnknownError, "it may have happened"),
        (507, FULL.format("XMinioStorageFull", "no room"), StoreOutcomeUnknownError, "is full; free some"),
        (
            500,
            FULL.format("InternalError", "drive path full"),
            StoreOutcomeUnknownError,
            "is full; free some",
        ),
        (412, "", StoreRefusedError, "refused to write k"),
    ],
)
def test_a_write_is_told_by_its_status(
    server: Answers, store: S3Store, status: int, body: str, error: type[Exception], told: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(error, match=told) as caught:
        store.put("k", b"1")
    assert type(caught.value) is error
    assert server.asked == 1, "who writes decides whether it is tried again"


@pytest.mark.parametrize(
    ("status", "error", "asked"), [(500, StoreUnavailableError, 3), (403, StoreDeniedError, 1)]
)
def test_a_read_is_tried_again_unless_it_is_refused(
    server: Answers, store: S3Store, status: int, error: type[Exception], asked: int
) -> None:
    server.status = status
    with pytest.raises(error):
        store.get("k")
    assert server.asked == asked


def test_an_object_that_is_too_long_is_not_read_whole(store: S3Store, server: Answers) -> None:
    server.status, server.length = 200, GET_BYTES_MAX + 1
    with pytest.raises(
        StoreTooLargeError, match="k has 134217729 bytes, more than the 128 MiB that are read"
    ):
        store.get("k")
    assert server.asked == 1
    server.body, server.length = "abc", 3
    found = store.get("k")
    assert found is not None
    assert found.data == b"abc"


@pytest.mark.parametrize("kind", [S3Store, S3Bulk])
def test_a_process_with_little_memory_reads_less_and_says_how_much(
    server: Answers, kind: type[S3Store]
) -> None:
    store = kind(
        bucket="b",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        get_bytes_max=8 << 20,
    )
    server.status, server.length = 200, (8 << 20) + 1
    with pytest.raises(StoreTooLargeError, match="k has 8388609 bytes, more than the 8 MiB that are read"):
        store.get("k")
    assert server.asked == 1


def test_not_modified_is_what_was_known_and_never_absence(server: Answers, store: S3Store) -> None:
    server.status = 304
    known = Stored(data=b"", etag='"0"')
    assert store.get("k", known=known) is known
    with pytest.raises(StoreUnavailableError, match="could not read k"):
        store.get("k")


@pytest.mark.parametrize("kind", [S3Store, S3Bulk])
@pytest.mark.parametrize("key", ["a//b", "a/../b", "/a", "a/", "a/\x01", "\ud800", "", "a/" * 512])
def test_a_key_that_the_library_refuses_or_takes_for_another_one_is_no_objects(
    server: Answers, kind: type[S3Store], key: str
) -> None:
    store = store_at(server, kind)
    assert store.get(key) is None
    store.delete(key)
    store.delete_many([key])
    writes = [lambda: store.put(key, b"1")]
    if isinstance(store, S3Bulk):
        assert store.open(key) is None
        writes += [lambda: store.put_parts(key, iter([b"1"])), lambda: store.part(key, 0, 1)]
    for write in writes:
        with pytest.raises(InvalidNameError, match="no object can have the key"):
            write()
    assert server.asked == 0


@pytest.mark.parametrize("code", ["XMinioInvalidObjectName", "KeyTooLongError"])
def test_a_key_of_which_the_store_says_that_no_object_can_have_it_is_missing(
    server: Answers, code: str
) -> None:
    """A part of 300 bytes is no name of a file, so MinIO refuses what S3 takes."""
    store = store_at(server, S3Bulk)
    server.status, server.body = 400, FULL.format(code, "Object name contains unsupported characters.")
    assert store.get("a/" + "b" * 300) is None
    assert store.open("a/" + "b" * 300) is None
    store.delete("a/" + "b" * 300)
    assert server.asked == 3, "it is not asked again"
    server.body = FULL.format("InvalidRequest", f"{code} it said")
    with pytest.raises(StoreUnavailableError):
        store.get("a")


LISTING = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "{}<IsTruncated>{}</IsTruncated>{}</ListBucketResult>"
)
ENTRY = (
    "<Contents><Key>{}</Key><LastModified>2026-11-21T08:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>"
    "<Size>3</Size></Contents>"
)
STRANGE = ("a/\t.json", "a/ws-\x01", "a/\x7f")


class Listing(Answers):
    """Lists these keys, a page after the other, as an S3 store does; takes note of the requests."""

    pages: Sequence[Sequence[str]] = ()
    encodes = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Lister)
        self.requests: list[tuple[dict[str, str], dict[str, str]]] = []


class Lister(Handler):
    server: Listing

    def do_GET(self) -> None:
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        self.server.requests.append((query, {name.lower(): value for name, value in self.headers.items()}))
        after = query.get("start-after", "")
        pages = [[key for key in page if key > after] for page in self.server.pages]
        number = int(query.get("continuation-token", "0"))
        more = number + 1 < len(pages)
        asked = self.server.encodes and query.get("encoding-type") == "url"
        encode, encoding = (quote_plus, "<EncodingType>url</EncodingType>") if asked else (xml, "")
        found = "".join(ENTRY.format(encode(key)) for key in pages[number])
        token = f"<NextContinuationToken>{number + 1}</NextContinuationToken>" if more else ""
        self.server.body = LISTING.format(encoding, str(more).lower(), found + token)
        self.answer()


def xml(key: str) -> str:
    """A key as text of XML; control characters by their numbers."""
    return "".join(f"&#{ord(char)};" if ord(char) < 32 else char for char in escape(key))


@pytest.fixture
def listing() -> Iterator[Listing]:
    with Listing() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def store_at(server: Answers, kind: type[S3Store] = S3Store) -> S3Store:
    return kind(
        bucket="b",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
    )


@pytest.mark.parametrize("kind", [S3Store, S3Bulk])
@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_strange_key_hides_no_other(listing: Listing, kind: type[S3Store], strange: str, at: int) -> None:
    """S3 takes control characters in keys, so whoever may write below a prefix may write such a key."""
    good = [["a/b c+%.json", "a/b.json"], ["a/z.json"], ["a/é&.json"]]
    listing.pages = [[*page, strange] if number == at else page for number, page in enumerate(good)]
    found = list(store_at(listing, kind).list("a/"))
    assert sorted(one.key for one in found) == sorted(key for page in good for key in page)
    assert {(one.etag, one.size_bytes, one.modified_ms) for one in found} == {('"1"', 3, 1_795_248_000_000)}
    assert [one.key for one in store_at(listing, kind).list("a", after="a/y")] == ["a/z.json", "a/é&.json"]


@pytest.mark.parametrize("encodes", [True, False])
def test_keys_are_decoded_only_if_the_store_says_that_it_encoded_them(
    listing: Listing, encodes: bool
) -> None:
    listing.pages, listing.encodes = [["a/b+c.json", "a/d%41.json", "a/e f.json", "a/\x7f"]], encodes
    found = [one.key for one in list_keys(store_at(listing)._access, "a")]
    assert found == ["a/b+c.json", "a/d%41.json", "a/e f.json"]


def test_such_a_listing_is_signed_as_the_library_signs_its_own(listing: Listing) -> None:
    listing.pages = [["a b/c.json"]]
    store = store_at(listing)
    assert [one.key for one in store.list("a b")] == ["a b/c.json"]
    ((query, headers),) = listing.requests
    signed = authorization(
        store._access,
        query,
        host=headers["host"],
        stamp=headers["x-amz-date"],
        digest=headers["x-amz-content-sha256"],
    )
    assert signed == headers["authorization"]
    assert "secret" not in repr(store._access)


@pytest.mark.parametrize(("status", "error"), [(403, StoreDeniedError), (500, StoreUnavailableError)])
def test_a_listing_that_is_refused_says_so(server: Answers, status: int, error: type[Exception]) -> None:
    server.status = status
    with pytest.raises(error, match="list a"):
        list(list_keys(store_at(server)._access, "a"))
    server.status, server.body = 200, "no XML"
    with pytest.raises(StoreUnavailableError, match="ParseError"):
        list(list_keys(store_at(server)._access, "a"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<html><body>Welcome</body></html>", "the answer is no listing, but html"),
        (FULL.format("SlowDown", "Wait."), "the answer is no listing, but Error"),
        (LISTING.format("", "false", ENTRY.format("a/b").replace("3</Size>", "</Size>")), "ValueError"),
        (LISTING.format("", "false", ENTRY.format("a/b").replace("2026-11-21T", "")), "ValueError"),
    ],
)
def test_an_answer_that_is_no_listing_is_not_an_empty_one(server: Answers, body: str, words: str) -> None:
    """What lists nothing would count as a lake without files."""
    server.body = body
    with pytest.raises(StoreUnavailableError, match=f"could not list a at .*: {words}"):
        list(list_keys(store_at(server)._access, "a"))


RESULT = '<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</DeleteResult>'
NOT_DELETED = "<Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>{}</Code><Message>{}</Message></Error>"


def test_many_keys_are_deleted_by_one_request(server: Answers, store: S3Store) -> None:
    server.body = RESULT.format("<Deleted><Key>a</Key></Deleted><Deleted><Key>b c%2F&amp;</Key></Deleted>")
    store.delete_many(["a", "b c%2F&"])
    assert server.asked == 1
    assert "<Key>a</Key>" in server.sent
    assert "<Key>b c%2F&amp;</Key>" in server.sent
    store.delete_many([])
    assert server.asked == 1


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (200, RESULT.format(NOT_DELETED.format("AccessDenied", "No.")), StoreDeniedError, "may not delete 2"),
        (200, RESULT.format(NOT_DELETED.format("SlowDown", "Wait.")), StoreBusyError, "asks to slow down"),
        (
            200,
            RESULT.format(NOT_DELETED.format("InternalError", "(code: SlowDown) it said")),
            StoreOutcomeUnknownError,
            "<Key>b</Key><Code>InternalError",
        ),
        (
            200,
            RESULT.format(NOT_DELETED.format("NoSuchBucket", "(code: AccessDenied) it said")),
            StoreOutcomeUnknownError,
            r"key b: \(code: AccessDenied\) it said \(code: NoSuchBucket\)",
        ),
        (200, "<DeleteResult><Del", StoreOutcomeUnknownError, "no answer to: delete 2 objects"),
        (403, FULL.format("AccessDenied", "No."), StoreDeniedError, "may not delete 2 objects"),
        (503, "", StoreBusyError, "asks to slow down"),
        (500, "", StoreOutcomeUnknownError, "it may have happened"),
    ],
)
def test_what_was_not_deleted_of_many_is_known_by_its_code(
    server: Answers, store: S3Store, status: int, body: str, error: type[Exception], message: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(error, match=message) as caught:
        store.delete_many(["a", "b"])
    assert type(caught.value) is error
    assert server.asked == 1


class Refusing(Handler):
    """Deletes what it is asked to, and refuses one key among others as one that no object can have."""

    server: Answers

    def do_POST(self) -> None:
        self.server.body = RESULT.format(
            NOT_DELETED.format("XMinioInvalidObjectName", "Object name contains unsupported characters.")
        )
        self.answer()

    def do_DELETE(self) -> None:
        impossible = self.path.endswith("/b")
        self.server.status = 400 if impossible else self.server.single
        self.server.body = FULL.format("XMinioInvalidObjectName", "No.") if impossible else ""
        self.server.alone.append(self.path.rpartition("/")[2])
        self.answer()


@pytest.mark.parametrize("single", [204, 403])
def test_a_key_that_the_store_refuses_among_others_hides_no_error_of_them(single: int) -> None:
    """The library names one error of an answer that may have several."""
    with Answers(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        server.single = single
        if single == 204:
            store_at(server).delete_many(["a", "b", "c"])
            assert server.alone == ["a", "b", "c"]
        else:
            with pytest.raises(StoreDeniedError):
                store_at(server).delete_many(["a", "b", "c"])
        server.shutdown()
        thread.join()
