"""Not Neutron: just enough of its API, in memory, for Nova to create and delete servers without networks."""
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

store = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, code, obj=None):
        data = b"" if obj is None else json.dumps(obj).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        url = urlsplit(self.path)
        parts, query = [p for p in url.path.split("/") if p], parse_qs(url.query)
        if not parts or parts[0] != "v2.0":
            link = {"rel": "self", "href": "http://%s/v2.0/" % self.headers.get("Host")}
            return self.reply(200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]})
        if len(parts) == 1:
            return self.reply(200, {"resources": []})
        kind = parts[1]
        if kind == "extensions":
            return self.reply(200, {"extensions": []})
        if kind == "quotas":
            return self.reply(200, {"quota": {"port": -1, "network": -1, "floatingip": -1, "security_group": -1}})
        one = (kind[:-3] + "y" if kind.endswith("ies") else kind.rstrip("s")).replace("-", "_")
        kind = kind.replace("-", "_")
        items = store.setdefault(kind, {})
        if self.command == "POST":
            item = {"id": str(uuid.uuid4()), "status": "ACTIVE", **body[one]}
            items[item["id"]] = item
            return self.reply(201, {one: item})
        if len(parts) == 2:
            skip = ("fields", "limit", "marker", "sort_key", "sort_dir")
            rows = [o for o in items.values() if all(str(o.get(k)) in v for k, v in query.items() if k not in skip)]
            return self.reply(200, {kind: rows})
        item = items.get(parts[2])
        if item is None:
            return self.reply(404, {"NeutronError": {"type": "NotFound", "message": "not found", "detail": ""}})
        if self.command == "PUT":
            item.update(body[one])
        if self.command == "DELETE":
            del items[parts[2]]
            return self.reply(204)
        return self.reply(200, {one: item})

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
