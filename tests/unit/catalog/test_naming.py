from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core.errors import InvalidLocationError, InvalidNameError
from tarn.core.naming import (
    ENCODED_BYTES_MAX,
    LOCATION_BYTES_MAX,
    WarehouseLayout,
    check_path_properties,
    decode,
    decode_namespace,
    encode,
    encode_name,
    encode_namespace,
    name_of_pointer_key,
    namespace_key,
    namespace_of_key,
    pointer_key,
)

UUID = "e12f474e-2f6f-4e1a-9a83-8a46a0d45098"
OTHER = "11111111-2222-4333-8444-555555555555"
ROOTS = WarehouseLayout(base="s3://tarn")


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a..b", "a/b", "/", "*", "a?", "$x", "{x}", "%2F", "a%2fb", "%41"),
        *("a\nb", "a\n", "a\x00", "\x7f", "a\x85", "\x1f", "\ud800", "x" * (ENCODED_BYTES_MAX + 1)),
        "é" * (ENCODED_BYTES_MAX // 6 + 1),
    ],
)
def test_refused_names_say_what_to_do(name: str) -> None:
    with pytest.raises(InvalidNameError, match="Invalid table name"):
        encode_name(name)
    with pytest.raises(InvalidNameError, match="Invalid namespace"):
        encode_namespace((name,))


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("flights_2013-x", "flights_2013-x"),
        ("a b", "a~20b"),
        ("Zürich", "Z~C3~BCrich"),
        ("a.b", "a~2Eb"),
        ("~", "~7E"),
    ],
)
def test_encoding(name: str, encoded: str) -> None:
    assert encode(name) == encoded
    assert decode(encoded) == name
    assert pointer_key(("ns", name), name) == f"catalog/v1/pointers/ns.{encoded}/{encoded}.json"
    assert name_of_pointer_key(pointer_key(("ns",), name)) == name
    assert namespace_of_key(namespace_key(("a", name))) == ("a", name)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_encoding_is_reversible_and_plain(name: str) -> None:
    encoded = encode(name)
    assert decode(encoded) == name
    assert set(encoded) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~")


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab.~ é"), min_size=1, max_size=5), min_size=1, max_size=4))
def test_levels_cannot_run_into_each_other(levels: list[str]) -> None:
    try:
        encoded = encode_namespace(levels)
    except InvalidNameError:
        assert any(".." in level or level == "." for level in levels)
        return
    assert decode_namespace(encoded) == tuple(levels)


@pytest.mark.parametrize("text", ["~7", "~zz", "a b", "~41", "é", "~c3~bc"])
def test_what_nothing_encodes_to_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        decode(text)


def test_new_tables_lie_alone_under_the_warehouse() -> None:
    assert ROOTS.new_table(("a", "b c"), "t", UUID) == f"s3://tarn/warehouse/a.b~20c/t-{UUID}"
    assert (
        ROOTS.new_table(("a",), "t", UUID, requested="s3://tarn/warehouse/my/folder/")
        == f"s3://tarn/warehouse/my/folder/t-{UUID}"
    )
    assert (
        ROOTS.new_table(("a",), "t", UUID, requested="s3://tarn/warehouse") == f"s3://tarn/warehouse/t-{UUID}"
    )


@pytest.mark.parametrize(
    "location",
    [
        "s3://other/warehouse/x",
        "s3://tarn/catalog/v1",
        "s3://tarn/warehousex/y",
        "s3a://tarn/warehouse/x",
        "file:///etc",
        "s3://tarn/warehouse/../catalog/v1",
        "s3://tarn/warehouse/a//b",
        "s3://tarn/warehouse/a?x",
        "s3://tarn/warehouse/a*",
        "s3://tarn/warehouse/%2e%2e/x",
        f"s3://tarn/warehouse/ns/t-{OTHER}",
        f"s3://tarn/warehouse/ns/t-{OTHER}/data",
        "s3://tarn/warehouse/" + "x" * 1000,
        "",
    ],
)
def test_requested_folders_outside_or_inside_another_table_are_refused(location: str) -> None:
    with pytest.raises(InvalidLocationError, match="Invalid location"):
        ROOTS.new_table(("ns",), "t", UUID, requested=location)


def test_a_requested_folder_leaves_room_for_the_tables_own() -> None:
    """A longer one could not be registered again, nor the end of a staged create be sent."""
    spare = LOCATION_BYTES_MAX - len(f"/t-{UUID}")
    folder = f"s3://tarn/warehouse/{'d' * 100}/{'d' * 100}/{'d' * 100}"
    longest = folder.ljust(spare, "d")
    location = ROOTS.new_table(("ns",), "t", UUID, requested=longest)
    assert len(location) == LOCATION_BYTES_MAX
    assert ROOTS.check_table(location, UUID) == location
    with pytest.raises(InvalidLocationError, match="own folder in it has 901 bytes, at most 900 are allowed"):
        ROOTS.new_table(("ns",), "t", UUID, requested=f"{longest}d")


def test_only_locations_that_were_handed_out_are_accepted() -> None:
    good = f"s3://tarn/warehouse/ns/t-{UUID}"
    assert ROOTS.check_table(good, UUID) == good
    for bad in (
        f"s3://tarn/warehouse/ns/t-{OTHER}",
        f"s3://tarn/warehouse/ns/t-{UUID}/",
        f"s3://tarn/warehouse/ns/t-{UUID}/data",
        f"s3://tarn/warehouse/ns/t-{OTHER}/t-{UUID}",
        f"s3://tarn/catalog/v1/t-{UUID}",
        f"s3://tarn/warehouse/{UUID}",
        "s3://tarn/warehouse",
    ):
        with pytest.raises(InvalidLocationError, match="Invalid location"):
            ROOTS.check_table(bad, UUID)


def test_keys_and_locations() -> None:
    assert ROOTS.key("s3://tarn/warehouse/x") == "warehouse/x"
    assert ROOTS.location("catalog/x") == "s3://tarn/catalog/x"
    with pytest.raises(InvalidLocationError):
        ROOTS.key("s3://tarnx/warehouse/x")


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
@pytest.mark.parametrize(
    "path", ["s3://tarn/warehouse/other", "s3://tarn/w", "/tmp/x", "LOC/../x", "LOCx/data", "LOC\n/x"]
)
def test_files_stay_in_the_tables_location(name: str, path: str) -> None:
    location = f"s3://tarn/warehouse/ns/t-{UUID}"
    check_path_properties({name: f"{location}/elsewhere", "x": path}, location)
    check_path_properties({name: f"{location}/"}, location)
    with pytest.raises(InvalidLocationError, match=name):
        check_path_properties({name: path.replace("LOC", location)}, location)
