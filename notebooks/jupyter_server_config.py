"""JupyterLab's server configuration: one token, local addresses only, no secrets in logs.

The server finds this file by JUPYTER_CONFIG_DIR, a folder of the read-only image: nothing that a notebook can
write is read as configuration. The token comes from a secret file; if the file cannot be read the server does
not start, since without a token it would generate one and print it.
"""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

TOKEN_CHARS_MIN = 32


def token() -> str:
    """Return the server's token: the secret file's content without its trailing newlines.

    Raises:
        ValueError: the token is too short to be secure.
        OSError: the secret file cannot be read.
    """
    path = Path(os.environ.get("TARN_SECRETS_DIR", "/run/tarn/secrets"), "jupyter_token")
    found = path.read_text(encoding="utf-8").rstrip("\n")
    if len(found) < TOKEN_CHARS_MIN:
        raise ValueError(f"{path} has {len(found)} characters, needed are {TOKEN_CHARS_MIN}; run scripts/up")
    return found


class JsonLines(logging.Formatter):
    """Log formatter with one JSON object per line, as in all of Tarn's services."""

    def __init__(self, **_: object) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON line; a stack trace becomes the field `exception`."""
        event = record.getMessage().strip()
        # The server logs a stop signal as critical; here it is a normal shutdown.
        level = "info" if event.startswith("received signal ") else record.levelname.lower()
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": level,
            "event": event,
            "service": "jupyter",
            "logger": record.name,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class WithoutNoise(logging.Filter):
    """Log filter that drops a warning of every session that users cannot fix.

    Tornado reads the server's ping interval, given in milliseconds, as seconds and warns; neither is used.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record."""
        return not record.getMessage().startswith("The websocket_ping_timeout ")


c = get_config()  # type: ignore[name-defined]  # noqa: F821 - the server's own way to hand over its settings

# Access: with the token, by this machine's own addresses.
c.IdentityProvider.token = token()
c.PasswordIdentityProvider.allow_password_change = False
# In Compose it listens in its own network only, so that containers of a shared network cannot connect.
c.ServerApp.ip = os.environ.get("TARN_JUPYTER_LISTEN", "0.0.0.0")  # noqa: S104 - published on 127.0.0.1 only
c.ServerApp.port = 8888
c.ServerApp.port_retries = 0
c.ServerApp.allow_remote_access = False  # rejects Host headers that are not loopback names (DNS rebinding)
c.ServerApp.local_hostnames = ["localhost"]
c.ServerApp.allow_origin = ""
c.ServerApp.allow_root = False
c.ServerApp.disable_check_xsrf = False
c.ServerApp.open_browser = False
c.ServerApp.quit_button = False
# Terminals add nothing: a kernel can run everything that a shell could.
c.ServerApp.terminals_enabled = False
c.ServerApp.jpserver_extensions = {
    "jupyterlab": True,
    "jupyter_lsp": False,
    "jupyter_server_terminals": False,
    "notebook_shim": False,
}

# Folders: tarn/ (part of the image, read only) and work/ (the user's volume).
c.ServerApp.root_dir = "/notebooks"
c.FileContentsManager.preferred_dir = "work"
c.LabApp.default_url = "/lab/tree/tarn/start.md"
c.FileContentsManager.delete_to_trash = False

# No requests to the internet.
c.LabApp.extension_manager = "readonly"
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.news_url = None

# Idle kernels are stopped after eight hours, to free their memory.
c.MappingKernelManager.cull_idle_timeout = 8 * 3600
c.MappingKernelManager.cull_interval = 300
c.KernelManager.transport = "ipc"  # sockets in /tmp, not ports

c.Application.logging_config = {
    "formatters": {"console": {"()": JsonLines}},
    "filters": {"noise": {"()": WithoutNoise}},
    "handlers": {"console": {"filters": ["noise"]}},
}
c.Application.log_level = os.environ.get("TARN_LOG_LEVEL", "info").upper()
c.ServerApp.custom_display_url = f"http://127.0.0.1:{os.environ.get('TARN_PORT_JUPYTER', '8888')}"
