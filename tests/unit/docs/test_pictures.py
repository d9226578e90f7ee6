"""The committed picture is what its source makes, for light and for dark, with its words inside its boxes."""

from __future__ import annotations

import importlib.util
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_PX = {"title": 9.4, "": 7.4}


@pytest.fixture(scope="module")
def flow() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("flow_picture", FOLDER / "flow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_what_its_source_makes(flow: types.ModuleType) -> None:
    assert (FOLDER / "flow.svg").read_text(encoding="utf-8") == flow.svg()
    assert flow.main(["--check"]) == 0


def test_another_picture_is_noticed(
    flow: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(flow, "PICTURE", tmp_path / "flow.svg")
    assert flow.main(["--check"]) == 1
    assert flow.main([]) == 0
    assert flow.main(["--check"]) == 0
    (tmp_path / "flow.svg").write_text(flow.svg().replace("Kafka", "Kafkä"), encoding="utf-8")
    assert flow.main(["--check"]) == 1
    assert "is not what the source makes" in capsys.readouterr().err
    assert flow.main(["--nonsense"]) == 2


def test_every_colour_that_is_used_is_told_for_light_and_for_dark(flow: types.ModuleType) -> None:
    root = ET.fromstring(flow.svg())
    used = {name for node in root.iter() for name in node.get("class", "").split()}
    colours = {name.partition("-")[2] for name in used if name.startswith(("fill-", "line-"))}
    assert colours == set(flow.COLOURS)
    style = root.findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("@media (prefers-color-scheme:dark)")
    for name in flow.COLOURS:
        assert f".fill-{name}{{" in light
        assert f".fill-{name}{{" in dark


def test_words_fit_into_their_boxes_and_all_lies_on_the_page(flow: types.ModuleType) -> None:
    for box in flow.BOXES:
        assert len(box.title) * CHARACTER_PX["title"] <= box.width, box.title
        for words in box.lines:
            assert len(words) * CHARACTER_PX[""] <= box.width, words
        assert flow.TITLE_PX + flow.LINE_PX * len(box.lines) < box.height, box.title
        assert 0 <= box.x < box.x + box.width <= flow.WIDTH
        assert 0 <= box.y < box.y + box.height <= flow.HEIGHT
    ends = {arrow.points[-1] for arrow in flow.ARROWS}
    for x, y in ends:
        touched = [
            b for b in (*flow.BOXES, flow.STORE) if b.x <= x <= b.x + b.width and b.y <= y <= b.y + b.height
        ]
        assert touched, f"an arrow ends in the air at {x},{y}"
