# Glance, with a store of files. Sourced by rig.
up_glance() {
  local t0 token id; t0=$(ms)
  need_port glance "$GL_PORT"
  mkdir -p "$STATE/etc/glance" "$STATE/images" "$STATE/tmp/glance"
  cp "$HERE/glance-paste.ini" "$STATE/etc/glance/"; echo '{}' >"$STATE/etc/glance/policy.yaml"
  cat >"$STATE/etc/glance/glance-api.conf" <<E
[DEFAULT]
use_stderr = true
debug = $RIG_DEBUG
bind_host = $HOST
bind_port = $GL_PORT
workers = 1
enabled_backends = file:file
node_staging_uri = file://$STATE/tmp/glance
[database]
connection = $(dburl glance)
[glance_store]
default_backend = file
[file]
filesystem_store_datadir = $STATE/images
[os_glance_staging_store]
filesystem_store_datadir = $STATE/tmp/glance
[os_glance_tasks_store]
filesystem_store_datadir = $STATE/tmp/glance-tasks
[paste_deploy]
flavor = keystone
config_file = $STATE/etc/glance/glance-paste.ini
[oslo_policy]
policy_file = $STATE/etc/glance/policy.yaml
[oslo_concurrency]
lock_path = $STATE/tmp
$(authtoken glance)
E
  if ! done_mark glance && cache_load glance; then mark glance; lap cached-glance
  elif ! done_mark glance; then
    sql -e 'create database if not exists glance' || die "cannot create Glance's database"
    $PY -c 'import sys; sys.argv[0]="glance-manage"; from glance.cmd.manage import main; sys.exit(main())' \
      --config-file "$STATE/etc/glance/glance-api.conf" db sync >"$STATE/log/glance-sync.log" 2>&1 9>&- \
      || die "glance-manage failed; see $STATE/log/glance-sync.log"
    cache_save glance glance
    mark glance; lap glance-schema
  fi
  spawn glance $PY -c 'import sys; sys.argv[0]="glance-api"; from glance.cmd.api import main; sys.exit(main())' \
    --config-file "$STATE/etc/glance/glance-api.conf"
  wait_url "$GL/versions" glance
  if ! done_mark glance-image; then
    token=$(cmd_token admin) || die "no token"
    id=$(curl -sf -X POST "$GL/v2/images" -H "X-Auth-Token: $token" -H 'Content-Type: application/json' \
      -d '{"name":"rig-image","disk_format":"raw","container_format":"bare","visibility":"public","min_ram":0}' \
      | $PY -c 'import json,sys; print(json.load(sys.stdin)["id"])') || die "cannot create rig-image"
    head -c 1024 /dev/zero | curl -sf -X PUT "$GL/v2/images/$id/file" -H "X-Auth-Token: $token" \
      -H 'Content-Type: application/octet-stream' --data-binary @- || die "cannot upload rig-image"
    echo "$id" >"$STATE/done/glance-image"
  fi
  lap glance-started
  say "up: Glance $GL ($(( $(ms) - t0 )) ms)"
}
