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
 * Known are the loopback's names, the address that the connection came to, and the names in TARN_KNOWN_HOSTS, parted
 * by commas; any port.
 */
public final class KnownHosts
        implements Filter
{
    private static final Set<String> LOOPBACK = Set.of("localhost", "127.0.0.1", "[::1]");
    private static final int VALUE_CHARS_MAX = 255;

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
        String fault = fault(asked);
        if (fault == null) {
            chain.doFilter(request, response);
            return;
        }
        HttpServletResponse answer = (HttpServletResponse) response;
        answer.setStatus(HttpServletResponse.SC_FORBIDDEN);
        answer.setContentType("text/plain;charset=UTF-8");
        answer.getWriter().println(fault);
    }

    /** Why the request is refused, or null. */
    private String fault(HttpServletRequest request)
    {
        String host = request.getHeader("Host");
        if (host == null) {
            host = authority(request.getServerName(), request.getServerPort());
        }
        // Whatever stands in the request line and the Host header has to be known, each for itself.
        if (!isKnown(host, request) || !isKnown(request.getServerName(), request)) {
            return "refused: the Host of this request is not known here; ask for 127.0.0.1 or localhost, "
                    + "or add the name to TARN_KNOWN_HOSTS of this service";
        }
        String origin = request.getHeader("Origin");
        if (origin != null && !origin.equalsIgnoreCase("http://" + host) && !origin.equalsIgnoreCase("https://" + host)) {
            return "refused: this request comes from a page of another origin";
        }
        return null;
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

    private static String authority(String name, int port)
    {
        return port > 0 ? name + ":" + port : name;
    }
}
