"""A small Hugging Face Hub on the loopback address, with what huggingface_hub asks of the real one.

    with fake_hub.serve(monkeypatch, tmp_path) as server:
        server.commit("org/name", {"config.json": b"{}"})

It has models with branches and commits, gated and private ones, and takes uploads, also by LFS.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
import urllib.parse
from collections.abc import Iterator

TOKEN = "hf_secretsecretsecret"


class Server:
    """The content of the hub, and what was asked of it.

    repos: {name: {revision: {path: bytes}}}, with the branch "main" and every commit. gated: names
    of models that need TOKEN. requests: (method, path) of every request. private: names of the
    repositories that were created as private. broken: whether every answer is an error 503.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.heads: dict[str, str] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.lfs: dict[str, bytes] = {}
        self.broken = False
        self.url = ""

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Adds files to the branch main of a repository, which is created; returns the commit."""
        content = {**self.repos.get(repo, {}).get("main", {}), **files}
        digest = hashlib.sha1(repr(sorted(content.items())).encode()).hexdigest()
        self.repos.setdefault(repo, {}).update({digest: content, "main": content})
        self.heads[repo] = digest
        return digest

    def add_folder(self, repo: str, folder: pathlib.Path, **more: bytes) -> str:
        """Commits all files of a folder; returns the commit."""
        files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
        return self.commit(repo, {name: p.read_bytes() for name, p in files.items()} | more)

    def downloads(self) -> set[str]:
        """Returns the paths of the files in repositories that were downloaded."""
        paths = (path for method, path in self.requests if method == "GET" and "/resolve/" in path)
        return {path.split("/resolve/")[1].split("/", 1)[1] for path in paths}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Server

    def log_message(self, *args: object) -> None:
        pass

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, content: object, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), Content_Type="application/json")

    def _fail(self, status: int, code: str = "") -> None:
        self._send(status, b"{}", **({"X_Error_Code": code} if code else {}))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _begin(self) -> str | None:
        """Records the request and returns its path; answers it and returns None if it must fail."""
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.hub.requests.append((self.command, path))
        if self.hub.broken:
            return self._fail(503)
        return path

    def _allowed(self, repo: str) -> bool:
        if repo in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(401, "GatedRepo")
            return False
        if repo not in self.hub.repos:
            self._fail(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
            return False
        return True

    def do_GET(self) -> None:
        path = self._begin()
        if path is None:
            return None
        if path.startswith("/api/models/"):
            parts = [*path.removeprefix("/api/models/").split("/"), "revision"]
            repo, verb, revision = "/".join(parts[:2]), parts[2], "/".join(parts[3:-1]) or "main"
            name = ""
        elif "/resolve/" in path:
            repo, _, rest = path[1:].partition("/resolve/")
            verb, (revision, _, name) = "resolve", rest.partition("/")
        else:
            return self._fail(404)
        if not self._allowed(repo):
            return None
        if revision not in self.hub.repos[repo]:
            return self._fail(404, "RevisionNotFound")
        files = self.hub.repos[repo][revision]
        commit = self.hub.heads[repo] if revision == "main" else revision
        if verb == "revision":
            siblings = [{"rfilename": name} for name in files]
            return self._json({"id": repo, "sha": commit, "siblings": siblings, "tags": []})
        if verb == "tree":
            return self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                    for name, data in files.items()
                ]
            )
        if name not in files:
            return self._fail(404, "EntryNotFound")
        data = files[name]
        headers = {"ETag": f'"{_digest(data)}"', "X_Repo_Commit": commit}
        return self._send(200, data, Content_Length=str(len(data)), **headers)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = self._begin(), self._body()
        if path is None:
            return None
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._fail(401)
        if path == "/api/repos/create":
            content = json.loads(body)
            repo = f"{content['organization']}/{content['name']}"
            if repo.startswith("others/"):
                return self._fail(403)
            answer = {"url": f"{self.hub.url}/{repo}", "id": repo, "name": repo}
            if repo in self.hub.repos:
                return self._json(answer, 409)
            self.hub.commit(repo, {})
            if content.get("private") or content.get("visibility") == "private":
                self.hub.private.add(repo)
            return self._json(answer)
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for each in objects:
                href = f"{self.hub.url}/lfs/{each['oid']}"
                each["actions"] = {"upload": {"href": href}}
            return self._json({"transfer": "basic", "objects": objects})
        repo = "/".join(path.removeprefix("/api/models/").split("/")[:2])
        if "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {True: "lfs", False: "regular"}
            return self._json(
                {
                    "files": [
                        {
                            "path": name,
                            "uploadMode": modes[name.endswith(".safetensors")],
                            "shouldIgnore": False,
                        }
                        for name in names
                    ]
                }
            )
        files = {}
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.lfs[value["oid"]]
        oid = self.hub.commit(repo, files)
        url = f"{self.hub.url}/{repo}/commit/{oid}"
        return self._json({"success": True, "commitOid": oid, "commitUrl": url})

    def do_PUT(self) -> None:
        path, body = self._begin(), self._body()
        if path is not None:
            self.hub.lfs[path.rpartition("/")[2]] = body
            self._send(200)


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextlib.contextmanager
def serve(monkeypatch, folder: pathlib.Path, token: str = "") -> Iterator[Server]:
    """Runs a hub; makes huggingface_hub use it, with a cache in `folder`, in this process."""
    from huggingface_hub import constants

    from bertjax import hub as hub_lib

    hub = Server()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template[template.index("/{repo_id}") :]
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # uploads by LFS
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub_cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(folder / "tokens"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(hub_lib, "_revisions", {})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
