"""The files of the spec folder at a start: what they own, and what they leave alone."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.controller.files import SpecFile, SpecFiles
from tarn.core.control.declared import HAND, Declared, applied, deleted, finalized
from tarn.core.errors import UnavailableError
from tarn.core.spec import spec_of
from tests.support.lake import Lake
from tests.support.plant import document


def folder(invalid: frozenset[str] = frozenset(), **files: dict[str, Any]) -> SpecFiles:
    return SpecFiles(
        files={
            f"{name}.yaml": SpecFile(spec=spec_of(made, file=name), document=made)
            for name, made in files.items()
        },
        invalid=invalid,
    )


class Start:
    """Starts of a service over one registry."""

    def __init__(self) -> None:
        self.specs = Lake().specs()

    def __call__(self, files: SpecFiles) -> SpecFiles:
        for _ in range(3):
            files.apply(self.specs, self.specs.list())
        return files

    def there(self) -> dict[str, tuple[str, int, str]]:
        return {
            name: (
                "gone" if there.gone else "deleting" if there.deleting else "there",
                there.generation,
                there.owner,
            )
            for name, entry in self.specs.list().items()
            if (there := entry.declared) is not None
        }

    def finalize(self, name: str) -> None:
        there = self.specs.get(name)
        assert there is not None
        self.specs.finalize(name, there.uid)


@pytest.fixture
def start() -> Start:
    return Start()


def test_files_are_applied_and_applied_again(start: Start) -> None:
    assert start(folder(a=document("a"), b=document("b"))).done
    assert start.there() == {"a": ("there", 1, "file:a.yaml"), "b": ("there", 1, "file:b.yaml")}
    start(folder(a=document("a", replicas=2), b=document("b")))
    assert start.there() == {"a": ("there", 2, "file:a.yaml"), "b": ("there", 1, "file:b.yaml")}


def test_what_has_no_file_any_more_is_deleted_and_what_was_applied_by_hand_stays(start: Start) -> None:
    start(folder(a=document("a"), b=document("b")))
    start.specs.change(
        "c", lambda found, stamp: applied(found, document("c"), file="x", owner=HAND, stamp=stamp)
    )
    start(folder(a=document("a")))
    assert start.there()["b"][0] == "deleting"
    assert start.there()["c"] == ("there", 1, HAND)


def test_a_folder_without_any_file_deletes_nothing(start: Start) -> None:
    """It is rather not mounted than a wish to delete everything."""
    start(folder(a=document("a"), b=document("b")))
    start.specs.change(
        "c", lambda found, stamp: applied(found, document("c"), file="x", owner=HAND, stamp=stamp)
    )
    start.specs.change("b", lambda found, stamp: deleted(_there(found), stamp=stamp))
    empty = start(folder())
    assert empty.done
    assert empty.kept == {"a"}
    assert {name: found[0] for name, found in start.there().items()} == {
        "a": "there",
        "b": "deleting",
        "c": "there",
    }
    start(folder(z=document("z")))
    assert start.there()["a"][0] == "deleting"


def test_a_file_that_is_invalid_now_leaves_what_it_owns(start: Start) -> None:
    start(folder(a=document("a")))
    start(folder(invalid=frozenset({"a.yaml"})))
    assert start.there() == {"a": ("there", 1, "file:a.yaml")}


def test_a_file_that_was_renamed_goes_on_owning(start: Start) -> None:
    start(folder(a=document("a")))
    start(folder(z=document("a", replicas=2)))
    assert start.there() == {"a": ("there", 2, "file:z.yaml")}


def test_a_file_with_another_name_in_it_deletes_the_former(start: Start) -> None:
    start(folder(a=document("a")))
    start(folder(a=document("b")))
    assert start.there() == {"a": ("deleting", 1, "file:a.yaml"), "b": ("there", 1, "file:a.yaml")}


def test_an_ingestor_that_is_being_deleted_is_applied_once_it_is_gone(start: Start) -> None:
    start(folder(a=document("a")))
    start.specs.change("a", lambda found, stamp: deleted(_there(found), stamp=stamp))
    files = start(folder(a=document("a")))
    assert not files.done
    start.finalize("a")
    assert start(files).done
    assert start.there() == {"a": ("there", 2, "file:a.yaml")}


def test_a_file_of_a_log_with_columns_of_its_own_is_refused(start: Start) -> None:
    log = document("a")
    log["spec"]["source"] = {"kafka": {"topic": "tarn.log.0b9c6b0e-0000-4000-8000-000000000000"}}
    refused = start(folder(a=log)).refused
    assert "a.yaml: spec.schema is for other messages" in refused["a.yaml"].message
    assert start.there() == {}


def test_two_files_of_one_name(start: Start) -> None:
    equal = start(folder(a=document("x"), b=document("x")))
    assert set(equal.refused) == {"b.yaml"}
    assert "a.yaml goes on" in equal.refused["b.yaml"].message
    other = start(folder(a=document("x", replicas=2), b=document("x")))
    assert set(other.refused) == {"b.yaml"}
    assert start.there() == {"x": ("there", 2, "file:a.yaml")}
    neither = start(folder(c=document("y", replicas=2), d=document("y")))
    assert set(neither.refused) == {"c.yaml", "d.yaml"}
    assert "neither has begun, so neither begins" in neither.refused["c.yaml"].message


def test_a_store_that_is_away_in_the_middle_is_gone_on_with(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder(a=document("a"), b=document("b"))
    change, calls = type(start.specs).change, [0]

    def sometimes(self: Any, *args: Any, **options: Any) -> Declared:
        calls[0] += 1
        if calls[0] == 2:
            raise UnavailableError("away")
        return change(self, *args, **options)

    monkeypatch.setattr(type(start.specs), "change", sometimes)
    with pytest.raises(UnavailableError):
        files.apply(start.specs, {})
    assert not files.done
    start(files)
    assert files.done
    assert set(start.there()) == {"a", "b"}


def test_a_file_takes_a_name_that_is_gone(start: Start) -> None:
    start.specs.change(
        "a", lambda found, stamp: applied(found, document("a"), file="x", owner=HAND, stamp=stamp)
    )
    start.specs.change("a", lambda found, stamp: finalized(_there(found), stamp=stamp))
    start(folder(a=document("a")))
    assert start.there() == {"a": ("there", 2, "file:a.yaml")}


def _there(found: Declared | None) -> Declared:
    assert found is not None
    return found
