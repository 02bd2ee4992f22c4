# The Debian packages of the rig. Sourced by rig.
. "$HERE/../../debian.sh"

PACKAGES="python3-keystone python3-placement python3-glance python3-nova python3-fixtures
uwsgi-core uwsgi-plugin-python3 mariadb-server-core mariadb-client-core mariadb-client rabbitmq-server curl procps
python3-openstackclient python3-cyborgclient python3-openstacksdk python3-osc-placement"

missing_packages() {
  # shellcheck disable=SC2086 # words
  lacking $PACKAGES
}
cmd_install() {
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086 # words
  install_packages $missing || exit 1
  say "installed:" $missing
}
