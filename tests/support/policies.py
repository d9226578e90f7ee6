"""What a store decides by a policy in S3's policy language, for tests."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any


def allows(found: dict[str, Any], action: str, resource: str, prefix: str | None = None) -> bool:
    """What a store decides: a denial wins, and what no statement allows is denied."""
    effects = set()
    for statement in found["Statement"]:
        patterns = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        if patterns is not None and not any(fnmatchcase(prefix or "", one) for one in patterns):
            continue
        if action in statement["Action"] and any(fnmatchcase(resource, r) for r in statement["Resource"]):
            effects.add(statement["Effect"])
    return effects == {"Allow"}


ACTIONS = {"get": "s3:GetObject", "put": "s3:PutObject", "delete": "s3:DeleteObject"}


def opens(found: dict[str, Any], bucket: str, action: str, key: str) -> bool:
    """Whether a policy allows `get`, `put` or `delete` of a key, or `list` of a prefix."""
    if action == "list":
        return allows(found, "s3:ListBucket", f"arn:aws:s3:::{bucket}", key)
    return allows(found, ACTIONS[action], f"arn:aws:s3:::{bucket}/{key}")
