package tarn.spark;

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
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;

/**
 * Iceberg's Spark catalog, with one client of the lake for all sessions instead of one for each.
 *
 * <p>Iceberg closes a session's client never: its connections and the renewal of its token stay for as long as the
 * server runs. So every session whose settings of the catalog are the server's own uses the server's one client. A
 * session that set something else for itself gets a client of its own, as Iceberg does it.
 */
public final class SharedCatalog extends SparkCatalog {
    private static final Map<String, Catalog> SHARED = new ConcurrentHashMap<>();

    @Override
    protected Catalog buildIcebergCatalog(String name, CaseInsensitiveStringMap options) {
        if (!options.equals(ofServer(name))) {
            return super.buildIcebergCatalog(name, options);
        }
        Catalog shared = SHARED.get(name);
        if (shared != null && isWelcome(shared)) {
            return shared;
        }
        Catalog made = super.buildIcebergCatalog(name, options);
        SHARED.put(name, made);
        return made;
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
     * Whether the lake still takes the client's token. Iceberg gives up renewing a token after a few seconds without
     * an answer; a session that begins later must not be left with it. Any other failure is the query's to report.
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
