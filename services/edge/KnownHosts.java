package tarn;

import java.io.IOException;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

/**
 * Refuses what a web page of another origin sends: a request for a host that is not this service (DNS rebinding), and
 * one whose Origin is not the host that it asks. In front of Trino and of Spark's UI, which have no such check.
 *
 * The rules are those of tarn/core/hosts.py. Known are the loopback's names, the address that the connection came to,
 * and the names in TARN_KNOWN_HOSTS, parted by commas; any port.
 */
public final class KnownHosts
        implements Filter
{
    private static final Set<String> LOOPBACK = Set.of("localhost", "127.0.0.1", "[::1]");
    private static final Set<String> SAFE_METHODS = Set.of("GET", "HEAD", "OPTIONS");
    private static final Set<String> FOREIGN_SITES = Set.of("cross-site", "same-site");
    private static final int VALUE_CHARS_MAX = 255;
    private static final int MISDIRECTED = 421;

    private final Set<String> names = new HashSet<>(LOOPBACK);

    public KnownHosts()
    {
        String more = System.getenv("TARN_KNOWN_HOSTS");
        for (String name : (more == null ? "" : more).split(",")) {
            if (!name.isBlank()) {
                names.add(name.strip().toLowerCase(Locale.ROOT));
            }
        }
    }

    @Override
    public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
            throws IOException, ServletException
    {
        HttpServletRequest asked = (HttpServletRequest) request;
        HttpServletResponse answer = (HttpServletResponse) response;
        if (!isForUs(asked)) {
            refuse(answer, MISDIRECTED, "refused: this service does not answer under the name that the request asks for; "
                    + "use 127.0.0.1 or localhost, or add the name to TARN_HOSTS if it is yours");
        }
        else if (isOfAnotherPage(asked)) {
            refuse(answer, HttpServletResponse.SC_FORBIDDEN, "refused: this request comes from a page of another origin");
        }
        else {
            chain.doFilter(request, response);
        }
    }

    private static void refuse(HttpServletResponse answer, int status, String message)
            throws IOException
    {
        answer.setStatus(status);
        answer.setContentType("text/plain;charset=UTF-8");
        answer.getWriter().println(message);
    }

    /** Whether the Host header and the request line, each for itself, name this service. */
    private boolean isForUs(HttpServletRequest request)
    {
        return isKnown(host(request), request) && isKnown(request.getServerName(), request);
    }

    private static boolean isOfAnotherPage(HttpServletRequest request)
    {
        String origin = request.getHeader("Origin");
        if (origin != null) {
            String host = host(request);
            return !origin.equalsIgnoreCase("http://" + host) && !origin.equalsIgnoreCase("https://" + host);
        }
        String site = request.getHeader("Sec-Fetch-Site");
        return site != null && FOREIGN_SITES.contains(site.toLowerCase(Locale.ROOT)) && !SAFE_METHODS.contains(request.getMethod());
    }

    private static String host(HttpServletRequest request)
    {
        String host = request.getHeader("Host");
        return host != null ? host : request.getServerName() + ":" + request.getServerPort();
    }

    private boolean isKnown(String authority, HttpServletRequest request)
    {
        if (authority.isEmpty() || authority.length() > VALUE_CHARS_MAX) {
            return false;
        }
        String name = withoutPort(authority).toLowerCase(Locale.ROOT);
        return names.contains(name) || names.contains("[" + name + "]") || isOwn(name, request.getLocalAddr());
    }

    /** Whether the text is the very address that the connection came to; a name is never looked up. */
    private static boolean isOwn(String name, String local)
    {
        return local != null && (name.equals(local) || name.equals("[" + local + "]"));
    }

    private static String withoutPort(String authority)
    {
        int colon = authority.lastIndexOf(':');
        boolean bare = authority.startsWith("[") ? colon < authority.lastIndexOf(']') : colon != authority.indexOf(':');
        return colon < 0 || bare ? authority : authority.substring(0, colon);
    }
}
