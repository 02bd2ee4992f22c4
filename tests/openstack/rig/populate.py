"""Fills Keystone, once: projects, users, roles, and the service catalog with the endpoints given as TYPE=URL."""
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

keystone, password, region = sys.argv[1:4]
urls = dict(argument.split("=", 1) for argument in sys.argv[4:])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
token = None


def call(method, path, body=None):
    request = urllib.request.Request(keystone + path, method=method, headers={"Content-Type": "application/json"},
                                     data=None if body is None else json.dumps(body).encode())
    if token:
        request.add_header("X-Auth-Token", token)
    with opener.open(request, timeout=30) as response:
        raw = response.read()
        return response, json.loads(raw) if raw else None


def each(function, items):
    return list(pool.map(lambda arguments: function(*arguments), items))


def ensure(kind, one, name, extra):
    if name not in have[kind]:
        have[kind][name] = call("POST", "/" + kind, {one: dict(name=name, **extra)})[1][one]["id"]


def grant(user, project, role):
    call("PUT", "/projects/%s/users/%s/roles/%s" % (have["projects"][project], have["users"][user], have["roles"][role]))


def endpoint(service, url, interface):
    service = have["services"][service]
    if not any(e["service_id"] == service and e["interface"] == interface for e in endpoints):
        call("POST", "/endpoints", {"endpoint": {"service_id": service, "interface": interface, "url": url, "region_id": region}})


response, _ = call("POST", "/auth/tokens", {"auth": {
    "identity": {"methods": ["password"], "password": {"user": {"name": "admin", "domain": {"name": "Default"}, "password": password}}},
    "scope": {"project": {"name": "admin", "domain": {"name": "Default"}}}}})
token = response.headers["X-Subject-Token"]
pool = ThreadPoolExecutor(4)
have = dict(each(lambda kind: (kind, {x["name"]: x["id"] for x in call("GET", "/" + kind)[1][kind]}),
                 [("roles",), ("projects",), ("users",), ("services",)]))
endpoints = call("GET", "/endpoints")[1]["endpoints"]
names = {"identity": "keystone", "placement": "placement", "compute": "nova", "image": "glance", "accelerator": "cyborg", "network": "neutron"}
services = ("placement", "nova", "cyborg", "glance", "neutron")
each(ensure,
     [("roles", "role", name, {}) for name in ("service", "manager")]
     + [("projects", "project", name, {"domain_id": "default"}) for name in ("service", "demo", "alt")]
     + [("users", "user", name, {"domain_id": "default", "password": password}) for name in services + ("manager", "demo", "reader", "alt")]
     + [("services", "service", name, {"type": kind}) for kind, name in names.items()])
# As later releases of Keystone have it: admin implies manager, manager implies member.
for role, implied in (("admin", "manager"), ("manager", "member")):
    call("PUT", "/roles/%s/implies/%s" % (have["roles"][role], have["roles"][implied]))
each(grant, [(name, "service", role) for name in services for role in ("admin", "service")]
     + [("manager", "demo", "manager"), ("demo", "demo", "member"), ("reader", "demo", "reader"), ("alt", "alt", "member"), ("admin", "demo", "admin")])
each(endpoint, [(names[kind], url, interface) for kind, url in urls.items() for interface in ("public", "internal", "admin")])
