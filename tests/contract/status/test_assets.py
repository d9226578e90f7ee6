"""The page's files as they are served: types, policy, ETags, and nothing that the policy would refuse."""

from __future__ import annotations

import re
from importlib.resources import files

from tarn.ingest.status import StatusRegistry
from tarn.ingest.status_api.assets import Assets, policy
from tests.support.status_api import served

STREAM = "http://127.0.0.1:8092"
FOLDER = files("tarn.ingest").joinpath("page")


def test_every_file_is_served_with_its_type_and_headers() -> None:
    names = {one.name for one in FOLDER.iterdir()}
    assert {"index.html", "main.js", "page.css", "icon.svg"} <= names
    with served(StatusRegistry(), stream_url=STREAM) as client:
        for path in Assets().paths:
            reply = client.ask(path)
            assert reply.status == 200
            name = path.rpartition("/")[2] or "index.html"
            assert reply.body == FOLDER.joinpath(name).read_bytes()
            kind = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
            assert reply.headers["content-type"].startswith(kind[name.rpartition(".")[2]])
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.headers["content-security-policy"] == policy(STREAM)
            assert reply.headers["referrer-policy"] == "no-referrer"
            assert reply.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in reply.headers
    assert len(Assets().paths) == len(names)


def test_the_policy_allows_own_scripts_and_the_stream_and_nothing_else() -> None:
    found = dict(part.split(" ", 1) for part in policy(STREAM).split("; "))
    assert found["default-src"] == "'none'"
    assert found["script-src"] == found["style-src"] == found["img-src"] == "'self'"
    assert found["connect-src"] == f"'self' {STREAM}"
    assert found["frame-ancestors"] == found["base-uri"] == found["form-action"] == "'none'"
    assert "unsafe" not in policy(STREAM)
    assert "*" not in policy(STREAM)
    assert "connect-src 'self';" in policy("")


def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    with served(StatusRegistry()) as client:
        etag = client.ask("/").headers["etag"]
        for known in (etag, f'"other", {etag}', f"W/{etag}"):
            reply = client.ask("/", if_none_match=known)
            assert (reply.status, reply.body) == (304, b"")
            assert reply.headers["etag"] == etag
        assert client.ask("/", if_none_match='"other"').status == 200
        assert client.ask("/page/main.js").headers["etag"] != etag


def test_what_is_no_file_of_the_page_is_not_there() -> None:
    with served(StatusRegistry()) as client:
        for path in (
            "/page/",
            "/page/index.html",
            "/page/../settings.py",
            "/page/%2e%2e/settings.py",
            "/page/main.js/",
            "/page//main.js",
            "/page/__init__.py",
            "/index.html",
        ):
            assert client.ask(path).status == 404, path
        assert client.ask("/", method="POST").status == 404
        assert client.ask("/", method="HEAD").status == 405
        assert client.ask("/", host="evil.example:8091").status == 421


def test_the_page_has_nothing_inline_and_loads_nothing_from_elsewhere() -> None:
    html = FOLDER.joinpath("index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)", html)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)
    for address in re.findall(r'(?:src|href)="([^"]+)"', html):
        assert address.startswith(("/", "#")), address
        assert not address.startswith("//"), address
    for one in FOLDER.iterdir():
        text = one.read_text()
        strange = [at for at in re.findall(r"https?://[^\s\"'`)<]+", text) if "www.w3.org" not in at]
        assert strange == [], one.name
        for way in (
            "innerHTML",
            "outerHTML =",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert way not in text, (one.name, way)


def test_every_module_that_is_imported_is_there() -> None:
    paths = set(Assets().paths)
    for one in FOLDER.iterdir():
        for name in re.findall(r'from "\./([^"]+)"', one.read_text()):
            assert f"/page/{name}" in paths, (one.name, name)
