# Keystone and Placement. Sourced by rig.

# How a service asks Keystone about its callers, and a section of its configuration with its own credentials.
authtoken() { # USER
  cat <<E
[keystone_authtoken]
www_authenticate_uri = $KS
service_token_roles = service
service_token_roles_required = true
$(credentials "$1")
E
}
credentials() { # USER
  cat <<E
auth_type = password
auth_url = $KS
username = $1
password = $PASSWORD
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = $REGION
E
}
write_base_conf() {
  mkdir -p "$STATE/etc/keystone" "$STATE/etc/placement" "$STATE/fernet" "$STATE/credential"
  chmod 700 "$STATE/fernet" "$STATE/credential"
  local d k
  for d in fernet credential; do for k in 0 1; do # what keystone-manage fernet_setup writes, without its 2 s
    [ -s "$STATE/$d/$k" ] || (umask 077; head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n' >"$STATE/$d/$k")
  done; done
  cat >"$STATE/etc/keystone/keystone.conf" <<E
[DEFAULT]
use_stderr = true
debug = $RIG_DEBUG
public_endpoint = http://$HOST:$KS_PORT
[database]
connection = $(dburl keystone)
[token]
provider = fernet
expiration = $RIG_TOKEN_TTL
[fernet_tokens]
key_repository = $STATE/fernet
[fernet_receipts]
key_repository = $STATE/fernet
[credential]
key_repository = $STATE/credential
[identity]
password_hash_rounds = 4
[oslo_policy]
policy_file = $STATE/etc/keystone/policy.yaml
E
  cat >"$STATE/etc/placement/placement.conf" <<E
[DEFAULT]
use_stderr = true
debug = $RIG_DEBUG
[api]
auth_strategy = keystone
[placement_database]
connection = $(dburl placement)
[placement]
randomize_allocation_candidates = false
$(authtoken placement)
[oslo_policy]
policy_file = $STATE/etc/placement/policy.yaml
E
  echo '{}' >"$STATE/etc/keystone/policy.yaml"; echo '{}' >"$STATE/etc/placement/policy.yaml"
}
populate() {
  $PY "$HERE/populate.py" "$KS" "$PASSWORD" "$REGION" identity="$KS" placement="$PL" compute="$NV" image="$GL" network="$NET" accelerator="$RIG_ACCEL_URL"
}
# The endpoints that the catalog names: a dump has those of who made it.
set_endpoints() {
  sql keystone -e "update endpoint join service on endpoint.service_id = service.id set endpoint.url = case service.type
    when 'identity' then '$KS' when 'placement' then '$PL' when 'compute' then '$NV' when 'image' then '$GL'
    when 'network' then '$NET' when 'accelerator' then '$RIG_ACCEL_URL' end" || die "cannot set the endpoints"
}
up_base() {
  local t0 args p missing; t0=$(ms)
  missing=$(missing_packages); [ -z "$missing" ] || die "run make openstack first; missing: $missing"
  need_port keystone "$KS_PORT"
  need_port placement "$PL_PORT"
  write_base_conf
  start_db
  if ! done_mark schema && cache_load base; then
    mark schema; mark populate; lap cached-keystone-placement
  elif ! done_mark schema; then
    sql -e 'create database if not exists keystone; create database if not exists placement' || die "cannot create databases"
    ( placement-manage --config-file "$STATE/etc/placement/placement.conf" db sync >"$STATE/log/placement-sync.log" 2>&1 9>&- ) &
    p=$!
    $PY "$HERE/manage_keystone.py" "$STATE/etc/keystone/keystone.conf" "$PASSWORD" "$KS" "$REGION" >"$STATE/log/keystone-setup.log" 2>&1 9>&- \
      || die "keystone-manage failed; see $STATE/log/keystone-setup.log"
    wait $p || die "placement-manage failed; see $STATE/log/placement-sync.log"
    mark schema; lap keystone-placement-schema
  fi
  mapfile -t args < <(uwsgi_args "$KS_PORT" /usr/bin/keystone-wsgi-public keystone)
  OS_KEYSTONE_CONFIG_DIR=$STATE/etc/keystone OS_KEYSTONE_CONFIG_FILES=$STATE/etc/keystone/keystone.conf spawn keystone "${args[@]}"
  mapfile -t args < <(uwsgi_args "$PL_PORT" /usr/bin/placement-api placement)
  OS_PLACEMENT_CONFIG_DIR=$STATE/etc/placement spawn placement "${args[@]}"
  wait_url "$KS" keystone; lap keystone-started
  if ! done_mark populate; then
    populate || die "cannot fill Keystone; see $STATE/log/keystone.log"
    cache_save base keystone placement
    mark populate; lap populated
  fi
  set_endpoints
  wait_url "$PL/" placement; lap placement-started
  say "up: Keystone $KS, Placement $PL ($(( $(ms) - t0 )) ms)"
}
