"""Every Markdown code block is found, and none is skipped without a visible reason."""

from __future__ import annotations

import pytest

from tests.support.documents import Block, blocks

TEXT = """# Title

```sh
scripts/up
```

Words.
<!-- test: skip it would run this very test -->
```sh
scripts/test
```

```
plain
```
"""


def test_blocks_come_in_order_with_language_text_line_and_reason():
    assert list(blocks(TEXT)) == [
        Block(language="sh", text="scripts/up\n", line=3, kept_back=None),
        Block(language="sh", text="scripts/test\n", line=9, kept_back="it would run this very test"),
        Block(language="", text="plain\n", line=13, kept_back=None),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```sh\nls\n", "line 1: the block does not end"),
        ("<!-- test: skip -->\n```sh\n```\n", "line 1: write <!-- test: skip"),
        ("<!-- test: skip because -->\n```sh\n```\n", "line 1: write <!-- test: skip"),
        ("<!-- test: run it with care -->\n```sh\n```\n", "line 1: write <!-- test: skip"),
        (
            "<!-- test: skip it runs this test -->\nwords\n```sh\n```\n",
            "line 1: the marker stands above no block",
        ),
        ("<!-- test: skip it runs this test -->\n", "line 1: the marker stands above no block"),
    ],
)
def test_what_would_pass_a_block_over_silently_is_refused(text: str, told: str):
    with pytest.raises(ValueError, match=told):
        list(blocks(text))
