"""The stored JSON of every register value, byte for byte, as lakes of earlier releases hold it."""

from __future__ import annotations

from typing import Any

import pytest

from tarn_catalog.state.access import (
    THE_WAREHOUSE,
    AccessState,
    Grant,
    Privilege,
    Securable,
    StoredPrincipal,
)
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.namespace import Namespace, NamespaceState
from tarn_catalog.state.pointer import Pointer, PointerState
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.request_history import CompletedRequest, Page, RequestHistory
from tarn_catalog.state.value import Intent

HISTORY = RequestHistory(
    inline=(
        CompletedRequest(nonce="n0", version=1, at_ms=5),
        CompletedRequest(nonce="n1", version=2, at_ms=6, key="k", what="commit:1"),
    ),
    pages=(Page(key="catalog/v1/keys/u/p.json", level=1, to_ms=4),),
)
STORED_HISTORY = (
    b'"recent":[["n0",1,5],["n1",2,6,"k","commit:1"]],"key-pages":[["catalog/v1/keys/u/p.json",1,4]]'
)
INTENT = Intent(
    record="catalog/v1/transactions/x.json", nonce="tx", then={"state": "live"}, at_ms=7, key="k", what="w:1"
)
STORED_INTENT = (
    b'{"record":"catalog/v1/transactions/x.json","nonce":"tx","then":{"state":"live"},"at-ms":7,"key":"k",'
    b'"what":"w:1"}'
)
STORED: tuple[tuple[Any, bytes], ...] = (
    (
        Pointer(
            namespace=("a", "b"), name="t", uuid="u", version=2, metadata="s3://m", memory=HISTORY, nonce="n1"
        ),
        b'{"format":1,"kind":"table","state":"live","namespace":["a","b"],"name":"t","table-uuid":"u",'
        b'"version":2,"metadata-location":"s3://m",' + STORED_HISTORY + b',"nonce":"n1","intent":null}',
    ),
    (
        Pointer(
            namespace=("a",), name="t", uuid="u", version=1, metadata="s3://m", nonce="n1", intent=INTENT
        ),
        b'{"format":1,"kind":"table","state":"live","namespace":["a"],"name":"t","table-uuid":"u",'
        b'"version":1,"metadata-location":"s3://m","recent":[],"key-pages":[],"nonce":"n1","intent":'
        + STORED_INTENT
        + b"}",
    ),
    (
        Pointer(
            state=PointerState.DROPPED,
            namespace=("a",),
            name="t",
            uuid="u",
            version=2,
            metadata=None,
            nonce="n1",
            moved=("c", "d", "t2"),
        ),
        b'{"format":1,"kind":"table","state":"dropped","namespace":["a"],"name":"t","table-uuid":"u",'
        b'"version":2,"metadata-location":null,"recent":[],"key-pages":[],"nonce":"n1","intent":null,'
        b'"moved":["c","d","t2"]}',
    ),
    (
        Namespace(
            levels=("a", "b"),
            uuid="u",
            properties={"owner": "ops"},
            version=2,
            memory=HISTORY,
            nonce="n1",
        ),
        b'{"format":1,"namespace":["a","b"],"uuid":"u","state":"live","properties":{"owner":"ops"},'
        b'"version":2,' + STORED_HISTORY + b',"nonce":"n1"}',
    ),
    (
        Namespace(
            levels=("a", "b"), uuid="", state=NamespaceState.DROPPED, version=1, nonce="n1", making=True
        ),
        b'{"format":1,"namespace":["a","b"],"uuid":"","state":"dropped","properties":{},"version":1,'
        b'"recent":[],"key-pages":[],"nonce":"n1","making":true}',
    ),
    (
        Claim(uuid="u", holder="catalog/v1/pointers/a/t.json", version=2, memory=HISTORY, nonce="n1"),
        b'{"format":1,"table-uuid":"u","holder":"catalog/v1/pointers/a/t.json","purge":null,"version":2,'
        + STORED_HISTORY
        + b',"nonce":"n1","intent":null}',
    ),
    (
        Claim(uuid="u", purge={"name": "t", "at-ms": 7}, version=1, nonce="n1", intent=INTENT),
        b'{"format":1,"table-uuid":"u","holder":null,"purge":{"name":"t","at-ms":7},"version":1,'
        b'"recent":[],"key-pages":[],"nonce":"n1","intent":' + STORED_INTENT + b"}",
    ),
    (
        Record(uuid="x", state=RecordState.COMMITTED, keys=("k1", "k2"), at_ms=7, nonce="n1"),
        b'{"format":1,"transaction":"x","state":"committed","keys":["k1","k2"],"at-ms":7,"nonce":"n1"}',
    ),
    (
        Pointer(
            namespace=("a",),
            name="v",
            uuid="u",
            version=1,
            metadata="s3://m",
            nonce="n1",
            kind="view",
            owner="ann-1",
        ),
        b'{"format":1,"kind":"view","state":"live","namespace":["a"],"name":"v","table-uuid":"u",'
        b'"version":1,"metadata-location":"s3://m","recent":[],"key-pages":[],"nonce":"n1","intent":null,'
        b'"owner":"ann-1"}',
    ),
    (
        Namespace(levels=("a",), uuid="u", version=1, nonce="n1", owner="ann-1"),
        b'{"format":1,"namespace":["a"],"uuid":"u","state":"live","properties":{},"version":1,"recent":[],'
        b'"key-pages":[],"nonce":"n1","owner":"ann-1"}',
    ),
    (
        AccessState(
            uuid="g",
            principals=(
                StoredPrincipal(client_id="ann-1", name="ann", secret_sha256="ab" * 32, at_ms=5, by="cli"),
            ),
            roles={"admin": ("ann",), "staff": ()},
            grants=(
                Grant(on=THE_WAREHOUSE, to="staff", privileges=frozenset({Privilege.READ})),
                Grant(
                    on=Securable(kind="table", uuid="u", name=("a", "b", "t")),
                    to="ann",
                    privileges=frozenset({Privilege.WRITE, Privilege.MANAGE}),
                ),
            ),
            version=2,
            memory=HISTORY,
            nonce="n1",
        ),
        b'{"format":1,"uuid":"g","principals":{"ann-1":{"name":"ann","secret-sha256":"'
        + b"ab" * 32
        + b'","at-ms":5,"by":"cli"}},"roles":{"admin":["ann"],"staff":[]},"grants":['
        b'{"on":{"kind":"warehouse"},"to":"staff","privileges":["READ"]},{"on":{"kind":"table","uuid":"u","name":["a","b","t"]},'
        b'"to":"ann","privileges":["MANAGE","WRITE"]}],"version":2,' + STORED_HISTORY + b',"nonce":"n1"}',
    ),
)


@pytest.mark.parametrize(("value", "stored"), STORED)
def test_every_value_is_stored_with_the_same_bytes(value: Any, stored: bytes) -> None:
    assert value.dump() == stored
    assert type(value).load(stored, "key") == value
