package tarn;

import java.io.IOException;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Pattern;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;

/**
 * Trino's door: who sends a statement is a principal of the catalog, and Trino asks the catalog in that principal's name.
 *
 * A client sends its name as Trino's user, and its secret as the extra credential `secret` or as Basic's password. What
 * reaches Trino is the name that was proven, and the principal's credential for the connector (`session=USER`), so that the
 * catalog decides about every table. In a lake where no admin created a principal, nobody has to log in, and Trino asks
 * with its own credential. With TARN_TRINO_ACCESS=open this filter does nothing.
 */
public final class Principals
        implements Filter
{
    private static final String USER = "X-Trino-User";
    private static final String EXTRA = "X-Trino-Extra-Credential";
    private static final String INTERNAL = "X-Trino-Internal-Bearer";
    private static final String SECRET = "secret";
    /** Headers that no client may bring along: Trino reads a user or a credential from each. */
    private static final Set<String> WITHHELD = Set.of("authorization", "x-trino-user", "x-trino-extra-credential", "x-trino-original-user", "x-trino-original-roles");
    /** What Trino protects otherwise: a page of a query by the query's own secret; whether it has started is no secret. */
    private static final Pattern PUBLIC = Pattern.compile("/v1/(info(/state)?|status|statement/(queued|executing)/[A-Za-z0-9_/]+)");
    private static final Set<String> PUBLIC_METHODS = Set.of("GET", "HEAD", "DELETE");
    /** What a node of Trino asks of another, or of itself; Trino checks the token, which only its nodes can sign. */
    private static final Pattern BETWEEN_NODES = Pattern.compile("/v1/(task|announce|memory|info|status)(/[A-Za-z0-9_./-]*)?");
    /** What every principal may ask for; Trino shows each its own queries. */
    private static final Pattern EVERYBODYS = Pattern.compile("/v1/(statement|query(/[A-Za-z0-9_]+)?)");
    private static final int UNAVAILABLE = 503;

    private final Directory directory;

    public Principals()
    {
        directory = Directory.shared();
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException
    {
        HttpServletRequest asked = (HttpServletRequest) request;
        HttpServletResponse answer = (HttpServletResponse) response;
        if (directory == null || isOpen(asked)) {
            chain.doFilter(request, response);
            return;
        }
        try {
            HttpServletRequest admitted = admitted(asked, answer);
            if (admitted != null) {
                chain.doFilter(admitted, response);
            }
        }
        catch (Directory.UnavailableException e) {
            answer.setHeader("Retry-After", "1");
            refuse(answer, UNAVAILABLE, "try again: " + e.getMessage());
        }
    }

    private static boolean isOpen(HttpServletRequest request)
    {
        String path = request.getRequestURI();
        if (request.getHeader(INTERNAL) != null && BETWEEN_NODES.matcher(path).matches() && !path.contains("..")) {
            return true;
        }
        return PUBLIC.matcher(path).matches() && PUBLIC_METHODS.contains(request.getMethod());
    }

    /** Returns the request as Trino may see it; null if it was refused. */
    private HttpServletRequest admitted(HttpServletRequest request, HttpServletResponse answer)
            throws IOException
    {
        String user = request.getHeader(USER);
        String secret = extraCredential(request);
        String authorization = request.getHeader("Authorization");
        if (authorization != null && authorization.toLowerCase(Locale.ROOT).startsWith("basic ")) {
            String[] found = Directory.basic(authorization.substring("basic ".length()));
            if (found == null || (user != null && !user.equals(found[0]))) {
                return challenge(answer, "the user of Authorization is not the one of " + USER + ", or cannot be read");
            }
            // A client without a password sends an empty one.
            user = found[0];
            secret = found[1].isEmpty() ? secret : found[1];
        }
        Directory.Known known = directory.known(false);
        if (secret == null) {
            if (known.guarded()) {
                return challenge(answer, "this lake has principals: send the name of one as user, and its secret");
            }
            return new Admitted(request, user, directory.ownCredential(), request.getHeader("X-Trino-Original-User"));
        }
        if (user != null && !known.clients().containsKey(user)) {
            known = directory.known(true);
        }
        String client = user == null ? null : known.clients().get(user);
        if (client == null || !directory.isSecret(client, secret)) {
            return challenge(answer, "the name or the secret is wrong");
        }
        if (!EVERYBODYS.matcher(request.getRequestURI()).matches() && !known.admins().contains(user)) {
            refuse(answer, HttpServletResponse.SC_FORBIDDEN, "refused: this shows everybody's queries or the server's inside, and is for admins");
            return null;
        }
        return new Admitted(request, user, client + ":" + secret, null);
    }

    /** Returns the value of the extra credential `secret`, or null. */
    private static String extraCredential(HttpServletRequest request)
    {
        for (String header : Collections.list(request.getHeaders(EXTRA))) {
            for (String one : header.split(",")) {
                int equal = one.indexOf('=');
                if (equal > 0 && one.substring(0, equal).strip().equals(SECRET)) {
                    try {
                        return URLDecoder.decode(one.substring(equal + 1).strip(), StandardCharsets.UTF_8);
                    }
                    catch (IllegalArgumentException e) {
                        return "";
                    }
                }
            }
        }
        return null;
    }

    private static HttpServletRequest challenge(HttpServletResponse answer, String message)
            throws IOException
    {
        answer.setHeader("WWW-Authenticate", "Basic realm=\"a principal of Tarn's catalog and its secret\"");
        refuse(answer, HttpServletResponse.SC_UNAUTHORIZED, "log in: " + message + "; see docs/security.md, SQL through Trino");
        return null;
    }

    private static void refuse(HttpServletResponse answer, int status, String message)
            throws IOException
    {
        answer.setStatus(status);
        answer.setContentType("text/plain;charset=UTF-8");
        answer.getWriter().println(message);
    }

    /** A request with the user and the credential that were proven, in the place of all that the client sent. */
    private static final class Admitted
            extends HttpServletRequestWrapper
    {
        private final Map<String, String> own = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);

        Admitted(HttpServletRequest request, String user, String credential, String originalUser)
        {
            super(request);
            if (user != null) {
                own.put(USER, user);
            }
            if (originalUser != null) {
                own.put("X-Trino-Original-User", originalUser);
            }
            own.put(EXTRA, "credential=" + URLEncoder.encode(credential, StandardCharsets.UTF_8));
        }

        private static boolean isWithheld(String name)
        {
            return WITHHELD.contains(name.toLowerCase(Locale.ROOT));
        }

        @Override
        public String getHeader(String name)
        {
            return isWithheld(name) ? own.get(name) : super.getHeader(name);
        }

        @Override
        public Enumeration<String> getHeaders(String name)
        {
            if (!isWithheld(name)) {
                return super.getHeaders(name);
            }
            String value = own.get(name);
            return value == null ? Collections.emptyEnumeration() : Collections.enumeration(List.of(value));
        }

        @Override
        public Enumeration<String> getHeaderNames()
        {
            List<String> names = new ArrayList<>(own.keySet());
            for (String name : Collections.list(super.getHeaderNames())) {
                if (!isWithheld(name)) {
                    names.add(name);
                }
            }
            return Collections.enumeration(names);
        }
    }
}
