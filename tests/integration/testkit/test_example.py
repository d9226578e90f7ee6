"""The example project, installed as its page says, on the embedded lake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tarn_host.stack import project
from tarn_host.testing.python import UV_HOME

from tests.support.documents import DOCS_ELSEWHERE, to_try
from tests.support.stack import Answer, run

PAGE = "docs/test-your-pipeline.md"
INSTALL_S, SUITE_S = 480, 480


@pytest.fixture(scope="module")
def page() -> list[str]:
    """The blocks of the page that can be typed."""
    found = [block.text for block in to_try(project.ROOT / PAGE)]
    assert len(found) == DOCS_ELSEWHERE[PAGE]
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, page: list[str]) -> Path:
    """An environment of its own, made by the first block; by uv, whose cache has the packages already."""
    folder = tmp_path_factory.mktemp("kit")
    uv = UV_HOME / "bin" / "uv"
    text = page[0].replace("python3 -m venv", f"{uv} venv --quiet --python 3.11")
    text = text.replace(".tarn/kit/bin/pip install", f"{uv} pip install --python .tarn/kit/bin/python")
    assert text.count(str(uv)) == 2, page[0]
    typed(text, folder, timeout_s=INSTALL_S)
    return folder


def typed(text: str, folder: Path, *, timeout_s: float) -> Answer:
    """What a block prints that is typed in the clone; its environment is in the folder."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TARN_", "PYTEST_", "AWS_"))
    }
    script = text.replace(".tarn/kit", str(folder / "kit"))
    command = ["env", "-i", *(f"{name}={value}" for name, value in env.items())]
    command += ["UV_SYSTEM_CERTS=1", "bash", "-euo", "pipefail", "-c", script]
    answer = run(command, timeout_s=timeout_s)
    assert answer.code == 0, f"{script}\n{answer.text[-6000:]}"
    return answer


@pytest.mark.in_turn(3, "the example of a pipeline's tests does not run by itself")
@pytest.mark.timeout(1_200)
def test_the_example_passes_in_an_environment_of_its_own(home: Path, page: list[str]) -> None:
    said = typed(page[1], home, timeout_s=SUITE_S).text
    assert "tarn: embedded in this process (--tarn-embedded)" in said
    assert "5 passed, 4 skipped" in said
    code = (
        "import json; from importlib.metadata import distributions as d; "
        "print(json.dumps([x.name for x in d()]))"
    )
    names = json.loads(
        typed(f".tarn/kit/bin/python -c '{code}'\n", home, timeout_s=240).text.splitlines()[-1]
    )
    assert "orders-pipeline" in names
    assert not {"duckdb", "pyspark", "pyspark-client", "testcontainers", "minio", "typer"} & set(names)
    said = typed(f"{page[1].replace('--tarn-embedded', '--collect-only')}", home, timeout_s=240).text
    assert f"the small profile, started when a test first needs it, from {project.ROOT};" in said
