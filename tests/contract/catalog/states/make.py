"""Write the catalog's objects after a crash at every step, by the code that is checked out: see README.md."""

import gzip
import itertools
import json
import sys
from pathlib import Path

from tarn_catalog.faults import Crash, Fault, no_faults
from tests.contract.catalog import test_transactions as plays

MULTI = "two tables"


def killed(operation, how, at):
    """The world after the operation was killed at its step `at`; None if it ended before."""
    world = plays.small_world()
    first = world.catalog.tables.create(plays.A, plays.NEW)
    if operation == MULTI:
        world.catalog.tables.create(plays.B, plays.NEW)
    if operation == "register":
        world.catalog.tables.drop(plays.A)
    steps = itertools.count(1)
    world.store.plan = lambda _: how if next(steps) == at else None
    try:
        if operation == MULTI:
            changes = [plays.set_on(slot, "both") for slot in (plays.B, plays.A)]
            world.another().together.commit(changes)
        else:
            plays.OPERATIONS[operation](world.another(), first.location)
    except Crash:
        world.store.plan = no_faults
        return world
    return None


found = []
for operation in (*plays.OPERATIONS, MULTI):
    for how in (Fault.CRASH, Fault.CRASH_DONE):
        for at in itertools.count(1):
            world = killed(operation, how, at)
            if world is None:
                break
            objects = {one.key: world.memory.get(one.key).data.decode() for one in world.memory.list("")}
            found.append({"operation": operation, "how": how.name, "at": at, "objects": objects})
Path(sys.argv[1]).write_bytes(gzip.compress(json.dumps(found).encode(), 9, mtime=0))
