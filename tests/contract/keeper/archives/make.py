"""Write a backup of a small lake with the code of the commit that is checked out: see README.md here."""

import gzip
import importlib.util
import io
import sys
from pathlib import Path

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.keeper.archive import Begin
from tarn.keeper.backup import backup

found = importlib.util.spec_from_file_location("lake", Path("tests/contract/keeper/conftest.py").resolve())
lake = importlib.util.module_from_spec(found)
sys.modules["lake"] = lake
found.loader.exec_module(lake)

store = MemoryStore()
store._objects = lake.made(format_version=2)
begin = Begin(id="b-1", bucket="tarn", warehouse="tarn", at="2026-11-21T12:00:00+00:00", version="0")
out = io.BytesIO()
done = backup(PlainBulk(store), out, begin, tell=print, sleep=lambda _: None)
assert done.whole
Path(sys.argv[1]).write_bytes(gzip.compress(out.getvalue(), 9, mtime=0))
