"""The embedded catalog: a pyiceberg catalog that works directly on the store, without a server.

    from pyiceberg.catalog import load_catalog
    catalog = load_catalog("lake", **{
        "py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog",
        "uri": "file:///tmp/lake",      # or s3://bucket with s3.endpoint, s3.access-key-id, …
    })

It gives the same guarantees as the service because it runs the same code on the same objects. Several
processes and the service may use one lake at the same time. It requires no token: holding the store's keys
grants full access. The property `principal` names one that an admin created: its grants are then checked as
in the service, which keeps a program from mistakes, not from reading the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import orjson
from pyiceberg import exceptions as theirs
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import (
    CommitTableResponse,
    CreateTableTransaction,
    StagedTable,
    Table,
    TableProperties,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from tarn.adapters.store import FileStore, S3Store
from tarn.core import errors as ours
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import ObjectStore
from tarn_catalog.operations.access import IN_PROCESS, NoSuchPrincipalError
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.session import Session
from tarn_catalog.operations.views import CreateViewRequest, answered
from tarn_catalog.state.context import Metadata
from tarn_catalog.state.pointer import TABLE, VIEW

if TYPE_CHECKING:
    import pyarrow as pa

_CUTTING = re.compile(r"[#?\x00-\x1f]")
P = ParamSpec("P")
R = TypeVar("R")

# Ordered: the first matching type applies.
_ERRORS: tuple[tuple[type[ours.TarnError], type[Exception]], ...] = (
    (ours.NoSuchTableError, theirs.NoSuchTableError),
    (ours.NoSuchViewError, theirs.NoSuchViewError),
    (ours.NoSuchNamespaceError, theirs.NoSuchNamespaceError),
    (NoSuchPrincipalError, theirs.UnauthorizedError),
    (ours.NotEmptyError, theirs.NamespaceNotEmptyError),
    (ours.ConflictError, theirs.CommitFailedException),
    (ours.OutcomeUnknownError, theirs.CommitStateUnknownException),
    (ours.UnavailableError, theirs.ServiceUnavailableError),
    (ours.UnauthenticatedError, theirs.UnauthorizedError),
    (ours.ForbiddenError, theirs.ForbiddenError),
    (ours.InvalidError, theirs.BadRequestError),
    (ours.TarnError, theirs.ServerError),
)


def _theirs(error: ours.TarnError) -> Exception:
    return next(type_ for mine, type_ in _ERRORS if isinstance(error, mine))(error.message)


def _translated(taken: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises Tarn's errors as pyiceberg's; `taken` replaces `AlreadyExistsError`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except ours.AlreadyExistsError as e:
                raise taken(e.message) from e
            except ours.TarnError as e:
                raise _theirs(e) from e

        return call

    return decorate


_table_errors = _translated(theirs.TableAlreadyExistsError)
_view_errors = _translated(theirs.ViewAlreadyExistsError)
_namespace_errors = _translated(theirs.NamespaceAlreadyExistsError)


def folder_store(folder: str | Path) -> tuple[FileStore, WarehouseLayout]:
    """Open a folder as a store; return it with its mapping between keys and locations.

    Raises:
        InvalidSettingError: its path cannot be part of a location.
    """
    _require_whole(str(Path(folder).resolve()))
    store = FileStore(folder)
    return store, WarehouseLayout(base=f"file://{store.root}")


def _require_whole(path: str) -> None:
    """Require that libraries do not cut a path where it is part of an address.

    They would take another folder, and write all files of the lake to one.

    Raises:
        InvalidSettingError: it has a character at which they do.
    """
    found = _CUTTING.search(path)
    if found is not None:
        raise ours.InvalidSettingError(
            f"Cannot open the lake {path!r}: for Iceberg's libraries the location of a file ends at "
            f"{found.group()!r}; choose a folder whose path has no #, no ? and no control character",
            path=path,
        )


def open_store(properties: Properties) -> tuple[ObjectStore, WarehouseLayout]:
    """Open the store that `uri` names; return it with its mapping between keys and locations.

    Raises:
        InvalidSettingError: `uri` is not a supported address, or a required property is missing.
    """
    uri = str(properties.get("uri") or "")
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.path:
        if parts.netloc not in ("", "localhost"):
            raise ours.InvalidSettingError(
                f"Cannot open the lake {uri!r}: {parts.netloc} in it is a host, not a folder; write three "
                "slashes and the whole path, as in file:///tmp/lake",
                uri=uri,
            )
        _require_whole(uri)
        return folder_store(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc and not parts.path.strip("/"):
        missing = [
            name
            for name in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")
            if not properties.get(name)
        ]
        if missing:
            raise ours.InvalidSettingError(f"Cannot open the lake {uri}: set {', '.join(missing)}")
        store = S3Store(
            bucket=parts.netloc,
            endpoint=str(properties["s3.endpoint"]),
            region=str(properties.get("s3.region") or properties.get("client.region") or "us-east-1"),
            access_key_id=str(properties["s3.access-key-id"]),
            secret_access_key=str(properties["s3.secret-access-key"]),
        )
        return store, WarehouseLayout(base=f"s3://{parts.netloc}")
    raise ours.InvalidSettingError(
        f"Cannot open the lake {uri!r}: set uri to s3://<bucket> or file:///<folder>", uri=uri
    )


def _json(
    model: TableUpdate | TableRequirement | Schema | PartitionSpec | SortOrder | ViewVersion,
) -> Any:
    return orjson.loads(model.model_dump_json())


def _texts(properties: Properties) -> dict[str, str]:
    """Return properties as pyiceberg sends them to a catalog.

    Raises:
        ValueError: a value is None.
    """
    return transform_dict_value_to_str({str(name): value for name, value in properties.items()})


def _added(snapshot: Snapshot, io: FileIO, base: str) -> Iterator[str]:
    """Yield the locations of the files that a snapshot added: manifest list, manifests, data and deletes.

    Args:
        snapshot: a snapshot that is not committed yet.
        io: reads its files.
        base: only files whose locations start with it are read.
    """
    yield snapshot.manifest_list
    if not snapshot.manifest_list.startswith(base):
        return
    for manifest in snapshot.manifests(io):
        path = manifest.manifest_path
        if manifest.added_snapshot_id != snapshot.snapshot_id or not path.startswith(base):
            continue
        yield path
        for entry in manifest.fetch_manifest_entry(io):
            if entry.status == ManifestEntryStatus.ADDED:
                yield entry.data_file.file_path


class EmbeddedCatalog(PyIcebergCatalog):
    """A pyiceberg catalog over an object store.

    Args:
        name: the catalog's name.
        core: an opened catalog; if None, `uri` is opened.
        **properties: pyiceberg properties; `uri` and `s3.*` locate the store, `principal` names whose grants
            count; without it everything is allowed.
    """

    def __init__(self, name: str, *, core: Catalog | None = None, **properties: str) -> None:
        super().__init__(name, **properties)
        if core is None:
            try:
                store, roots = open_store(properties)
            except (ours.ForbiddenError, ours.UnavailableError) as e:
                raise _theirs(e) from e
            core = Catalog(store, roots)
        self.core = core
        self._principal = properties.get("principal")

    @property
    def session(self) -> Session:
        """The operations as the catalog's principal may use them now.

        Raises:
            NoSuchPrincipalError: there is no such principal.
        """
        caller = self.core.access.named(self._principal) if self._principal else IN_PROCESS
        return Session(self.core, caller, audited=bool(self._principal))

    @staticmethod
    def _exists(load: Callable[[], object]) -> bool:
        try:
            load()
        except ours.NotFoundError:
            return False
        return True

    # -- tables

    def _slot(self, identifier: str | Identifier, kind: str = TABLE) -> TableIdentifier:
        levels = self.identifier_to_tuple(identifier)
        if len(levels) < 2:
            raise theirs.NoSuchTableError(f"Missing namespace or invalid identifier: {'.'.join(levels)}")
        return TableIdentifier.of(levels[:-1], levels[-1], kind)

    def _table(self, slot: TableIdentifier, stored: Metadata) -> Table:
        metadata = TableMetadataUtil.parse_raw(stored.raw.decode())
        return Table(
            identifier=(*slot.namespace, slot.name),
            metadata=metadata,
            metadata_location=stored.location,
            io=self._load_file_io(metadata.properties, stored.location),
            catalog=self,
        )

    def _wanted(
        self,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> CreateTableRequest:
        """Return the create request for pyiceberg's `create_table` arguments after the identifier."""
        version = int(properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        converted = self._convert_schema_if_needed(schema, version)  # type: ignore[arg-type]
        # An Arrow schema has no field ids: pyiceberg assigns the same placeholder id to every field.
        if any(field_id < 1 for field_id in converted.field_ids):
            converted = assign_fresh_schema_ids(converted)
        return CreateTableRequest(
            schema=_json(converted),
            spec=_json(partition_spec),
            order=_json(sort_order),
            properties=_texts(properties),
            location=location,
        )

    @_table_errors
    def create_table(self, identifier: str | Identifier, *what: Any, **more: Any) -> Table:
        """See `pyiceberg.catalog.Catalog.create_table`."""
        slot = self._slot(identifier)
        return self._table(slot, self.session.create_table(slot, self._wanted(*what, **more)))

    @_table_errors
    def create_table_transaction(
        self, identifier: str | Identifier, *what: Any, **more: Any
    ) -> CreateTableTransaction:
        """See `pyiceberg.catalog.Catalog.create_table_transaction`."""
        slot = self._slot(identifier)
        wanted = self._wanted(*what, **more)
        staged: TableMetadata = TableMetadataUtil.parse_obj({**self.session.stage(slot, wanted)})
        return CreateTableTransaction(
            StagedTable(
                identifier=(*slot.namespace, slot.name),
                metadata=staged,
                metadata_location="",
                io=self._load_file_io(staged.properties, staged.location),
                catalog=self,
            )
        )

    @_table_errors
    def load_table(self, identifier: str | Identifier) -> Table:
        """See `pyiceberg.catalog.Catalog.load_table`."""
        slot = self._slot(identifier)
        return self._table(slot, self.session.load(slot))

    @_table_errors
    def table_exists(self, identifier: str | Identifier) -> bool:
        """See `pyiceberg.catalog.Catalog.table_exists`."""
        session = self.session  # A principal that is gone is no missing table.
        return self._exists(lambda: session.check_exists(self._slot(identifier)))

    @_table_errors
    def drop_table(self, identifier: str | Identifier) -> None:
        """See `pyiceberg.catalog.Catalog.drop_table`. The files stay."""
        self.session.drop(self._slot(identifier))

    @_table_errors
    def purge_table(self, identifier: str | Identifier) -> None:
        """See `pyiceberg.catalog.Catalog.purge_table`. The files stay until the reaper has run (I7)."""
        self.session.purge(self._slot(identifier))

    @_table_errors
    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """See `pyiceberg.catalog.Catalog.rename_table`."""
        target = self._slot(to_identifier)
        self.session.rename(self._slot(from_identifier), target)
        return self._table(target, self.session.load(target))

    @_table_errors
    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """See `pyiceberg.catalog.Catalog.register_table`."""
        slot = self._slot(identifier)
        return self._table(slot, self.session.register(slot, metadata_location, overwrite=overwrite))

    @_table_errors
    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """See `pyiceberg.catalog.Catalog.commit_table`."""
        self._sync(table.io, updates)
        stored = self.session.commit(
            self._slot(table.name()),
            [_json(requirement) for requirement in requirements],
            [_json(update) for update in updates],
        )
        return CommitTableResponse(
            metadata=TableMetadataUtil.parse_raw(stored.raw.decode()), metadata_location=stored.location
        )

    def _sync(self, io: FileIO, updates: Sequence[TableUpdate]) -> None:
        """Have the files of new snapshots on the disk before a commit names them, if the lake is a folder.

        pyiceberg writes them and leaves that to the system. Files that the table had before, or that lie
        elsewhere, are not looked at.

        Raises:
            StoreUnavailableError: they may not be there; nothing is committed.
        """
        store, base = self.core.core.store, f"{self.core.core.roots.base}/"
        if not isinstance(store, FileStore):
            return
        for update in updates:
            if isinstance(update, AddSnapshotUpdate):
                found = (path for path in _added(update.snapshot, io, base) if path.startswith(base))
                store.sync(path.removeprefix(base) for path in found)

    @_table_errors
    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """See `pyiceberg.catalog.Catalog.list_tables`."""
        levels = self.identifier_to_tuple(namespace)
        return list(self.session.list_names(levels, TABLE, token=None, page_size=None).names)

    # -- namespaces

    @_namespace_errors
    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """See `pyiceberg.catalog.Catalog.create_namespace`."""
        self.session.create_namespace(self.identifier_to_tuple(namespace), _texts(properties))

    @_namespace_errors
    def drop_namespace(self, namespace: str | Identifier) -> None:
        """See `pyiceberg.catalog.Catalog.drop_namespace`."""
        self.session.drop_namespace(self.identifier_to_tuple(namespace))

    @_namespace_errors
    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """See `pyiceberg.catalog.Catalog.namespace_exists`."""
        session = self.session  # A principal that is gone is no missing namespace.
        levels = self.identifier_to_tuple(namespace)
        return self._exists(lambda: session.load_namespace(levels))

    @_namespace_errors
    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """See `pyiceberg.catalog.Catalog.list_namespaces`."""
        parent = self.identifier_to_tuple(namespace) if namespace else ()
        return list(self.session.list_namespaces(parent, token=None, page_size=None).names)

    @_namespace_errors
    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """See `pyiceberg.catalog.Catalog.load_namespace_properties`."""
        return dict(self.session.load_namespace(self.identifier_to_tuple(namespace)))

    @_namespace_errors
    def update_namespace_properties(
        self,
        namespace: str | Identifier,
        removals: set[str] | None = None,
        updates: Properties = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        """See `pyiceberg.catalog.Catalog.update_namespace_properties`."""
        changed = self.session.update_namespace(
            self.identifier_to_tuple(namespace),
            updates=_texts(updates),
            removals=sorted(removals or ()),
        )
        return PropertiesUpdateSummary(
            removed=list(changed.removed), updated=list(changed.updated), missing=list(changed.missing)
        )

    # -- not in this version

    def supports_server_side_planning(self) -> bool:
        """Return False: clients plan scans."""
        return False

    # -- views

    @_view_errors
    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """See `pyiceberg.catalog.Catalog.list_views`."""
        levels = self.identifier_to_tuple(namespace)
        return list(self.session.list_names(levels, VIEW, token=None, page_size=None).names)

    @_view_errors
    def view_exists(self, identifier: str | Identifier) -> bool:
        """See `pyiceberg.catalog.Catalog.view_exists`."""
        session = self.session  # A principal that is gone is no missing view.
        return self._exists(lambda: session.check_exists(self._slot(identifier, VIEW)))

    @_view_errors
    def load_view(self, identifier: str | Identifier) -> View:
        """See `pyiceberg.catalog.Catalog.load_view`."""
        slot = self._slot(identifier, VIEW)
        return _view(slot, answered(self.session.load(slot)))

    @_view_errors
    def drop_view(self, identifier: str | Identifier) -> None:
        """See `pyiceberg.catalog.Catalog.drop_view`. The files stay."""
        self.session.drop(self._slot(identifier, VIEW))

    @_view_errors
    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        """See `pyiceberg.catalog.Catalog.register_view`."""
        slot = self._slot(identifier, VIEW)
        return _view(slot, answered(self.session.register(slot, metadata_location)))

    @_view_errors
    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> View:
        """See `pyiceberg.catalog.Catalog.create_view`."""
        slot = self._slot(identifier, VIEW)
        wanted = CreateViewRequest(
            schema=_json(assign_fresh_schema_ids(self._convert_schema_if_needed(schema))),
            version=_json(view_version),
            properties=_texts(properties),
            location=location,
        )
        return _view(slot, answered(self.session.create_view(slot, wanted)))


def _view(slot: TableIdentifier, stored: Metadata) -> View:
    return View((*slot.namespace, slot.name), ViewMetadata.model_validate_json(stored.raw))


__all__: Sequence[str] = ("EmbeddedCatalog", "folder_store", "open_store")
