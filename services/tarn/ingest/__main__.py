"""Entry point: `python -m tarn.ingest` runs the service; with `--check` it only validates the specs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import structlog

from tarn.adapters.logging import configure
from tarn.core import exit_codes
from tarn.core.errors import TarnError
from tarn.ingest.settings import Settings
from tarn.ingest.specs import load_specs


def main(arguments: list[str]) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 on success, 2 for invalid input; see `tarn.core.exit_codes`.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="tarn-ingest",
        description="Streams topics into tables, each row exactly once, as the specs say.",
    )
    parser.add_argument("--check", action="store_true", help="read the specs, tell what is wrong, and end")
    parser.add_argument("--specs", type=Path, help="the folder of specs (default: TARN_SPECS_DIR)")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.read()
        folder = options.specs or settings.specs_dir
        loaded = load_specs(folder)
        if options.check:
            errors = list(loaded.errors.values())
            for clash in loaded.clashes:
                why = "where one of them works already it goes on, else none begins; change or remove one"
                errors += [clash.refusal(file, why=why) for file in clash.files]
            for file, spec in sorted(loaded.specs.items()):
                if file in loaded.contested:
                    continue
                print(f"{file}: ok: {spec.spec.source.kafka.topic} -> {spec.spec.table}")  # noqa: T201
            for error in errors:
                print(error.message, file=sys.stderr)  # noqa: T201
            if not loaded.specs and not errors:
                print(f"{folder}: holds no spec (*.yaml)", file=sys.stderr)  # noqa: T201
                return exit_codes.INVALID
            return exit_codes.INVALID if errors else exit_codes.OK
        configure(settings.log_level, service="ingest")
        # The client libraries' own errors reach this code as exceptions and are logged where handled.
        for name in ("kafka", "pyiceberg", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        from tarn.ingest.service import serve

        code = serve(settings, loaded)
    except TarnError as e:
        if options.check:
            print(e.message, file=sys.stderr)  # noqa: T201
        else:
            configure(service="ingest")
            structlog.get_logger().error("ingest cannot start", error=type(e).__name__, message=e.message)
        return exit_codes.exit_code(e)
    logging.shutdown()
    sys.stdout.flush()
    # Threads blocked on a response must not keep the process alive; every state they can leave is safe.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
