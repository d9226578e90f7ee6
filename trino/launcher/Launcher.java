import io.trino.server.Server;

/** Starts the Trino server from its jars. Trino's own launcher class is not published as a jar. */
public final class Launcher
{
    private Launcher() {}

    public static void main(String[] arguments)
    {
        String version = Server.class.getPackage().getImplementationVersion();
        if (version == null) {
            throw new IllegalStateException("the manifest of trino-main names no Implementation-Version: use the published jar");
        }
        new Server().start(version);
    }
}
