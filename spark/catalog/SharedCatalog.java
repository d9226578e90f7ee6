package tarn.spark;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.exceptions.NotAuthorizedException;
import org.apache.iceberg.spark.SparkCatalog;
import org.apache.spark.SparkConf;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;

/**
 * Iceberg's Spark catalog, with one client of the lake for all sessions instead of one for each.
 *
 * <p>Iceberg closes a session's client never: its connections and the renewal of its token stay for as long as the
 * server runs. So every session whose settings of the catalog are the server's own uses the server's one client. A
 * session that set something else for itself gets a client of its own, as Iceberg does it.
 *
 * <p>A token is renewed by a timer, which stands still while the machine sleeps, and which gives up for good if the lake
 * does not answer for some seconds. So a session whose client is refused gets another one, and asks once more.
 */
public final class SharedCatalog extends SparkCatalog {
    /** A client that is refused, and younger than this, is not replaced: another one would be refused too. */
    private static final long REPLACED_AFTER_NS = Duration.ofSeconds(10).toNanos();

    private static final Map<String, Client> SHARED = new ConcurrentHashMap<>();

    private String ownName;
    private CaseInsensitiveStringMap ownOptions;

    /** A client of the lake, and when it was made, by System.nanoTime. */
    private record Client(Catalog catalog, long madeNs) {}

    /** A question to the lake. */
    private interface Question<T, E extends Exception> {
        T ask() throws E;
    }

    @Override
    protected Catalog buildIcebergCatalog(String name, CaseInsensitiveStringMap options) {
        ownName = name;
        ownOptions = options;
        if (!options.equals(ofServer(name))) {
            return super.buildIcebergCatalog(name, options);
        }
        Client known = SHARED.get(name);
        if (known != null && (isYoung(known) || isWelcome(known.catalog()))) {
            return known.catalog();
        }
        synchronized (SHARED) {
            if (SHARED.get(name) == known) {
                SHARED.put(name, new Client(super.buildIcebergCatalog(name, options), System.nanoTime()));
            }
            return SHARED.get(name).catalog();
        }
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        return answer(() -> super.loadTable(table));
    }

    @Override
    public Table loadTable(Identifier table, String version) throws NoSuchTableException {
        return answer(() -> super.loadTable(table, version));
    }

    @Override
    public Table loadTable(Identifier table, long timestamp) throws NoSuchTableException {
        return answer(() -> super.loadTable(table, timestamp));
    }

    @Override
    public boolean tableExists(Identifier table) {
        return answer(() -> super.tableExists(table));
    }

    @Override
    public Identifier[] listTables(String[] namespace) {
        return answer(() -> super.listTables(namespace));
    }

    @Override
    public String[][] listNamespaces() {
        return answer(() -> super.listNamespaces());
    }

    @Override
    public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
        return answer(() -> super.listNamespaces(namespace));
    }

    @Override
    public boolean namespaceExists(String[] namespace) {
        return answer(() -> super.namespaceExists(namespace));
    }

    @Override
    public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
        return answer(() -> super.loadNamespaceMetadata(namespace));
    }

    @Override
    public Identifier[] listViews(String... namespace) {
        return answer(() -> super.listViews(namespace));
    }

    @Override
    public boolean viewExists(Identifier view) {
        return answer(() -> super.viewExists(view));
    }

    @Override
    public View loadView(Identifier view) throws NoSuchViewException {
        return answer(() -> super.loadView(view));
    }

    /** The answer to a question; asked once more by another client if the lake refuses the token of this one. */
    private <T, E extends Exception> T answer(Question<T, E> question) throws E {
        try {
            return question.ask();
        } catch (NotAuthorizedException e) {
            if (!ownOptions.equals(ofServer(ownName))) {
                throw e;
            }
            initialize(ownName, ownOptions);
            return question.ask();
        }
    }

    private static boolean isYoung(Client client) {
        return System.nanoTime() - client.madeNs() < REPLACED_AFTER_NS;
    }

    /** The settings of a catalog that the server was started with. */
    private static CaseInsensitiveStringMap ofServer(String name) {
        String prefix = "spark.sql.catalog." + name + ".";
        Map<String, String> found = new HashMap<>();
        SparkConf server = SparkSession.active().sparkContext().getConf();
        for (Tuple2<String, String> entry : server.getAllWithPrefix(prefix)) {
            found.put(entry._1(), entry._2());
        }
        return new CaseInsensitiveStringMap(found);
    }

    /**
     * Whether the lake still takes the client's token. Any other failure is the query's to report.
     */
    private static boolean isWelcome(Catalog catalog) {
        if (!(catalog instanceof SupportsNamespaces)) {
            return true;
        }
        try {
            ((SupportsNamespaces) catalog).namespaceExists(Namespace.of("default"));
            return true;
        } catch (NotAuthorizedException e) {
            return false;
        } catch (RuntimeException e) {
            return true;
        }
    }
}
