"""Recently written files: what is kept, for how long, and within which bounds."""

from __future__ import annotations

from tarn.adapters.recent_files import RecentFiles


def test_the_least_recently_used_go_first_and_the_bound_holds() -> None:
    recent = RecentFiles(bytes_max=30, file_bytes_max=20)
    for name in "abc":
        recent.keep(name, name.encode() * 10)
    assert recent.get("a") == b"a" * 10
    recent.keep("d", b"d" * 10)
    assert [recent.get(name) for name in "abcd"] == [b"a" * 10, None, b"c" * 10, b"d" * 10]
    assert (len(recent), recent.held_bytes) == (3, 30)


def test_a_long_file_is_not_kept_and_drops_no_other() -> None:
    recent = RecentFiles(bytes_max=30, file_bytes_max=20)
    recent.keep("a", b"a" * 20)
    recent.keep("b", b"b" * 21)
    assert recent.get("b") is None
    assert recent.get("a") == b"a" * 20


def test_a_file_counts_once_however_often_it_is_kept() -> None:
    recent = RecentFiles(bytes_max=30, file_bytes_max=20)
    for _ in range(5):
        recent.keep("a", b"a" * 10)
    assert (len(recent), recent.held_bytes) == (1, 10)


def test_the_others_go() -> None:
    recent = RecentFiles()
    for name in "abc":
        recent.keep(name, b"1234")
    recent.keep_only({"b", "x"})
    assert [recent.get(name) for name in "abc"] == [None, b"1234", None]
    assert recent.held_bytes == 4
