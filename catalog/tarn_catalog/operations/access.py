"""Who may do what: the grants of the lake as this process last read them, and their changes.

All grants are one register value. A process reads it when a request of a stored principal finds it older than
`max_age_s`, so a change takes effect on every replica within that time, and at once on the one that made it.
The lake's own services need no grants: for their requests nothing is read.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tarn.core.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    UnauthenticatedError,
)
from tarn.core.naming import GRANTS_KEY, check_grantee, claim_key, namespace_key, pointer_key
from tarn.core.services import SERVICES
from tarn_catalog.state.access import (
    ADMIN,
    FITTING,
    INCLUDED,
    NAMESPACE,
    THE_WAREHOUSE,
    WAREHOUSE,
    AccessState,
    FormerSecret,
    Grant,
    Privilege,
    Securable,
    StoredPrincipal,
)
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.context import CatalogContext
from tarn_catalog.state.namespace import Namespace
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.request_history import RequestHistory
from tarn_catalog.state.transactions import Transactions

MAX_AGE_S = 5
BYTES_MAX = 1024 * 1024
CHANGE_ATTEMPTS_MAX = 16
SECRET_BYTES = 32
GRACE_S_MAX = 24 * 60 * 60
ID_BYTES = 6

NOTHING: frozenset[Privilege] = frozenset()


class NoSuchPrincipalError(NotFoundError):
    """There is no principal or role of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrincipal:
    """A principal that was just created; its secret is nowhere else.

    Attributes:
        name: its name.
        client_id: the id to authenticate with.
        secret: the secret to authenticate with.
    """

    name: str
    client_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedSecret(NewPrincipal):
    """The new secret of a principal; it is nowhere else.

    Attributes:
        former_ends_ms: until when the former secret is accepted, milliseconds since the epoch; None if it
            has ended.
    """

    former_ends_ms: int | None


class Grants:
    """A list of grants, arranged for checks. Immutable.

    Args:
        state: the register value.
    """

    def __init__(self, state: AccessState) -> None:
        self.state = state
        self.principals: Mapping[str, StoredPrincipal] = {one.client_id: one for one in state.principals}
        by_thing: dict[str, dict[str, frozenset[Privilege]]] = {}
        for grant in state.grants:
            by_thing.setdefault(grant.on.uuid, {})[grant.to] = grant.privileges
        self._by_thing = by_thing
        roles: dict[str, set[str]] = {}
        for role, members in state.roles.items():
            for member in members:
                roles.setdefault(member, set()).add(role)
        self._roles = roles

    def roles_of(self, name: str) -> frozenset[str]:
        """Return the roles of a principal."""
        return frozenset(self._roles.get(name, ()))

    def privileges(self, grantees: Iterable[str], uuid: str) -> frozenset[Privilege]:
        """Return what was granted to any of the grantees on exactly one thing, with what that includes."""
        granted = self._by_thing.get(uuid)
        if granted is None:
            return NOTHING
        found = (privilege for name in grantees for privilege in granted.get(name, NOTHING))
        return NOTHING.union(*(INCLUDED[privilege] for privilege in found))

    def of(self, grantees: frozenset[str]) -> list[Grant]:
        """Return the grants of any of the grantees."""
        return [grant for grant in self.state.grants if grant.to in grantees]


NO_GRANTS = Grants(AccessState.blank())


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The principal of a request, with its rights at the beginning of the request.

    Attributes:
        name: its name.
        client_id: its client id; None in process, where nobody authenticates.
        admin: whether it has the role `admin`, so that nothing is checked.
        roles: its roles.
        own: prefix of top-level namespaces that are its own: it may create them and do everything in them,
            and read everything else. Empty: there are none, and grants alone decide.
        grants: the grants that count for this request.
    """

    name: str
    client_id: str | None
    admin: bool
    roles: frozenset[str] = frozenset()
    own: str = ""
    grants: Grants = field(default=NO_GRANTS, repr=False)

    @property
    def grantees(self) -> frozenset[str]:
        """The names that grants to this principal have."""
        return self.roles | {self.name}

    def on(self, uuid: str, owner: str | None) -> frozenset[Privilege]:
        """Return the privileges on one thing alone: those granted on it, all for its owner.

        Args:
            uuid: the uuid of the thing; empty for the warehouse.
            owner: the client id of its owner, or None.
        """
        if owner is not None and owner == self.client_id:
            return INCLUDED[Privilege.MANAGE]
        if self.own and uuid == THE_WAREHOUSE.uuid:
            return INCLUDED[Privilege.READ]
        return self.grants.privileges(self.grantees, uuid)

    def owns(self, levels: Sequence[str]) -> bool:
        """Return whether a namespace is one of its own, by its name, or in one; it need not exist."""
        return bool(self.own) and bool(levels) and levels[0].startswith(self.own)

    def below(self, levels: Sequence[str]) -> bool:
        """Return whether anything was granted on something whose last known name is in a namespace."""
        size = len(levels)
        return any(
            len(grant.on.name) > size and grant.on.name[:size] == tuple(levels)
            for grant in self.grants.of(self.grantees)
        )


def service(name: str, client_id: str) -> Caller:
    """Return the caller that a service of the lake is: an admin, unless the table of services limits it."""
    row = SERVICES.get(name)
    own = "" if row is None or row.catalog_own is None else row.catalog_own
    return Caller(name=name, client_id=client_id, admin=not own, own=own)


IN_PROCESS = Caller(name="in process", client_id=None, admin=True)


class Access:
    """Reads and changes the grants of a lake.

    Args:
        core: the catalog context.
        transactions: transactions over the register.
        max_age_s: how old the grants that a request is checked against may be, seconds.
    """

    def __init__(
        self, core: CatalogContext, transactions: Transactions, *, max_age_s: float = MAX_AGE_S
    ) -> None:
        self._core = core
        self._transactions = transactions
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._known = NO_GRANTS
        self._read_at: float | None = None

    # -- reading

    def grants(self) -> Grants:
        """Return the grants as they are, or were at most `max_age_s` seconds ago.

        Raises:
            UnavailableError: the store did not answer.
            CorruptStateError: the stored grants are damaged.
        """
        clock = self._core.patience.clock
        with self._lock:
            now = clock()
            if self._read_at is None or now - self._read_at >= self._max_age_s:
                held = self._core.read(GRANTS_KEY, AccessState.load, keep=True)
                state = AccessState.blank() if held is None else held.value
                if state is not self._known.state:
                    self._known = Grants(state)
                # The time before the read: what was stored later may be missing.
                self._read_at = now
            return self._known

    def stored(self, client_id: str) -> StoredPrincipal | None:
        """Return a principal that an admin created, or None.

        Raises:
            TarnError: as `grants`.
        """
        return self.grants().principals.get(client_id)

    def caller(self, client_id: str) -> Caller:
        """Return the caller with the client id of a stored principal.

        Raises:
            UnauthenticatedError: there is no such principal.
            TarnError: as `grants`.
        """
        grants = self.grants()
        found = grants.principals.get(client_id)
        if found is None:
            raise UnauthenticatedError(
                "Not authorized: the principal of this token is gone or has a new secret; log in again"
            )
        roles = grants.roles_of(found.name)
        return Caller(name=found.name, client_id=client_id, admin=ADMIN in roles, roles=roles, grants=grants)

    def named(self, name: str) -> Caller:
        """Return the caller with the name of a stored principal.

        Raises:
            NoSuchPrincipalError: there is no such principal.
            TarnError: as `grants`.
        """
        for found in self.grants().state.principals:
            if found.name == name:
                return self.caller(found.client_id)
        raise NoSuchPrincipalError(f"Principal does not exist: {name}", principal=name)

    # -- changing

    def create_principal(self, name: str, *, by: str, taken: Iterable[str] = ()) -> NewPrincipal:
        """Create a principal without any right.

        Args:
            name: its name.
            by: the name of the principal that creates it.
            taken: names that are in use outside of the store.

        Raises:
            InvalidNameError: the name is not allowed.
            AlreadyExistsError: a principal or role has the name.
            TarnError: as `_change`.
        """
        self._check_new(name, "principal", taken)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        new = StoredPrincipal(
            client_id=f"{name}-{secrets.token_hex(ID_BYTES)}",
            name=name,
            secret_sha256=hashlib.sha256(secret.encode()).hexdigest(),
            at_ms=self._core.now_ms(),
            by=by,
        )

        def added(state: AccessState) -> AccessState:
            _check_free(state, name)
            return replace(state, principals=(*state.principals, new))

        self._change(added, f"the creation of principal {name}")
        return NewPrincipal(name=name, client_id=new.client_id, secret=secret)

    def rotate_secret(self, name: str, *, grace_s: int = 0, services: Iterable[str] = ()) -> RotatedSecret:
        """Give a stored principal a new secret; its client id, grants and roles stay.

        The former secret, and every token that was issued for it, ends at once, or after the grace. A secret
        from an earlier rotation ends at once in any case: at most two are valid.

        Args:
            name: its name.
            grace_s: for how long the former secret is still accepted, seconds.
            services: names of principals outside of the store, for the message.

        Raises:
            InvalidError: the grace is too long, or the principal is one of a service.
            NoSuchPrincipalError: there is no such principal.
            TarnError: as `_change`.
        """
        if not 0 <= grace_s <= GRACE_S_MAX:
            raise InvalidError(f"Invalid grace of {grace_s} s: give 0 to {GRACE_S_MAX} s, which is a day")
        if name in set(services):
            raise InvalidError(
                f"Cannot rotate the secret of {name}: it is a service of the lake, whose credential the init "
                "service makes; docs/operations.md has the steps",
                principal=name,
            )
        secret = secrets.token_urlsafe(SECRET_BYTES)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        ends_ms = self._core.now_ms() + grace_s * 1000 if grace_s else None
        client_id = ""

        def rotated(state: AccessState) -> AccessState:
            nonlocal client_id
            found = next((one for one in state.principals if one.name == name), None)
            if found is None:
                raise NoSuchPrincipalError(f"Principal does not exist: {name}", principal=name)
            client_id = found.client_id
            former = None
            if ends_ms is not None:
                former = FormerSecret(secret_sha256=found.secret_sha256, ends_ms=ends_ms)
            new = replace(found, secret_sha256=digest, former=former)
            return replace(
                state, principals=tuple(new if one.name == name else one for one in state.principals)
            )

        self._change(rotated, f"the rotation of the secret of principal {name}")
        return RotatedSecret(name=name, client_id=client_id, secret=secret, former_ends_ms=ends_ms)

    def drop_principal(self, name: str) -> None:
        """Remove a principal with its grants; its tokens are refused from then on.

        Raises:
            NoSuchPrincipalError: there is no such principal.
            TarnError: as `_change`.
        """

        def removed(state: AccessState) -> AccessState:
            if name not in {principal.name for principal in state.principals}:
                raise NoSuchPrincipalError(f"Principal does not exist: {name}", principal=name)
            return state.without(name)

        self._change(removed, f"the removal of principal {name}")

    def create_role(self, name: str, *, taken: Iterable[str] = ()) -> None:
        """Create a role without members.

        Raises:
            InvalidNameError: the name is not allowed.
            AlreadyExistsError: a principal or role has the name.
            TarnError: as `_change`.
        """
        self._check_new(name, "role", taken)

        def added(state: AccessState) -> AccessState:
            _check_free(state, name)
            return replace(state, roles={**state.roles, name: ()})

        self._change(added, f"the creation of role {name}")

    def drop_role(self, name: str) -> None:
        """Remove a role with its grants.

        Raises:
            InvalidError: it is the role `admin`.
            NoSuchPrincipalError: there is no such role.
            TarnError: as `_change`.
        """
        if name == ADMIN:
            raise InvalidError(f"Cannot drop the role {ADMIN}: it is built in; remove its members instead")

        def removed(state: AccessState) -> AccessState:
            if name not in state.roles:
                raise NoSuchPrincipalError(f"Role does not exist: {name}", role=name)
            return state.without(name)

        self._change(removed, f"the removal of role {name}")

    def set_member(self, role: str, member: str, *, there: bool) -> None:
        """Give a role to a principal, or take it away.

        Args:
            role: the name of the role.
            member: the name of a stored principal.
            there: whether the principal shall have the role.

        Raises:
            NoSuchPrincipalError: there is no such role or principal.
            TarnError: as `_change`.
        """

        def changed(state: AccessState) -> AccessState | None:
            if role != ADMIN and role not in state.roles:
                raise NoSuchPrincipalError(f"Role does not exist: {role}", role=role)
            if member not in {principal.name for principal in state.principals}:
                raise NoSuchPrincipalError(
                    f"Principal does not exist: {member}; only principals that an admin created have roles",
                    principal=member,
                )
            before = state.roles.get(role, ())
            if (member in before) == there:
                return None
            after = (*before, member) if there else tuple(one for one in before if one != member)
            roles = {**state.roles, role: after}
            if role == ADMIN and not after:
                del roles[role]
            return replace(state, roles=roles)

        self._change(changed, f"the change of role {role}")

    def grant(self, on: Securable, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Grant privileges on a thing; returns all that the grantee was granted on it.

        Raises:
            InvalidError: a privilege does not fit the kind of thing, or there are none.
            NoSuchPrincipalError: there is no such principal or role.
            TarnError: as `_change`.
        """
        unfit = sorted(privileges - FITTING[on.kind])
        if unfit or not privileges:
            raise InvalidError(
                f"Cannot grant {', '.join(unfit) or 'nothing'} on a {on.kind}: choose from "
                f"{', '.join(sorted(FITTING[on.kind]))}"
            )
        return self._set(on, to, lambda before: before | privileges, f"the grant on {on.text}")

    def revoke(self, on: Securable, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Take back privileges on a thing; returns what the grantee still was granted on it.

        Raises:
            NoSuchPrincipalError: there is no such principal or role.
            TarnError: as `_change`.
        """
        return self._set(on, to, lambda before: before - privileges, f"the revocation on {on.text}")

    def _set(
        self,
        on: Securable,
        to: str,
        new: Callable[[frozenset[Privilege]], frozenset[Privilege]],
        what: str,
    ) -> frozenset[Privilege]:
        after = NOTHING

        def changed(state: AccessState) -> AccessState | None:
            nonlocal after
            if to == ADMIN:
                raise InvalidError(
                    f"The role {ADMIN} may do everything: nothing is granted to it or taken back"
                )
            if to not in state.names:
                raise NoSuchPrincipalError(
                    f"Neither a principal nor a role has the name {to}; create it. Principals of the "
                    f"lake's own services have the role {ADMIN} and need no grants",
                    name=to,
                )
            before = state.granted(on, to)
            after = new(before)
            return None if after == before else state.with_grant(on, to, after)

        self._change(changed, what)
        return after

    def renamed(self, uuid: str, name: tuple[str, ...]) -> None:
        """Note the new name of a table or view in the grants on it; listings follow it.

        Raises:
            TarnError: as `_change`.
        """

        def changed(state: AccessState) -> AccessState | None:
            grants = tuple(
                replace(grant, on=replace(grant.on, name=name)) if grant.on.uuid == uuid else grant
                for grant in state.grants
            )
            return None if grants == state.grants else replace(state, grants=grants)

        # As they are in the store now: another replica may have granted something a moment ago.
        held = self._core.read(GRANTS_KEY, AccessState.load, keep=True)
        if held is not None and any(grant.on.uuid == uuid for grant in held.value.grants):
            self._change(changed, f"the new name of {'.'.join(name)} in its grants")

    @staticmethod
    def _check_new(name: str, what: str, taken: Iterable[str]) -> None:
        check_grantee(name, what=what)
        if name == ADMIN or name in set(taken):
            raise AlreadyExistsError(f"A principal or role has the name {name} already", name=name)

    def _change(self, mutate: Callable[[AccessState], AccessState | None], what: str) -> None:
        """Replace the grants by one swap.

        Raises:
            InvalidError: they would be larger than 1 MiB.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the change may have happened.
            UnavailableError: the change provably did not happen.
        """

        def changed(held: AccessState) -> AccessState | None:
            wanted = mutate(held if held.uuid else replace(held, uuid=self._core.new_uuid()))
            if wanted is None or _size(wanted) <= BYTES_MAX:
                return wanted
            # Grants on what was dropped stay, for a later register; they go when room is needed.
            wanted = replace(wanted, grants=tuple(grant for grant in wanted.grants if self._lives(grant.on)))
            size = _size(wanted)
            if size > BYTES_MAX:
                raise InvalidError(
                    f"Cannot finish {what}: all principals, roles and grants would take {size} bytes, at "
                    f"most {BYTES_MAX} are allowed; grant on namespaces, to roles, or "
                    "drop principals that nobody uses",
                    bytes=size,
                )
            return wanted

        try:
            self._core.update(
                GRANTS_KEY,
                lambda: self._core.read(GRANTS_KEY, AccessState.load),
                lambda held: changed(AccessState.blank() if held is None else held.value),
                what=what,
                attempts_max=CHANGE_ATTEMPTS_MAX,
            )
        finally:
            with self._lock:
                self._read_at = None

    def _lives(self, on: Securable) -> bool:
        """Return whether a name leads to the thing: the claim knows the name of what was renamed."""
        if on.kind == WAREHOUSE:
            return True
        if on.kind == NAMESPACE:
            found = self._core.read(namespace_key(on.name), Namespace.load)
            return found is not None and found.value.there and found.value.uuid == on.uuid
        claim = self._transactions.read(claim_key(on.uuid), Claim.load)
        holder = claim.value.holder if claim is not None else None
        key = holder or pointer_key(on.name[:-1], on.name[-1])
        pointer = self._transactions.read(key, Pointer.load)
        return pointer is not None and pointer.value.live and pointer.value.uuid == on.uuid


def _size(state: AccessState) -> int:
    """Return the bytes that the principals, roles and grants take."""
    return len(replace(state, memory=RequestHistory()).dump())


def _check_free(state: AccessState, name: str) -> None:
    if name in state.names:
        raise AlreadyExistsError(f"A principal or role has the name {name} already", name=name)
