package tarn;

import java.util.Locale;
import java.util.Map;
import java.util.Set;

import com.google.inject.Inject;
import io.trino.plugin.base.security.FileBasedSystemAccessControl;
import io.trino.plugin.base.security.ForwardingSystemAccessControl;
import io.trino.security.AccessControlManager;
import io.trino.spi.connector.CatalogSchemaTableName;
import io.trino.spi.security.AccessDeniedException;
import io.trino.spi.security.SystemAccessControl;
import io.trino.spi.security.SystemAccessControlFactory;
import io.trino.spi.security.SystemSecurityContext;

/**
 * Trino's own access control: the rules of a file, and one that such a file cannot have.
 *
 * Two procedures delete files with Trino's store user, and not by a decision of the catalog: which files, a table's manifests
 * say, and these may name the files of a table that its owner may only read. So they are for admins. A shortest retention
 * does not keep anybody from it: a branch may have a retention of its own, which counts instead.
 */
public final class Rules
        extends ForwardingSystemAccessControl
{
    private static final Set<String> DELETING = Set.of("expire_snapshots", "remove_orphan_files");

    private final SystemAccessControl file;
    private final Directory directory;

    private Rules(SystemAccessControl file, Directory directory)
    {
        this.file = file;
        this.directory = directory;
    }

    /** Makes `access-control.name=tarn` known to Trino; its other settings are those of `file`. */
    public static final class Registration
    {
        @Inject
        public Registration(AccessControlManager manager)
        {
            manager.addSystemAccessControlFactory(new Factory());
        }
    }

    private static final class Factory
            implements SystemAccessControlFactory
    {
        @Override
        public String getName()
        {
            return "tarn";
        }

        @Override
        public SystemAccessControl create(Map<String, String> config, SystemAccessControlContext context)
        {
            return new Rules(new FileBasedSystemAccessControl.Factory().create(config, context), Directory.shared());
        }
    }

    @Override
    protected SystemAccessControl delegate()
    {
        return file;
    }

    @Override
    public void checkCanExecuteTableProcedure(SystemSecurityContext context, CatalogSchemaTableName table, String procedure)
    {
        super.checkCanExecuteTableProcedure(context, table, procedure);
        if (directory == null || !DELETING.contains(procedure.toLowerCase(Locale.ROOT))) {
            return;
        }
        try {
            Directory.Known known = directory.known(false);
            if (!known.guarded() || known.admins().contains(context.getIdentity().getUser())) {
                return;
            }
        }
        catch (Directory.UnavailableException e) {
            throw new AccessDeniedException("Cannot execute %s: try again: %s".formatted(procedure, e.getMessage()));
        }
        throw new AccessDeniedException("Cannot execute %s on %s: it deletes files, and is for admins; old snapshots and their files go by themselves"
                .formatted(procedure, table));
    }
}
