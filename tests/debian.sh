# shellcheck shell=bash
# debian.sh installs packages of Debian 12 for the rigs of the tests, which source it.

# lacking prints those of the packages that are not installed.
lacking() { # PACKAGE...
  local p
  for p; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
  done
}

# install_packages installs packages as root. It is a subshell, so that its trap is its own.
install_packages() ( # PACKAGE...
  set +e
  policy=/usr/sbin/policy-rc.d undo=:
  if ! grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || [ "$(id -u)" != 0 ]; then
    echo "rig: root installs packages on Debian 12; elsewhere please install: $*" >&2
    exit 1
  fi

  # No daemon starts from a maintainer's script.
  if ! grep -qs 'exit 101' $policy; then
    if [ -e $policy ]; then mv $policy $policy.rig-saved; undo="mv $policy.rig-saved $policy"; else undo="rm -f $policy"; fi
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi

  # An archive directory of its own: images of containers often carry a hook by which any other run of apt that ends
  # meanwhile deletes the packages of this one.
  archives=$(mktemp -d /var/tmp/rig-apt.XXXXXX)
  mkdir "$archives/partial"
  # shellcheck disable=SC2064 # with the values that the variables have now
  trap "rm -rf '$archives'; $undo" EXIT
  apt="apt-get -o DPkg::Lock::Timeout=900 -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o APT::Sandbox::User=root -o Dir::Cache::archives=$archives"
  export DEBIAN_FRONTEND=noninteractive
  for try in 1 2 3; do
    $apt -y -qq --no-install-recommends install "$@" >"$archives/log" 2>&1 && exit 0
    [ $try = 1 ] || tail -n 5 "$archives/log" >&2
    $apt -qq update >/dev/null 2>&1
    dpkg --configure -a >/dev/null 2>&1
  done
  echo "rig: apt-get did not install $*" >&2
  exit 1
)
