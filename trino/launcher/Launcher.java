import static com.google.inject.multibindings.Multibinder.newSetBinder;

import com.google.inject.Module;
import io.trino.server.Server;
import jakarta.servlet.Filter;
import java.util.List;
import tarn.KnownHosts;
import tarn.Principals;
import tarn.Rules;

/**
 * Starts the Trino server from its jars, with filters in front: one refuses other pages' requests, one asks for principals.
 * Of its access control it knows one more, `tarn`.
 * Trino's own launcher class is not published as a jar.
 */
public final class Launcher
        extends Server
{
    private Launcher() {}

    public static void main(String[] arguments)
    {
        String version = Server.class.getPackage().getImplementationVersion();
        if (version == null) {
            throw new IllegalStateException("the manifest of trino-main names no Implementation-Version: use the published jar");
        }
        new Launcher().start(version);
    }

    @Override
    protected Iterable<? extends Module> getAdditionalModules()
    {
        return List.of(binder -> {
            newSetBinder(binder, Filter.class).addBinding().to(KnownHosts.class);
            newSetBinder(binder, Filter.class).addBinding().to(Principals.class);
            binder.bind(Rules.Registration.class).asEagerSingleton();
        });
    }
}
