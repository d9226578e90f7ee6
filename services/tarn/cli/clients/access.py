"""Principals, roles and grants, by the catalog's own routes (docs/catalog.md, Access)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlencode

PREFIX = "/tarn/v1"
LEVEL_SEPARATOR = "\x1f"

Json = dict[str, Any]
On = Mapping[str, Any]
"""What a grant is on: `kind` (warehouse, namespace, table, view) and, as it needs, `namespace` and `name`."""


class Call(Protocol):
    """A request to the catalog: `RestCatalog.call`."""

    def __call__(self, method: str, path: str, body: Json | None = None, *, what: str) -> Any:
        """Send a request and return the parsed answer."""
        ...


class AccessClient:
    """The access routes as functions; errors are those of `RestCatalog.call`.

    Args:
        call: sends a request to the catalog.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def whoami(self) -> Json:
        """Return the principal of the credential, its roles and grants."""
        return dict(self._call("GET", f"{PREFIX}/whoami", what="ask who this is"))

    def grant(self, on: On, to: str, privileges: Sequence[str]) -> list[str]:
        """Grant privileges; return all that the grantee has on the thing by name."""
        return self._change("grant", f"{PREFIX}/grants", on, to, privileges)

    def revoke(self, on: On, to: str, privileges: Sequence[str]) -> list[str]:
        """Take back privileges; return those that the grantee still has on the thing by name."""
        return self._change("revoke", f"{PREFIX}/grants/revoke", on, to, privileges)

    def _change(self, verb: str, path: str, on: On, to: str, privileges: Sequence[str]) -> list[str]:
        body = {"on": dict(on), "to": to, "privileges": list(privileges)}
        return list(self._call("POST", path, body, what=f"{verb} on a {on['kind']}")["privileges"])

    def grants(self, on: On | None) -> Json:
        """Return the grants on one thing and its owner, or all grants: `{"grants": […], "owner": …}`."""
        query = ""
        if on is not None:
            fields = {"kind": on["kind"]}
            if "namespace" in on:
                fields["namespace"] = LEVEL_SEPARATOR.join(on["namespace"])
            if "name" in on:
                fields["name"] = on["name"]
            query = f"?{urlencode(fields, quote_via=quote)}"
        return dict(self._call("GET", f"{PREFIX}/grants{query}", what="list grants"))

    def change_owner(self, on: On, to: str) -> None:
        """Give a namespace, table or view to a principal."""
        body = {"on": dict(on), "to": to}
        self._call("POST", f"{PREFIX}/owner", body, what=f"change the owner of a {on['kind']}")

    def principals(self) -> list[Json]:
        """Return all principals."""
        return list(self._call("GET", f"{PREFIX}/principals", what="list principals")["principals"])

    def create_principal(self, name: str) -> Json:
        """Create a principal; return its name, client id and secret, which is shown only here."""
        what = f"create principal {name}"
        return dict(self._call("POST", f"{PREFIX}/principals", {"name": name}, what=what))

    def rotate_secret(self, name: str, grace_s: int) -> Json:
        """Give a principal a new secret; return it with the client id and when the former one ends."""
        path = f"{PREFIX}/principals/{quote(name, safe='')}/secret"
        what = f"rotate the secret of principal {name}"
        return dict(self._call("POST", path, {"grace-s": grace_s}, what=what))

    def drop_principal(self, name: str) -> None:
        """Remove a principal with its grants."""
        self._call("DELETE", f"{PREFIX}/principals/{quote(name, safe='')}", what=f"drop principal {name}")

    def roles(self) -> list[Json]:
        """Return all roles with their members."""
        return list(self._call("GET", f"{PREFIX}/roles", what="list roles")["roles"])

    def create_role(self, name: str) -> None:
        """Create a role."""
        self._call("POST", f"{PREFIX}/roles", {"name": name}, what=f"create role {name}")

    def drop_role(self, name: str) -> None:
        """Remove a role with its grants."""
        self._call("DELETE", f"{PREFIX}/roles/{quote(name, safe='')}", what=f"drop role {name}")

    def set_member(self, role: str, member: str, *, there: bool) -> None:
        """Give a role to a principal, or take it away."""
        path = f"{PREFIX}/roles/{quote(role, safe='')}/members/{quote(member, safe='')}"
        self._call("PUT" if there else "DELETE", path, what=f"change role {role}")
