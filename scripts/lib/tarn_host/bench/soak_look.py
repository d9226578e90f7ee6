"""Parsers of samples: memory, swap, threads and open files of a running container; bytes in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MIB = 1024 * 1024
LAST_SAMPLES = 2
INSIDE = r"""
cd /sys/fs/cgroup
for f in memory.stat memory/memory.stat; do [ -r $f ] && sed 's/^/stat /' $f; done
for f in memory.current memory.swap.current memory/memory.usage_in_bytes; do
  [ -r $f ] && echo "file $f $(cat $f)"
done
echo "threads $(ls -d /proc/[0-9]*/task/[0-9]* 2>/dev/null | wc -l)"
echo "open $(ls -d /proc/[0-9]*/fd/[0-9]* 2>/dev/null | wc -l)"
"""
"""Shell script run in each container; supports cgroup v1 and v2."""
STORE = (
    r"""find /data -type f -printf '%s\t%P\n' 2>/dev/null | awk -F'\t' """
    r"""'{ n = split($2, p, "/"); key = p[1] "/" p[2]; """
    r"""if (p[2] == "warehouse") key = key "/" p[3] "/" p[4] "/" p[5]; """
    r"""s[key] += $1; c[key]++ } END { for (k in s) print s[k] "\t" c[k] "\t" k }'"""
)
"""Shell script run in minio: bytes of its files below each table's folders, including MinIO's own headers."""
INSPECT = "{{.Id}}\t{{.RestartCount}}"


def parse_inside(text: str) -> dict[str, int]:
    """Bytes of memory, threads and open files from what INSIDE printed. Pure.

    `working` is what `docker stats` shows: memory without reclaimable file cache.

    Raises:
        ValueError: the text is not INSIDE's output.
    """
    stat: dict[str, int] = {}
    files: dict[str, int] = {}
    found: dict[str, int] = {}
    for row in text.splitlines():
        words = row.split()
        if words[:1] == ["stat"] and len(words) == 3:
            stat[words[1]] = int(words[2])
        elif words[:1] == ["file"] and len(words) == 3:
            files[words[1].rpartition("/")[2]] = int(words[2])
        elif words[:1] in (["threads"], ["open"]) and len(words) == 2:
            found[words[0]] = int(words[1])
    used = files.get("memory.current", files.get("memory.usage_in_bytes"))
    if used is None or "threads" not in found:
        raise ValueError(f"no memory and threads in {text[:80]!r}")
    found["anon"] = stat.get("anon", stat.get("total_rss", 0))
    found["shmem"] = stat.get("shmem", stat.get("total_shmem", 0))
    found["swap"] = files.get("memory.swap.current", stat.get("total_swap", 0))
    found["working"] = max(0, used - stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return found


def parse_inspect(text: str) -> dict[str, int]:
    """Container id (12 digits) -> number of restarts by the engine. Pure."""
    rows = [row.split("\t") for row in text.splitlines()]
    return {row[0][:12]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def parse_store(text: str) -> dict[str, Any]:
    """Bytes and files in the store: in total, of the catalog, and of each table's data and metadata. Pure.

    A table's folder ends in a UUID; tables of the same name are added up.
    """
    found: dict[str, Any] = {"bytes": 0, "files": 0, "catalog": 0, "other": 0, "tables": {}}
    for row in text.splitlines():
        size, count, key = [*row.split("\t"), "", "", ""][:3]
        if not size.isdigit() or not count.isdigit():
            continue
        found["bytes"] += int(size)
        found["files"] += int(count)
        parts = key.split("/")
        if parts[1:2] == ["warehouse"] and len(parts) == 5 and parts[4] in ("data", "metadata"):
            name = f"{parts[2]}.{_without_uuid(parts[3])}"
            table = found["tables"].setdefault(name, {"data": 0, "metadata": 0})
            table[parts[4]] += int(size)
        elif parts[1:2] == ["catalog"]:
            found["catalog"] += int(size)
        else:
            found["other"] += int(size)
    return found


def _without_uuid(folder: str) -> str:
    """`flights-0b6c…` without its UUID, with or without hyphens."""
    for length in (36, 32):
        head, tail = folder[: -length - 1], folder[-length:]
        if head and len(tail) == length and all(c in "0123456789abcdef-" for c in tail):
            return head
    return folder


def parse_answers(rows: Iterable[str]) -> list[dict[str, Any]]:
    """The rows that are JSON objects, parsed. Pure."""
    found = []
    for row in rows:
        if row.startswith("{"):
            try:
                found.append(json.loads(row))
            except ValueError:
                continue
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, p50, p95 and maximum (nearest rank); only `n` if there are no values. Pure."""
    ordered = sorted(values)
    if not ordered:
        return {"n": 0}
    place = [max(0, -(-len(ordered) * share // 100) - 1) for share in (50, 95)]
    return {
        "n": len(ordered),
        "p50_ms": round(ordered[place[0]], 1),
        "p95_ms": round(ordered[place[1]], 1),
        "max_ms": round(ordered[-1], 1),
    }


def answered(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The spread of the successful results, the number of failures, and the last error. Pure."""
    failed = [str(a["error"]) for a in answers if "error" in a]
    found: dict[str, Any] = {**spread([float(a["ms"]) for a in answers if "ms" in a]), "errors": len(failed)}
    if failed:
        found["reason"] = failed[-1]
    return found


def period(samples: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, Any]:
    """Each service's median over the samples, and the largest sum of working memory at one moment. Pure.

    `running` are the services of the last two samples: one may miss a service that does not respond in time.

    Args:
        samples: per sample, service -> result of `parse_inside`.
    """
    names = sorted({name for sample in samples for name in sample})
    services = {name: _median([s[name] for s in samples if name in s]) for name in names}
    sums = sorted(sum(s["working"] for s in sample.values()) for sample in samples if sample)
    swaps = [sum(s["swap"] for s in sample.values()) for sample in samples]
    all_ = {
        "working_mib": round(sums[(len(sums) - 1) // 2] / MIB) if sums else 0,
        "max_mib": round(sums[-1] / MIB) if sums else 0,
        "swap_mib": round(max(swaps, default=0) / MIB),
    }
    running = sorted({name for sample in samples[-LAST_SAMPLES:] for name in sample})
    return {"samples": len(samples), "services": services, "running": running, "all": all_}


def _median(looks: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    def middle(key: str) -> int:
        return sorted(look.get(key, 0) for look in looks)[(len(looks) - 1) // 2]

    found: dict[str, Any] = {
        f"{key}_mib": round(middle(key) / MIB, 1) for key in ("anon", "working", "shmem", "swap")
    }
    found["working_max_mib"] = round(max(look["working"] for look in looks) / MIB, 1)
    found["threads"], found["open"] = middle("threads"), middle("open")
    return found
