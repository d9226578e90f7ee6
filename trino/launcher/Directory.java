package tarn;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Collectors;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * The catalog's principals as Trino's door sees them: who there is, who is an admin, and whether a secret is right.
 *
 * All is asked of the catalog, with Trino's own credential where that takes an admin, and kept for a few seconds. What was
 * known last stays known while the catalog does not answer; a secret is then right only if it was found so just before.
 * Each change of the admins is written to the file of Trino's access control, which keeps other people's queries apart.
 */
final class Directory
{
    /** How old may be what a request is judged by, nanoseconds. */
    private static final long AGE_NS_MAX = Duration.ofSeconds(5).toNanos();
    private static final long RETRY_NS = Duration.ofSeconds(1).toNanos();
    private static final Duration ANSWER_WITHIN = Duration.ofSeconds(5);
    private static final int LOGINS_MAX = 1_000;
    private static final String ADMIN = "admin";
    private static final int OK = 200;
    private static final int UNAUTHORIZED = 401;
    private static final int BAD_REQUEST = 400;

    /** The catalog does not answer, or not as it should. */
    static final class UnavailableException
            extends IOException
    {
        private static final long serialVersionUID = 1;

        UnavailableException(String message, Throwable cause)
        {
            super(message, cause);
        }
    }

    /**
     * What the catalog said last.
     *
     * @param clients name of each principal to its client id
     * @param admins names of those that may do everything
     * @param guarded whether an admin created any principal, so that everybody has to log in
     */
    record Known(Map<String, String> clients, Set<String> admins, boolean guarded) {}

    private static final class Shared
    {
        private static final Directory ONE = "open".equals(System.getenv("TARN_TRINO_ACCESS")) ? null : new Directory(
                System.getenv("TARN_CATALOG_URI"), System.getenv("TARN_CATALOG_CREDENTIAL"), Path.of(System.getenv("TARN_TRINO_RULES")));
    }

    /** Whether a secret was right, and until when that counts. */
    private record Login(String client, long untilNs) {}

    private final ObjectMapper json = new ObjectMapper();
    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(ANSWER_WITHIN)
            .build();
    private final Map<String, Login> logins = new ConcurrentHashMap<>();
    private final String uri;
    private final String credential;
    private final Path rules;
    /** Held by the one thread that asks; it alone writes the fields below. */
    private final ReentrantLock asking = new ReentrantLock();

    private volatile Known known;
    private volatile long readNs;
    private volatile long triedNs;
    private volatile String failure = "it has not been asked yet";
    /** Why the rules in the file are not those of what is known; null if they are. */
    private volatile String stale;
    private String token;

    /**
     * @param uri the catalog's address
     * @param credential Trino's own, client_id:client_secret
     * @param rules the file of Trino's access control, which this class writes
     */
    Directory(String uri, String credential, Path rules)
    {
        this.uri = uri;
        this.credential = credential;
        this.rules = rules;
        // All that was read is older than may be.
        readNs = System.nanoTime() - AGE_NS_MAX - RETRY_NS;
        triedNs = readNs;
    }

    /** The one of this process, by its environment; null where everybody may do everything (TARN_TRINO_ACCESS=open). */
    static Directory shared()
    {
        return Shared.ONE;
    }

    String ownCredential()
    {
        return credential;
    }

    /**
     * Returns what the catalog says, or said last while it does not answer.
     *
     * One thread asks; meanwhile the others go on with what is known, so that a catalog that hangs does not hold them up.
     * Who cannot go on, because nothing is known yet or not the one who came, waits for the answer, but no longer than RETRY_NS.
     * Nobody goes on while rules that changed are not in the file: those in it may let everybody see the queries of others.
     *
     * @param fresh whether what was read just before will not do: somebody came whom it does not know
     */
    Known known(boolean fresh)
            throws UnavailableException
    {
        if (isDue(fresh) && hasTurn(fresh || known == null)) {
            try {
                if (isDue(fresh)) {
                    refresh();
                }
            }
            finally {
                asking.unlock();
            }
        }
        // First, as it is set to null last: once it is null, what is known is not older than the rules.
        String why = stale;
        Known found = known;
        if (found == null) {
            throw new UnavailableException("the catalog has not said who its principals are: " + failure, null);
        }
        if (why != null) {
            throw new UnavailableException(why, null);
        }
        return found;
    }

    private boolean isDue(boolean fresh)
    {
        long now = System.nanoTime();
        return (fresh || now - readNs >= AGE_NS_MAX) && now - triedNs >= RETRY_NS;
    }

    private boolean hasTurn(boolean waits)
            throws UnavailableException
    {
        try {
            return waits ? asking.tryLock(RETRY_NS, TimeUnit.NANOSECONDS) : asking.tryLock();
        }
        catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new UnavailableException("interrupted while the catalog was asked", e);
        }
    }

    private void refresh()
    {
        long now = System.nanoTime();
        try {
            Known found = read();
            Known before = known;
            if (stale != null || before == null || !before.admins().equals(found.admins()) || before.guarded() != found.guarded()) {
                write(found);
            }
            known = found;
            stale = null;
            readNs = now;
        }
        catch (IOException e) {
            failure = e.getMessage();
            token = null;
        }
        finally {
            // After the attempt: one that took longer than the pause would be followed by the next at once.
            triedNs = System.nanoTime();
        }
    }

    /** Returns whether a secret is that of a client id. */
    boolean isSecret(String client, String secret)
            throws UnavailableException
    {
        String key = client + ":" + digest(secret);
        long now = System.nanoTime();
        Login before = logins.get(key);
        if (before != null && now < before.untilNs()) {
            return true;
        }
        HttpResponse<String> answer = loggedIn(client, secret);
        if (answer.statusCode() == UNAUTHORIZED || answer.statusCode() == BAD_REQUEST) {
            logins.remove(key);
            return false;
        }
        if (answer.statusCode() != OK) {
            throw new UnavailableException("the catalog answers " + answer.statusCode() + " to a log-in", null);
        }
        if (logins.size() >= LOGINS_MAX) {
            logins.clear();
        }
        logins.put(key, new Login(client, now + AGE_NS_MAX));
        return true;
    }

    private Known read()
            throws UnavailableException
    {
        Map<String, String> clients = new HashMap<>();
        Set<String> admins = new HashSet<>();
        boolean guarded = false;
        for (JsonNode one : asked("/tarn/v1/principals").path("principals")) {
            clients.put(one.path("name").asText(), one.path("client-id").asText());
            if (one.path("built-in").asBoolean()) {
                // A catalog that does not say so has no built-in principals but admins.
                if (one.path("admin").asBoolean(true)) {
                    admins.add(one.path("name").asText());
                }
            }
            else {
                guarded = true;
            }
        }
        if (guarded) {
            for (JsonNode role : asked("/tarn/v1/roles").path("roles")) {
                if (role.path("name").asText().equals(ADMIN)) {
                    role.path("members").forEach(member -> admins.add(member.asText()));
                }
            }
        }
        return new Known(Map.copyOf(clients), Set.copyOf(admins), guarded);
    }

    private JsonNode asked(String path)
            throws UnavailableException
    {
        for (int attempt = 1; ; attempt++) {
            if (token == null) {
                token = newToken();
            }
            HttpResponse<String> answer = sent(HttpRequest.newBuilder(URI.create(uri + path)).header("authorization", "Bearer " + token));
            if (answer.statusCode() == OK) {
                return parsed(answer);
            }
            token = null;
            if (answer.statusCode() != UNAUTHORIZED || attempt > 1) {
                throw new UnavailableException("the catalog answers " + answer.statusCode() + " to " + path, null);
            }
        }
    }

    private String newToken()
            throws UnavailableException
    {
        int colon = credential.indexOf(':');
        HttpResponse<String> answer = loggedIn(credential.substring(0, Math.max(colon, 0)), credential.substring(colon + 1));
        if (answer.statusCode() != OK) {
            throw new UnavailableException("the catalog answers " + answer.statusCode() + " to Trino's own credential; run the init service", null);
        }
        return parsed(answer).path("access_token").asText();
    }

    private HttpResponse<String> loggedIn(String client, String secret)
            throws UnavailableException
    {
        String form = "grant_type=client_credentials&client_id=%s&client_secret=%s".formatted(
                URLEncoder.encode(client, StandardCharsets.UTF_8), URLEncoder.encode(secret, StandardCharsets.UTF_8));
        return sent(HttpRequest.newBuilder(URI.create(uri + "/v1/oauth/tokens"))
                .header("content-type", "application/x-www-form-urlencoded")
                .POST(HttpRequest.BodyPublishers.ofString(form)));
    }

    private HttpResponse<String> sent(HttpRequest.Builder request)
            throws UnavailableException
    {
        try {
            return http.send(request.timeout(ANSWER_WITHIN).build(), HttpResponse.BodyHandlers.ofString());
        }
        catch (IOException e) {
            throw new UnavailableException("the catalog does not answer (%s)".formatted(e), e);
        }
        catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new UnavailableException("interrupted while asking the catalog", e);
        }
    }

    private JsonNode parsed(HttpResponse<String> answer)
            throws UnavailableException
    {
        try {
            return json.readTree(answer.body());
        }
        catch (IOException e) {
            throw new UnavailableException("the catalog's answer is no JSON", e);
        }
    }

    /** Writes the rules of Trino's access control: who sees and ends the queries of others. */
    private void write(Known found)
            throws UnavailableException
    {
        List<String> everything = List.of("execute", "view", "kill");
        Map<String, Object> written = new HashMap<>();
        if (found.guarded()) {
            String admins = new TreeSet<>(found.admins()).stream().map(Directory::quoted).collect(Collectors.joining("|"));
            written.put("queries", List.of(Map.of("user", admins, "allow", everything), Map.of("allow", List.of("execute"))));
            written.put("system_information", List.of(Map.of("user", admins, "allow", List.of("read"))));
            // It deletes files without a commit, so without a decision of the catalog; see also Rules.
            written.put("catalog_session_properties", List.of(
                    Map.of("user", admins, "allow", true),
                    Map.of("property", "remove_orphan_files_min_retention", "allow", false),
                    Map.of("allow", true)));
        }
        else {
            written.put("queries", List.of(Map.of("allow", everything)));
            written.put("system_information", List.of(Map.of("allow", List.of("read"))));
        }
        // Without a rule, Trino allows those of its own catalog `system` only; what they do to a table, the catalog decides.
        written.put("functions", List.of(Map.of("privileges", List.of("EXECUTE", "GRANT_EXECUTE"))));
        written.put("procedures", List.of(Map.of("privileges", List.of("EXECUTE", "GRANT_EXECUTE"))));
        Path next = rules.resolveSibling(rules.getFileName() + ".next");
        try {
            Files.write(next, json.writeValueAsBytes(written));
            Files.move(next, rules, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        }
        catch (IOException e) {
            stale = "the rules of Trino's access control cannot be written (%s); make room in /tmp of its container, or restart it".formatted(e);
            throw new UnavailableException(stale, e);
        }
    }

    /** Returns a regular expression that matches a name and nothing else. */
    private static String quoted(String name)
    {
        return name.replaceAll("[^A-Za-z0-9_]", "\\\\$0");
    }

    private static String digest(String secret)
    {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(secret.getBytes(StandardCharsets.UTF_8)));
        }
        catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns the name and the secret of a Basic header, or null. */
    static String[] basic(String header)
    {
        try {
            String text = new String(Base64.getDecoder().decode(header.strip()), StandardCharsets.UTF_8);
            int colon = text.indexOf(':');
            return colon < 0 ? null : new String[] {text.substring(0, colon), text.substring(colon + 1)};
        }
        catch (IllegalArgumentException e) {
            return null;
        }
    }
}
