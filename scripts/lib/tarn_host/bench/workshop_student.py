"""A student of `scripts/bench workshop`: one notebook, cell by cell, in a kernel of JupyterLab's own server.

`CODE` runs in JupyterLab's container, since the client of its websockets is there. Its argument is what is
asked for, as JSON, and it prints one JSON object per line.
"""

from __future__ import annotations

CODE = r"""
import json, os, re, sys, time, urllib.request, uuid
from pathlib import Path

CELL_S = 600
SAID_CHARS = 4000
WRONG, SOLVED = "wrong", "solved"


def steps(book, solutions, wrong, student, size):
    # What a student runs, in order: (cell, source). After an exercise's check: a wrong answer, its check, the
    # right one, its check.
    made = []
    if size != "full":
        made.append(("size", "import os; os.environ['TARN_WORKSHOP_SIZE'] = " + repr(size)))
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        source = re.sub(r"workshop\.open\((\"\d\d\")\)", rf'workshop.open(\1, student="{student}")', source)
        made.append((cell["id"], source))
        if re.fullmatch(r"check-\d+", cell["id"]):
            exercise = cell["id"].replace("check", "exercise")
            for word, answer in ((WRONG, wrong[exercise][0][0]), (SOLVED, solutions[exercise])):
                made += [(f"{exercise}-{word}", answer), (f"{cell['id']}-{word}", source)]
    return made


def due(begun, seconds, place, count):
    # When a step is run: all of them spread over the time.
    return begun + seconds * place / count


class Server:
    def __init__(self):
        self.at = os.environ["TARN_JUPYTER_LISTEN"] + ":8888"
        self.token = Path("/run/tarn/secrets/jupyter_token").read_text().strip()

    def ask(self, method, path, body=None):
        headers = {"Host": "localhost", "Authorization": "token " + self.token}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.at}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def channels(self, kernel):
        import websocket

        session = uuid.uuid4().hex
        return websocket.create_connection(
            f"ws://{self.at}/api/kernels/{kernel}/channels?session_id={session}",
            header={"Authorization": "token " + self.token},
            host="localhost",
            suppress_origin=True,
            timeout=120,
        )


def messages(channels, until):
    # What the server sends until then; read in pauses too, as the server asks whether somebody is there.
    import websocket

    while (left := until - time.time()) > 0:
        channels.settimeout(max(0.05, min(1.0, left)))
        try:
            text = channels.recv()
        except websocket.WebSocketTimeoutException:
            continue
        if isinstance(text, str) and text:
            yield json.loads(text)


def run(channels, source):
    # (what it printed, its error or "").
    ident = uuid.uuid4().hex
    header = {"msg_id": ident, "msg_type": "execute_request", "session": ident, "version": "5.3"}
    header["username"] = ""
    content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
    content["user_expressions"] = {}
    sent = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channels.send(json.dumps(sent))
    said, error, idle, replied = "", "", False, False
    for message in messages(channels, time.time() + CELL_S):
        kind, found = message["header"]["msg_type"], message["content"]
        if kind == "status" and found["execution_state"] in ("restarting", "autorestarting", "dead"):
            return said, "the kernel died"
        if message["parent_header"].get("msg_id") != ident:
            continue
        if kind == "stream" and found["name"] == "stdout":
            said += found["text"]
        elif kind == "error":
            error = f"{found['ename']}: {found['evalue']}"
        elif kind == "status" and found["execution_state"] == "idle":
            idle = True
        elif kind == "execute_reply":
            replied = True
            if found["status"] != "ok" and not error:
                error = f"{found.get('ename', found['status'])}: {found.get('evalue', '')}"
        if idle and replied:
            return said, error
    return said, f"not done after {CELL_S} s"


def tell(**found):
    print(json.dumps(found), flush=True)


def walk(asked):
    server = Server()
    begun = time.time()
    path = "tarn/" + asked["file"]
    book = server.ask("GET", f"/api/contents/{path}?content=1")["content"]
    opened = {"path": path, "name": asked["file"], "type": "notebook", "kernel": {"name": "python3"}}
    session = server.ask("POST", "/api/sessions", opened)
    channels = server.channels(session["kernel"]["id"])
    wanted = steps(book, asked["solutions"], asked["wrong"], asked["student"], asked["size"])
    tell(opened_s=time.time() - begun)
    for place, (name, source) in enumerate(wanted):
        for _ in messages(channels, due(begun, asked["seconds"], place, len(wanted))):
            pass
        started = time.time()
        said, error = run(channels, source)
        tell(cell=name, seconds=time.time() - started, said=said[-SAID_CHARS:], error=error)
        if error:
            return


def look():
    # The notebooks whose kernels still know what they did.
    server = Server()
    alive = []
    for session in server.ask("GET", "/api/sessions"):
        said, error = run(server.channels(session["kernel"]["id"]), "print(lab.namespace)")
        if said.startswith("ws_") and not error:
            alive.append(session["path"])
    tell(kernels=alive)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if asked:
        walk(asked)
    else:
        look()
"""
