"""Commands that other packages add to `tarn`, found by the entry point group `tarn.commands`.

An entry point maps a command name to a Typer application. It is imported only for a command that `tarn`
itself lacks, or to show the help: `tarn version` neither searches nor imports.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tarn.core.errors import InvalidSettingError

GROUP = "tarn.commands"
SHOWN_LAST = frozenset({"audit", "trace", "fsck", "backup", "restore"})
"""Rarely used commands, listed below those of other packages."""


class ExtensibleGroup(TyperGroup):
    """Commands of an application and of other packages, which never replace the application's own."""

    _extended = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All command names, in the order of the help."""
        self._extend()
        return sorted(self.commands, key=SHOWN_LAST.__contains__)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; None if there is none."""
        if cmd_name not in self.commands:
            self._extend()
        return self.commands.get(cmd_name)

    def _extend(self) -> None:
        if self._extended:
            return
        self._extended = True
        for point in entry_points(group=GROUP):
            if point.name not in self.commands:
                self.add_command(_command(point), point.name)


def _command(point: EntryPoint) -> Any:
    """The command of an entry point; if the import fails, a command that reports why."""
    try:
        app = point.load()
    except Exception as error:  # noqa: BLE001 - another package's mistake takes none of these commands away
        app = _unusable(point, error)
    command = get_command(app)
    command.name = point.name
    return command


def _unusable(point: EntryPoint, error: Exception) -> typer.Typer:
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(
        help=f"Cannot be used: {package} fails to load.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse() -> None:
        raise InvalidSettingError(
            f"the command {point.name} comes from {package}, whose {point.value} cannot be loaded "
            f"({type(error).__name__}: {error}); install that package again, or remove it"
        ) from error

    return app
