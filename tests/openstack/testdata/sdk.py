"""The life of an accelerator request by openstacksdk, as a program of a cloud's user does it; what it has seen goes to standard
output as JSON. Arguments: the device profile, the host, its provider, the password of Nova's user."""
import json
import sys
import uuid

import openstack
from keystoneauth1 import identity, service_token

profile, host, provider, password = sys.argv[1:]
user = openstack.connect()
auth = user.config.auth["auth_url"]

# Nova works for the user with the user's token and its own beside it.
nova = identity.Password(auth_url=auth, username="nova", password=password, project_name="service", user_domain_name="Default",
                         project_domain_name="Default")
both = openstack.connect()
both.accelerator  # finds the service, which the wrapper cannot
both.session.auth = service_token.ServiceTokenAuthWrapper(user_auth=user.session.auth, service_auth=nova)

seen = {"profiles": [p.name for p in user.accelerator.device_profiles()]}
arq = user.accelerator.create_accelerator_request(device_profile_name=profile)
seen["created"] = arq.state
instance = str(uuid.uuid4())
both.accelerator.update_accelerator_request(arq.id, [
    {"path": "/hostname", "op": "add", "value": host},
    {"path": "/instance_uuid", "op": "add", "value": instance},
    {"path": "/device_rp_uuid", "op": "add", "value": provider},
])
bound = user.accelerator.get_accelerator_request(arq.id)
seen["bound"] = bound.state
seen["handle"] = sorted(bound.attach_handle_info)
seen["instance"] = bound.instance_uuid == instance
both.accelerator.update_accelerator_request(arq.id, [{"path": "/hostname", "op": "remove"}])
seen["unbound"] = user.accelerator.get_accelerator_request(arq.id).state
user.accelerator.delete_accelerator_request(arq.id, ignore_missing=False)
seen["left"] = [a.id for a in user.accelerator.accelerator_requests()]
try:
    user.accelerator.get_accelerator_request(arq.id)
except openstack.exceptions.ResourceNotFound as e:
    seen["missing"] = str(e)
try:
    list(user.accelerator.devices())
except openstack.exceptions.HttpException as e:
    seen["forbidden"] = [e.status_code, str(e)]
print(json.dumps(seen))
