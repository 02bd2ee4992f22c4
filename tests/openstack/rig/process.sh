# Daemons, ports, uwsgi, MariaDB. Sourced by rig.

# Each daemon is a session of its own; run/NAME holds its process id and start time, so that no other process that has
# got the same id is ever killed.
starttime() { local s; s=$(cat "/proc/$1/stat" 2>/dev/null) || return 1; s=${s##*) }; set -- $s; echo "${20}"; }
alive() {
  local pid st; [ -f "$STATE/run/$1" ] || return 1
  read -r pid st <"$STATE/run/$1" || return 1
  [ "$(starttime "$pid" 2>/dev/null)" = "$st" ] || return 1
  case $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) in Z*) return 1 ;; esac
}
spawn() { # NAME CMD...
  local name=$1; shift
  alive "$name" && return 0
  setsid "$@" </dev/null >>"$STATE/log/$name.log" 2>&1 9>&- &
  local pid=$! st; st=$(starttime $pid) || die "$name died at once; see $STATE/log/$name.log"
  echo "$pid $st" >"$STATE/run/$name"
  disown "$pid" 2>/dev/null
}
signal_one() { # SIGNAL NAME
  local pid st p
  alive "$2" || die "$2 does not run"
  read -r pid st <"$STATE/run/$2"
  for p in $(ps -o pid= -s "$pid"); do kill "-$1" "$p" 2>/dev/null; done
}
stop_one() { # NAME [tenths of a second]: TERM, wait, then KILL whatever is left of its session
  local name=$1 pid st i
  alive "$name" || { rm -f "$STATE/run/$name"; return 0; }
  read -r pid st <"$STATE/run/$name"
  kill -TERM "$pid" 2>/dev/null
  for i in $(seq "${2:-20}"); do alive "$name" || break; sleep 0.1; done
  for i in $(ps -o pid= -s "$pid" 2>/dev/null); do kill -KILL "$i" 2>/dev/null; done
  rm -f "$STATE/run/$name"
}
port_free() { ! (exec 3<>"/dev/tcp/$HOST/$1") 2>/dev/null; }
# The first of eight ports in a row that are free, below those that the kernel gives to outgoing connections.
free_ports() {
  local base i
  while :; do
    base=$(( 24000 + 8 * (RANDOM % 1000) ))
    for i in 0 1 2 3 4 5 6 7; do port_free $((base + i)) || continue 2; done
    echo $base; return
  done
}
need_port() { alive "$1" || port_free "$2" || die "port $2 is taken by another process; set RIG_PORT"; } # NAME PORT
wait_url() { # URL [NAME] [seconds]
  local end=$(( $(ms) + ${3:-60} * 1000 )) code
  while :; do
    code=$(curl -s -o /dev/null -m 5 -w '%{http_code}' "$1" 2>/dev/null)
    case $code in 2*|3*|401) return 0 ;; esac
    [ -z "${2:-}" ] || alive "$2" || die "$2 died; see $STATE/log/$2.log"
    [ "$(ms)" -lt "$end" ] || die "no answer from $1 (last code $code); see $STATE/log/"
    sleep 0.1
  done
}
# One thread a process: Keystone publishes its policy enforcer before it has registered the rules, so that two concurrent
# first requests in one process can end in a false 403.
uwsgi_args() { # PORT WSGI-FILE NAME
  printf '%s\n' uwsgi --plugin python3 --http-socket "$HOST:$1" --wsgi-file "$2" --master \
    --need-app --die-on-term --enable-threads --processes "$RIG_WSGI_PROCESSES" --threads 1 \
    --buffer-size 65535 --listen 100 --thunder-lock --add-header "Connection: close" \
    --procname-prefix "rig-$3 " --auto-procname
}

# ---------------------------------------------------------------- MariaDB
dburl() { echo "mysql+pymysql://root@localhost/$1?unix_socket=$SOCK&charset=utf8"; }
sql() { mariadb --no-defaults -N -B -uroot -S "$SOCK" "$@"; }
start_db() {
  local i
  if ! done_mark db-init; then
    rm -rf "$STATE/db"
    mariadb-install-db --no-defaults --datadir="$STATE/db" --auth-root-authentication-method=normal \
      --skip-test-db --user="$(id -un)" --innodb-log-file-size=16M --innodb-flush-method=nosync \
      --debug-no-sync --sync-frm=0 >"$STATE/log/db-init.log" 2>&1 \
      || die "mariadb-install-db failed; see $STATE/log/db-init.log"
    mark db-init
  fi
  if ! alive db; then
    rm -f "$SOCK"
    cat >"$STATE/etc/my.cnf" <<E
[mysqld]
datadir=$STATE/db
socket=$SOCK
pid-file=$STATE/db.pid
user=$(id -un)
skip-networking
skip-log-bin
skip-name-resolve
performance_schema=OFF
max_connections=400
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_flush_log_at_trx_commit=0
innodb_doublewrite=0
innodb_use_native_aio=0
innodb_flush_method=nosync
debug_no_sync=1
sync_frm=0
character-set-server=utf8mb3
collation-server=utf8mb3_general_ci
E
    spawn db mariadbd --defaults-file="$STATE/etc/my.cnf"
  fi
  for i in $(seq 300); do sql -e 'select 1' >/dev/null 2>&1 && { lap mariadb; return 0; }; alive db || break; sleep 0.1; done
  die "MariaDB did not start; see $STATE/log/db.log"
}

# Dumps of freshly filled databases, so that the next empty state skips the schema's making. They are keyed by the rig's
# own files and the versions of the packages; no dump depends on a port.
cache_file() { # STAGE
  [ "$RIG_CACHE" != none ] || return 1
  [ -n "${CACHE_KEY:-}" ] || CACHE_KEY=$({ cat "$HERE"/*; dpkg-query -W -f '${Package}${Version}' python3-keystone \
    python3-placement python3-glance python3-nova mariadb-server-core 2>/dev/null; } | sha256sum | cut -c1-24)
  CACHE_FILE=$RIG_CACHE/$1-$CACHE_KEY.sql
}
cache_load() { cache_file "$1" && [ -s "$CACHE_FILE" ] && sql <"$CACHE_FILE" >/dev/null 2>&1; }
cache_save() { # STAGE DATABASE...
  cache_file "$1" || return 0
  mkdir -p "$RIG_CACHE" 2>/dev/null || return 0
  if mariadb-dump --no-defaults -uroot -S "$SOCK" --databases "${@:2}" >"$CACHE_FILE.$$" 2>/dev/null; then
    mv "$CACHE_FILE.$$" "$CACHE_FILE"
  else rm -f "$CACHE_FILE.$$"; fi
}
