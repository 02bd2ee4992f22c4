# The Debian packages of the rig. Sourced by rig.
PACKAGES="python3-keystone python3-placement python3-glance python3-nova python3-fixtures
uwsgi-core uwsgi-plugin-python3 mariadb-server-core mariadb-client-core mariadb-client rabbitmq-server curl procps
python3-openstackclient python3-cyborgclient python3-openstacksdk python3-osc-placement"

missing_packages() {
  local p
  for p in $PACKAGES; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
  done
}
cmd_install() {
  local missing archives log try policy=/usr/sbin/policy-rc.d undo=:
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release && [ "$(id -u)" = 0 ] \
    || die "OpenStack's packages are installed by root on Debian 12; elsewhere please install: $missing"
  # No daemon starts from a maintainer's script.
  if ! grep -qs 'exit 101' $policy; then
    if [ -e $policy ]; then mv $policy $policy.rig-saved; undo="mv $policy.rig-saved $policy"; else undo="rm -f $policy"; fi
    printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy
  fi
  # An archive directory of its own: images of containers often carry a hook by which any other run of apt that ends
  # meanwhile deletes the packages of this one.
  archives=$(mktemp -d /var/tmp/rig-apt.XXXXXX); mkdir "$archives/partial"; log=$archives/log
  trap "rm -rf '$archives'; $undo" EXIT
  local apt="apt-get -o DPkg::Lock::Timeout=900 -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o APT::Sandbox::User=root -o Dir::Cache::archives=$archives"
  export DEBIAN_FRONTEND=noninteractive
  for try in 1 2 3; do
    # shellcheck disable=SC2086
    $apt -y -qq --no-install-recommends install $missing >"$log" 2>&1 && { say "installed: $missing"; return 0; }
    [ "$try" = 1 ] || tail -n 5 "$log" >&2
    $apt -qq update >/dev/null 2>&1
    dpkg --configure -a >/dev/null 2>&1
  done
  die "apt-get did not install $missing"
}
