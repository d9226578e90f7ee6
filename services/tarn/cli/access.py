"""Commands on principals, roles and grants of the catalog."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tarn.cli import wiring
from tarn.cli.formats import TABLE_COLUMNS_MAX
from tarn.cli.settings import Settings
from tarn.cli.tables import DOTTED
from tarn.core.control.lent import parse_credential
from tarn.core.errors import InvalidError, TarnError

PRIVILEGES = ("READ", "WRITE", "CREATE", "MANAGE")
KINDS = ("namespace", "table", "view")
LAST_ONE = """That was the last one: Trino no longer asks anybody for a secret. Whoever reaches its port is an
admin there, the dropped one too. To keep people out, create a principal that nobody uses: docs/security.md"""

app = typer.Typer()
principal_app = typer.Typer(
    help="Principals of the catalog: list, create and drop them, give them new secrets.",
    no_args_is_help=True,
)
role_app = typer.Typer(help="Roles: list, create, drop, give and take them.", no_args_is_help=True)
app.add_typer(principal_app, name="principal")
app.add_typer(role_app, name="role")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Privileges = Annotated[
    str, typer.Argument(help="read, write, create or manage; several separated by commas.")
]
On = Annotated[
    str, typer.Argument(help="warehouse, namespace:NAME, table:NAMESPACE.NAME or view:NAMESPACE.NAME.")
]
Grantee = Annotated[str, typer.Argument(help="A principal or a role.")]
Name = Annotated[str, typer.Argument(help="1 to 64 letters, digits and _ . @ -")]
Role = Annotated[str, typer.Argument(help="A role; admin may do everything.")]


@app.command()
def whoami(as_json_: Json = False) -> None:
    """Show the catalog's principal of this command line, its roles and grants."""
    found = wiring.access(Settings.read()).whoami()
    if as_json_:
        print(json.dumps(found))  # noqa: T201
        return
    roles = ", ".join(found["roles"]) or "none"
    _out().print(f"{found['principal']} ({found['client-id']}), roles: {roles}")
    _print_grants(found["grants"])


@app.command()
def grant(privileges: Privileges, on: On, to: Grantee, as_json_: Json = False) -> None:
    """Grant privileges on the warehouse, a namespace, a table or a view, and on everything in it."""
    thing = parse_on(on)
    _changed(
        to, thing, wiring.access(Settings.read()).grant(thing, to, parse_privileges(privileges)), as_json_
    )


@app.command()
def revoke(privileges: Privileges, on: On, to: Grantee, as_json_: Json = False) -> None:
    """Take back what was granted. An owner stays one: see `tarn owner`."""
    thing = parse_on(on)
    access = wiring.access(Settings.read())
    _changed(to, thing, access.revoke(thing, to, parse_privileges(privileges)), as_json_)
    # Who revokes its own MANAGE may not look any more; the revocation itself is done.
    with suppress(TarnError):
        if access.grants(thing)["owner"] == to:
            print(  # noqa: T201
                f"note: {to} owns {on_text(thing)} and may still do everything with it; `tarn owner "
                f"{quote(on_text(thing))} --to PRINCIPAL` gives it to another one",
                file=sys.stderr,
            )


@app.command()
def grants(
    on: Annotated[str | None, typer.Argument(help="As of grant; without it, all grants of the lake.")] = None,
    as_json_: Json = False,
) -> None:
    """Show what was granted, and who owns the thing."""
    found = wiring.access(Settings.read()).grants(None if on is None else parse_on(on))
    if as_json_:
        print(json.dumps(found))  # noqa: T201
        return
    if on is not None:
        _out().print(f"owner: {found['owner'] or 'nobody'}")
    _print_grants(found["grants"])


@app.command()
def owner(
    on: Annotated[str, typer.Argument(help="namespace:NAME, table:NAMESPACE.NAME or view:NAMESPACE.NAME.")],
    to: Annotated[str, typer.Option("--to", help="The principal that owns it from then on.")],
    as_json_: Json = False,
) -> None:
    """Give a namespace, a table or a view to another principal."""
    thing = parse_on(on)
    wiring.access(Settings.read()).change_owner(thing, to)
    print(json.dumps({"on": thing, "owner": to}) if as_json_ else f"{to} owns {on}")  # noqa: T201


@principal_app.command("list")
def list_principals(as_json_: Json = False) -> None:
    """List the principals; built-in ones are those of the lake's own services."""
    found = wiring.access(Settings.read()).principals()
    if as_json_:
        print(json.dumps(found))  # noqa: T201
        return
    table = Table("principal", "client id", "", box=None)
    for one in found:
        limited = "" if one.get("admin", True) else ", no admin"
        table.add_row(one["name"], one["client-id"], f"built in{limited}" if one["built-in"] else "")
    _out().print(table)


@principal_app.command("create")
def create_principal(name: Name, as_json_: Json = False) -> None:
    """Create a principal without any right; prints its credential, which is shown only once."""
    made = wiring.access(Settings.read()).create_principal(name)
    if as_json_:
        print(json.dumps(made))  # noqa: T201
        return
    out = _out()
    out.print(
        f"principal {made['name']} is there; it may do nothing yet. As there are principals, Trino asks"
    )
    out.print("everybody for name and secret (docs/security.md). Its credential, shown only now:")
    out.print(f"{made['client-id']}:{made['client-secret']}", soft_wrap=True)


@principal_app.command("rotate")
def rotate_secret(
    name: Name,
    grace: Annotated[
        str, typer.Option(help="For how long the old secret is still accepted, such as 30s, 10m or 2h.")
    ] = "0s",
    as_json_: Json = False,
) -> None:
    """Give a principal a new secret; prints its credential, which is shown only once."""
    made = wiring.access(Settings.read()).rotate_secret(name, parse_span(grace))
    if as_json_:
        print(json.dumps(made))  # noqa: T201
        return
    ends_ms = made["former-ends-ms"]
    until = (
        "has ended" if ends_ms is None else f"ends at {datetime.fromtimestamp(ends_ms / 1000, UTC):%FT%TZ}"
    )
    out = _out()
    out.print(f"principal {made['name']} has a new secret; the old one, with its tokens, {until}.")
    out.print("The new credential, shown only now:")
    out.print(f"{made['client-id']}:{made['client-secret']}", soft_wrap=True)


@principal_app.command("lend")
def lend_credential(
    name: Name,
    take_back: Annotated[
        bool, typer.Option("--take-back", help="Ingest forgets it; `rotate` ends what it may still do.")
    ] = False,
) -> None:
    """Give ingest the credential of a principal, read from stdin, for specs with runAs: NAME."""
    settings = Settings.read()
    if take_back:
        wiring.lent_credentials(settings).take_back(name)
        print(f"ingest has no credential of {name} any more; it may log in once more within the hour")  # noqa: T201
        return
    credential = parse_credential(sys.stdin.read())
    found = wiring.access(settings, credential).whoami()["principal"]
    if found != name:
        raise InvalidError(f"this is the credential of {found}, and not of {name}; lend it as {found}")
    wiring.lent_credentials(settings).put(name, credential)
    print(f"ingest has the credential of {name}; a spec with runAs: {name} acts as that principal")  # noqa: T201


@principal_app.command("drop")
def drop_principal(name: Name) -> None:
    """Drop a principal with its grants; its tokens end within seconds."""
    access = wiring.access(Settings.read())
    access.drop_principal(name)
    print(f"principal {name} is dropped")  # noqa: T201
    if all(one["built-in"] for one in access.principals()):
        print(LAST_ONE)  # noqa: T201


@role_app.command("list")
def list_roles(as_json_: Json = False) -> None:
    """List the roles with their members."""
    found = wiring.access(Settings.read()).roles()
    if as_json_:
        print(json.dumps(found))  # noqa: T201
        return
    table = Table("role", "members", box=None)
    for one in found:
        table.add_row(one["name"], ", ".join(one["members"]))
    _out().print(table)


@role_app.command("create")
def create_role(name: Name) -> None:
    """Create a role without members."""
    wiring.access(Settings.read()).create_role(name)
    print(f"role {name} is there")  # noqa: T201


@role_app.command("drop")
def drop_role(name: Name) -> None:
    """Drop a role with its grants."""
    wiring.access(Settings.read()).drop_role(name)
    print(f"role {name} is dropped")  # noqa: T201


@role_app.command("add")
def add_member(role: Role, principal: Name) -> None:
    """Give a role to a principal."""
    wiring.access(Settings.read()).set_member(role, principal, there=True)
    print(f"{principal} has the role {role}")  # noqa: T201


@role_app.command("remove")
def remove_member(role: Role, principal: Name) -> None:
    """Take a role away from a principal."""
    wiring.access(Settings.read()).set_member(role, principal, there=False)
    print(f"{principal} no longer has the role {role}")  # noqa: T201


def parse_privileges(text: str) -> list[str]:
    """Return the privileges in a list separated by commas, upper case.

    Raises:
        InvalidError: one is unknown.
    """
    found = [part.strip().upper() for part in text.split(",")]
    unknown = [part for part in found if part not in PRIVILEGES]
    if unknown:
        raise InvalidError(
            f"{text!r} is not a list of privileges; choose from {', '.join(PRIVILEGES)}, separated by commas"
        )
    return found


def parse_span(text: str) -> int:
    """Return the seconds of a span such as `10m`.

    Raises:
        InvalidError: the text has another form.
    """
    found = re.fullmatch(r"(\d{1,6})([smh])", text)
    if found is None:
        raise InvalidError(f"{text!r} is no span of time; write a number with s, m or h, such as 10m")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def parse_on(text: str) -> dict[str, Any]:
    """Return what a grant is on, as the catalog's API has it.

    Raises:
        InvalidError: the text has another form.
    """
    if text == "warehouse":
        return {"kind": text}
    kind, _, name = text.partition(":")
    parts = 1 if kind == "namespace" else 2
    if kind not in KINDS or not DOTTED.fullmatch(name) or name.count(".") + 1 < parts:
        raise InvalidError(
            f"{text!r} is nothing that privileges are granted on; write warehouse, namespace:NAME, "
            "table:NAMESPACE.NAME or view:NAMESPACE.NAME, such as table:ops.canary"
        )
    levels = name.split(".")
    if kind == "namespace":
        return {"kind": kind, "namespace": levels}
    return {"kind": kind, "namespace": levels[:-1], "name": levels[-1]}


def on_text(on: Mapping[str, Any]) -> str:
    """Return what a grant is on as `parse_on` reads it."""
    if on["kind"] == "warehouse":
        return "warehouse"
    name = [on["name"]] if "name" in on else []
    return f"{on['kind']}:{'.'.join([*on['namespace'], *name])}"


def _changed(to: str, on: Mapping[str, Any], privileges: list[str], as_json_: bool) -> None:
    if as_json_:
        print(json.dumps({"on": on, "to": to, "privileges": privileges}))  # noqa: T201
        return
    print(f"{to}: {', '.join(privileges) or 'nothing'} on {on_text(on)}")  # noqa: T201


def _print_grants(found: Iterable[Mapping[str, Any]]) -> None:
    table = Table("on", "to", "privileges", box=None)
    for one in found:
        table.add_row(on_text(one["on"]), one["to"], ", ".join(one["privileges"]))
    if table.row_count:
        _out().print(table)


def _out() -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else TABLE_COLUMNS_MAX)
