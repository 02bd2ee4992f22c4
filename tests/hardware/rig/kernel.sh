# shellcheck shell=bash
# kernel.sh installs what a machine of the rig is made of: packages, and in the cache a kernel of Debian with its modules and
# those of ./kmod. The script "rig" sources it.
. "$here/../../debian.sh"

packages=(qemu-system-x86 busybox-static kmod cpio gcc make binutils xz-utils e2fsprogs strace)

# content identifies what the kernel and its modules are made from: if one of these files changes, there is no kernel of that
# name yet, and install makes one.
content() { cat "$here"/kernel.sh "$here"/kmod/* | sha256sum | cut -c1-12; }

missing() {
  local what
  what=$(lacking "${packages[@]}")
  [[ -e $cache/$(content)/kernel ]] || what+="${what:+$'\n'}a kernel in $cache"
  [[ -z $what ]] || { echo "$what"; return 1; }
}

install() {
  # If everything is there, this user may have no right to write into the cache, and needs none.
  missing >/dev/null && return
  mkdir -p "$cache"
  # Another install would build in the same place.
  exec 9>>"$cache/lock"
  flock 9

  local need new=$cache/unfinished old
  readarray -t need < <(lacking "${packages[@]}")
  if ((${#need[@]})); then install_packages "${need[@]}" 9>&-; fi
  missing >/dev/null && return

  # The packages of the kernel are unpacked and not installed: this machine keeps its own. What is there is used until the new
  # one is complete.
  rm -rf "$new"
  mkdir -p "$new"
  unpack "$new"
  build_modules "$new"
  for old in "$cache"/*/kernel; do [[ $old == "$new/kernel" || ! -e $old ]] || rm -rf "${old%/kernel}"; done
  rm -rf "$cache/$(content)" # without a kernel in it, if it is there
  mv "$new" "$cache/$(content)"
}

# download fetches the packages of the kernel of which this machine's lists tell.
download() { # DIR
  local package
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends:/ {print $2; exit}')
  version=${package#linux-image-} series=$(cut -d. -f1,2 <<<"${package#linux-image-}")
  rm -f "$1"/* # of another kernel, where a download did not come to its end
  [[ -n $package ]] && cd "$1" &&
    apt-get -o Acquire::Retries=3 -o APT::Sandbox::User=root download -q "$package" "linux-headers-$version" \
      "linux-headers-${version%-amd64}-common" "linux-kbuild-$series" "linux-source-$series" >&2 &&
    echo "$version" >version
}

unpack() { # DIR
  local version series
  mkdir -p "$1"/{packages,root,source}
  # The lists may be missing, or be older than the kernel that the mirror has now.
  (download "$1/packages") || { apt-get -qq update >&2 && (download "$1/packages"); } || die "apt-get has no kernel: it comes from Debian 12"
  version=$(cat "$1/packages/version") series=$(cut -d. -f1,2 "$1/packages/version")
  local p
  for p in "$1"/packages/linux-{image,headers,kbuild}-*.deb; do dpkg-deb -x "$p" "$1/root"; done
  dpkg-deb --fsys-tarfile "$1"/packages/linux-source-*.deb |
    tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
    tar -xJ -C "$1/source" --strip-components=1 \
      "linux-source-$series/drivers/fpga" "linux-source-$series/samples/vfio-mdev"
  rm -rf "$1/packages"
  echo "$version" >"$1/kernel"
}

# build_modules builds the modules of ./kmod, and those that Debian's kernel leaves out.
build_modules() { # DIR
  local version build=$1/modules headers m
  version=$(cat "$1/kernel") headers=$1/root/usr/src/linux-headers-$version
  mkdir -p "$build"
  cp "$here"/kmod/* "$1"/source/drivers/fpga/{fpga-*.c,dfl*.[ch]} "$1/source/samples/vfio-mdev/mtty.c" "$build/"
  # The port of fakebus is a thread, and on a busy machine it answers a reset later than the millisecond of real hardware.
  sed -i 's/^#define RST_POLL_TIMEOUT.*/#define RST_POLL_TIMEOUT 1000000/' "$build/dfl-afu-main.c"
  sed -i "s,/usr/src/,$1/root/usr/src/," "$headers/Makefile"

  make -s -j"$(nproc)" -C "$headers" M="$build" modules >"$1/build.log" 2>&1 ||
    { tail -30 "$1/build.log" >&2; die "the modules did not build"; }
  mkdir -p "$1/root/lib/modules/$version/extra"
  for m in "$build"/*.ko; do strip -g -o "$1/root/lib/modules/$version/extra/${m##*/}" "$m"; done
  depmod -b "$1/root" "$version"
  rm -rf "$build" "$1/source" "$1/root/usr/src"
}
