# RabbitMQ, Nova with its fake hypervisor, and what stands in for Neutron. Sourced by rig.

# A service of Nova by the name of its program, from python3-nova alone: the packages of the services would bring libvirt.
NOVA='import sys, importlib; sys.argv[0]="nova-"+sys.argv.pop(1); sys.exit(importlib.import_module("nova.cmd."+sys.argv[0][5:].replace("-","_")).main())'
bus() { echo "rabbit://guest:guest@$HOST:$RABBIT_PORT/"; }
nova_conf() {
  local h
  mkdir -p "$STATE/etc/nova/provider_config" "$STATE/nova/instances"
  cp "$HERE/nova-paste.ini" "$STATE/etc/nova/"; echo '{}' >"$STATE/etc/nova/policy.yaml"
  cat >"$STATE/etc/nova/nova.conf" <<E
[DEFAULT]
use_stderr = true
debug = $RIG_DEBUG
host = rig-controller
my_ip = $HOST
state_path = $STATE/nova
instances_path = $STATE/nova/instances
transport_url = $(bus)
enabled_apis = osapi_compute
osapi_compute_listen = $HOST
osapi_compute_listen_port = $NV_PORT
osapi_compute_workers = 1
compute_driver = fake.FakeDriver
arq_binding_timeout = $RIG_ARQ_TIMEOUT
report_interval = 5
# New hosts are mapped within two seconds, without a run of nova-manage.
periodic_fuzzy_delay = 0
service_down_time = 60
reserved_host_memory_mb = 0
[api_database]
connection = $(dburl nova_api)
[database]
connection = $(dburl nova)
[wsgi]
api_paste_config = $STATE/etc/nova/nova-paste.ini
[oslo_policy]
policy_file = $STATE/etc/nova/policy.yaml
[oslo_concurrency]
lock_path = $STATE/tmp
[oslo_messaging_rabbit]
heartbeat_in_pthread = false
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 2
[vnc]
enabled = false
[compute]
provider_config_location = $STATE/etc/nova/provider_config
$(authtoken nova)
[placement]
$(credentials nova)
[neutron]
$(credentials nova)
[service_user]
$(credentials nova)
send_service_user_token = $RIG_NOVA_SERVICE_TOKEN
[glance]
region_name = $REGION
[cyborg]
region_name = $REGION
E
  for h in $RIG_COMPUTES; do
    mkdir -p "$STATE/nova/$h/instances"
    printf '[DEFAULT]\nhost = %s\nstate_path = %s\ninstances_path = %s/instances\n' "$h" "$STATE/nova/$h" "$STATE/nova/$h" >"$STATE/etc/nova/$h.conf"
  done
  sed "s|^connection = .*/nova?.*|connection = $(dburl nova_cell0 | sed 's/&/\\&/g')|" "$STATE/etc/nova/nova.conf" >"$STATE/etc/nova/cell0.conf"
}
start_rabbit() {
  local r=$STATE/rabbit
  need_port rabbit "$RABBIT_PORT"
  mkdir -p "$r/home" "$r/mnesia" "$r/log" "$r/conf"
  echo '[].' >"$r/conf/enabled_plugins"
  cat >"$r/conf/rabbitmq.conf" <<E
listeners.tcp.1 = $HOST:$RABBIT_PORT
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
E
  # Its own epmd on its own port, in the foreground, so that this, too, is ours to stop.
  spawn epmd epmd -address "$HOST" -port "$EPMD_PORT"
  HOME=$r/home ERL_EPMD_PORT=$EPMD_PORT ERL_EPMD_ADDRESS=$HOST RABBITMQ_NODENAME=rig@localhost \
  RABBITMQ_NODE_IP_ADDRESS=$HOST RABBITMQ_NODE_PORT=$RABBIT_PORT RABBITMQ_DIST_PORT=$RABBIT_DIST_PORT \
  RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2" \
  RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE=$r/conf/rabbitmq RABBITMQ_ENABLED_PLUGINS_FILE=$r/conf/enabled_plugins \
  RABBITMQ_GENERATED_CONFIG_DIR=$r/conf/gen RABBITMQ_MNESIA_BASE=$r/mnesia RABBITMQ_LOG_BASE=$r/log RABBITMQ_LOGS=- \
  RABBITMQ_PID_FILE=$r/pid RABBITMQ_FEATURE_FLAGS_FILE=$r/mnesia/feature_flags \
    spawn rabbit /usr/lib/rabbitmq/bin/rabbitmq-server
}
wait_rabbit() {
  local end=$(( $(ms) + 90000 ))
  while port_free "$RABBIT_PORT"; do
    alive rabbit || die "rabbit died; see $STATE/log/rabbit.log"
    [ "$(ms)" -lt "$end" ] || die "RabbitMQ did not open its port; see $STATE/log/rabbit.log"
    sleep 0.2
  done
}
early_nova() { # what can start beside Keystone
  local missing; missing=$(missing_packages); [ -z "$missing" ] || die "run make openstack first; missing: $missing"
  need_port nova-api "$NV_PORT"
  need_port neutron "$NET_PORT"
  spawn neutron $PY "$HERE/neutron_stub.py" "$HOST" "$NET_PORT"
  start_rabbit
}
nova_database() {
  if done_mark nova; then return; fi
  if cache_load nova; then # the records of the cells carry the socket and the port of who made them
    sql nova_api -e "update cell_mappings set transport_url='$(bus)', database_connection='$(dburl nova)' where name='cell1';
      update cell_mappings set database_connection='$(dburl nova_cell0)' where name='cell0'" || die "cannot set the mappings of the cells"
    lap cached-nova
  else
    sql -e 'create database if not exists nova_api; create database if not exists nova_cell0; create database if not exists nova' || die "cannot create Nova's databases"
    $PY "$HERE/manage_nova.py" "$STATE/etc/nova" "$(dburl nova_cell0)" "$(dburl nova)" "$(bus)" >"$STATE/log/nova-manage.log" 2>&1 9>&- \
      || die "nova-manage failed; see $STATE/log/nova-manage.log"
    cache_save nova nova_api nova_cell0 nova
    lap nova-schema-and-cells
  fi
  mark nova
}
up_nova() {
  local t0 h i n token c="--config-file $STATE/etc/nova/nova.conf"; t0=$(ms)
  nova_conf
  nova_database
  wait_rabbit; lap rabbit-ready
  spawn nova-conductor $PY -c "$NOVA" conductor $c
  spawn nova-api $PY -c "$NOVA" api-os-compute $c
  spawn nova-scheduler $PY -c "$NOVA" scheduler $c
  for h in $RIG_COMPUTES; do
    spawn "nova-compute-$h" $PY -c "$NOVA" compute $c --config-file "$STATE/etc/nova/$h.conf"
  done
  wait_url "http://$HOST:$NV_PORT/" nova-api 120
  for h in $RIG_COMPUTES; do
    for i in $(seq 600); do
      [ "$(sql nova -e "select count(*) from compute_nodes where host='$h' and deleted=0" 2>/dev/null)" = 1 ] && break
      alive "nova-compute-$h" || die "nova-compute died; see $STATE/log/nova-compute-$h.log"
      [ "$i" -lt 600 ] || die "nova-compute $h did not register; see $STATE/log/"
      sleep 0.2
    done
  done
  lap nova-services-started
  n=$(echo $RIG_COMPUTES | wc -w)
  for i in $(seq 100); do
    [ "$(sql nova_api -e 'select count(*) from host_mappings' 2>/dev/null)" -ge "$n" ] && break
    sleep 0.2
  done
  [ "$i" -lt 100 ] || $PY -c "$NOVA" manage $c cell_v2 discover_hosts --verbose >"$STATE/log/nova-discover.log" 2>&1 9>&- \
    || die "discover_hosts failed; see $STATE/log/nova-discover.log"
  if ! done_mark nova-flavor; then
    token=$(cmd_token admin) || die "no token"
    curl -sf -o /dev/null -X POST "$NV/flavors" -H "X-Auth-Token: $token" -H 'Content-Type: application/json' \
      -d '{"flavor":{"name":"rig.tiny","id":"rig.tiny","ram":64,"vcpus":1,"disk":1}}' || die "cannot create flavor rig.tiny; see $STATE/log/nova-api.log"
    mark nova-flavor
  fi
  lap nova-mapped
  say "up: Nova $NV, computes: $RIG_COMPUTES ($(( $(ms) - t0 )) ms)"
}
