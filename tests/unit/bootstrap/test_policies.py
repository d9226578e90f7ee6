"""A policy allows exactly the rights that it is made from, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.bootstrap.access import RIGHTS, probe_keys
from tarn.bootstrap.policies import policies, policy
from tarn.core.credentials import STORE_USERS
from tarn.core.errors import InvalidError
from tarn.core.services import AMONG_OTHERS, Action, Area
from tests.support.policies import allows

PARTS = (Area.HOLDS, Area.MEASURED)
NAMES = {Action.READ: "s3:GetObject", Action.WRITE: "s3:PutObject", Action.DELETE: "s3:DeleteObject"}
ACTIONS = st.frozensets(st.sampled_from(Action))


def may(found: dict[str, Any], action: Action, key: str) -> bool:
    if action is Action.LIST:
        return allows(found, "s3:ListBucket", "arn:aws:s3:::tarn", key.rpartition("/")[0] + "/")
    return allows(found, NAMES[action], f"arn:aws:s3:::tarn/{key}")


@st.composite
def rights(draw: st.DrawFn) -> dict[Area, frozenset[Action]]:
    held = {area: draw(ACTIONS) for area in Area}
    # Who may list the specs lists those of the workshop too: it is no right of its own.
    specs = (held[Area.WORKSHOP_SPECS] | held[Area.SPECS]) - {Action.LIST}
    parts = {area: held[area] | held[Area.REAPER] for area in PARTS}
    return {**held, **parts, Area.WORKSHOP_SPECS: specs}


@pytest.mark.long
@given(held=rights())
def test_any_rights_are_allowed_and_nothing_else(held: dict[Area, frozenset[Action]]) -> None:
    found = policy(held, "tarn")
    for area, keys in probe_keys("one", "run").items():
        for action in Action:
            if action is Action.LIST and area in AMONG_OTHERS:
                continue  # it lies below the same prefix as others
            for key in keys:
                assert may(found, action, key) == (action in held[area]), (action, key)
    assert not allows(found, "s3:ListBucket", "arn:aws:s3:::tarn", "")
    assert allows(found, "s3:GetBucketLocation", "arn:aws:s3:::tarn")
    for other in ("arn:aws:s3:::tarnished/catalog/x", "arn:aws:s3:::tarn/elsewhere/x"):
        assert not any(allows(found, name, other) for name in NAMES.values())


@pytest.mark.long
@given(held=rights(), part=st.sampled_from(PARTS))
def test_a_part_with_fewer_rights_than_the_rest_is_refused(
    held: dict[Area, frozenset[Action]], part: Area
) -> None:
    wrong = {**held, Area.REAPER: held[part] | {Action.READ}, part: held[part] - {Action.READ}}
    with pytest.raises(InvalidError, match="fewer rights than the rest of reaper"):
        policy(wrong, "tarn")


@pytest.mark.long
@given(held=rights())
def test_fewer_rights_on_specs_of_the_workshop_than_on_the_rest_are_refused(
    held: dict[Area, frozenset[Action]],
) -> None:
    wrong = {
        **held,
        Area.SPECS: held[Area.SPECS] | {Action.READ},
        Area.WORKSHOP_SPECS: held[Area.WORKSHOP_SPECS] - {Action.READ},
    }
    with pytest.raises(InvalidError, match="fewer rights than the rest of specs"):
        policy(wrong, "tarn")


def test_each_store_user_has_a_policy_with_its_rights() -> None:
    found = policies("tarn")
    assert set(found) == set(STORE_USERS)
    for user, held in RIGHTS.items():
        assert found[user] == policy(held, "tarn")


def test_who_writes_tables_uploads_in_parts_and_versions_of_metadata_are_safe() -> None:
    """Engines write large files in parts; a version of a metadata file is as precious as the file."""
    table = "arn:aws:s3:::tarn/warehouse/a/data/x.parquet"
    metadata = "arn:aws:s3:::tarn/warehouse/a/metadata/00000-x.metadata.json"
    found = policies("tarn")
    for user, held in RIGHTS.items():
        writes = Action.WRITE in held[Area.DATA]
        assert allows(found[user], "s3:AbortMultipartUpload", table) == writes, user
        assert allows(found[user], "s3:ListMultipartUploadParts", table) == writes, user
        denied = [s["Action"] for s in found[user]["Statement"] if s["Effect"] == "Deny"]
        unread = [] if Action.READ in held[Area.METADATA] else ["s3:GetObject"]
        changes = ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"]
        assert denied == ([[*unread, *changes]] if writes else []), user
    assert allows(found["catalog"], "s3:AbortMultipartUpload", metadata)


def test_a_policy_is_for_one_bucket() -> None:
    resources = {
        r for found in policies("lake-7").values() for s in found["Statement"] for r in s["Resource"]
    }
    assert {r.partition("/")[0] for r in resources} == {"arn:aws:s3:::lake-7"}
