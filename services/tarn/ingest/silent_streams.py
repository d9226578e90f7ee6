"""Streams of a table that commit nothing: others' commits repeat what they stated, and move their tags.

The tag of a stream keeps the snapshot of its last commit, with every file that the table had then. So a
commit on a version of the table does for a silent stream what an empty commit of its own on that version
would do. It is refused like any other if the stream commits at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from tarn.core import write_keys
from tarn.core.history import Retention, retention_of, snapshots_to_expire
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX
from tarn.core.table_state import Append, TableState, restated_property, sequence, stated_at
from tarn.ingest.batch_commit import STATED

SILENT_MS_MIN = 3_600_000
"""Age of a stream's tagged snapshot, in milliseconds, from which on it may be silent."""
STREAMS_MAX = 8
"""Streams that one commit repeats at most, those first that are silent for longest."""
CHARS_MAX = 8_192
"""Characters that they add to its summary at most; one stream that states more is repeated alone."""
REPEATED = (*STATED, write_keys.SUMMARY_PREFIX)


def with_silent(state: TableState, append: Append, *, now_ms: int, retention: Retention) -> Append:
    """The append; if it is a stream's, with what silent streams stated, whose tags keep old snapshots.

    What they stated is repeated as it is, so every version of the table says of them what it said before.

    Args:
        state: version of the table that the commit builds on.
        append: the commit.
        now_ms: wall-clock time in milliseconds since the epoch.
        retention: default snapshot retention, where the table's properties set none.

    Raises:
        InvalidError: the table's property for its history has an invalid value.
    """
    if not any(tag.startswith(TAG_PREFIX) for tag in append.tags):
        return append
    summary: dict[str, str] = {}
    tags: list[str] = []
    for tag in _due(state, append, now_ms=now_ms, retention=retention):
        stated = _stated(state, tag)
        if not stated:
            continue
        chars = sum(len(key) + len(text) for key, text in (summary | stated).items())
        if tags and chars > CHARS_MAX:
            break
        summary |= stated
        tags.append(tag)
        if len(tags) == STREAMS_MAX:
            break
    if not tags:
        return append
    return replace(append, summary={**append.summary, **summary}, tags=(*append.tags, *tags))


def _due(state: TableState, append: Append, *, now_ms: int, retention: Retention) -> list[str]:
    """Tags of streams that no other ref keeps the snapshots of, and that are older than the history."""
    rule = retention_of(state.properties, retention)
    if rule is None:
        return []
    silent_ms = max((SILENT_MS_MIN, *(step.until_ms for step in rule.steps)))
    tagged = {
        name: state.snapshot(int(ref["snapshot-id"]))
        for name, ref in state.refs.items()
        if name.startswith(TAG_PREFIX)
        and name not in append.tags
        and state.has_snapshot(int(ref["snapshot-id"]))
    }
    old = {name for name, one in tagged.items() if now_ms - int(one["timestamp-ms"]) >= silent_ms}
    if not old:
        return []
    others = {name: ref for name, ref in state.refs.items() if not name.startswith(TAG_PREFIX)}
    freed = set(snapshots_to_expire({**state.metadata, "refs": others}, rule, now_ms=now_ms, coming=1))
    due = [name for name in old if tagged[name]["snapshot-id"] in freed]
    return sorted(due, key=lambda name: (sequence(tagged[name]), name))


def _stated(state: TableState, tag: str) -> dict[str, str]:
    """What a commit repeats of the stream with this tag; nothing if this version of the table states none."""
    stream = tag.removeprefix(TAG_PREFIX)
    key = SUMMARY_PREFIX + stream
    last = state.newest_stating(key, tag=tag)
    if last is None:
        return {}
    since = stated_at(last, key)
    if stated_at(state.snapshot(int(state.refs[tag]["snapshot-id"])), key) > since:
        # Another client went back behind the stream's last commit: before this one, other versions differ.
        since = state.last_sequence + 1
    named = (prefix + stream for prefix in REPEATED)
    said = {name: str(last["summary"][name]) for name in named if name in last["summary"]}
    return said | {restated_property(key): str(since)}
