#!/usr/bin/env bash
# Debian's packages, of any of its suites, unpacked into a folder: nothing is installed. The fetch-… scripts source this file.

die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# The mirror that this machine already uses, as it was written there.
debian_mirror() {
  # shellcheck disable=SC2016 # apt-get expands these, not the shell
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" && !found {print $2; found = 1}'
}

# Where nothing can be fetched, says why and ends. What is fetched lies in `work`, which the script's end removes.
debian_start() {
  if [ "$EUID" != 0 ] || ! command -v dpkg-deb >/dev/null; then die "only root on Debian can fetch it"; fi
  work=$(mktemp -d) || exit 1
  trap 'rm -rf -- "$work"' EXIT
  mirror=$(debian_mirror)
  [ -n "$mirror" ] || { apt-get -qq update; mirror=$(debian_mirror); }
  [ -n "$mirror" ] || die "this machine has no Debian mirror"
}

# suite NAME: what follows takes packages of this suite, as if none were installed. 1 if the mirror does not have the suite.
suite() {
  local own=$work/$1
  mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main non-free" >"$own/sources.list"
  : >"$own/status"
  apt_options=(-qq -o Dir::Etc::sourcelist="$own/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$own/lists"
    -o Dir::State::status="$own/status" -o Dir::Cache="$own/cache" -o APT::Sandbox::User=root)
  [ -n "$(find "$own/lists" -name '*_Packages*' -print -quit)" ] || apt-get "${apt_options[@]}" -o APT::Update::Error-Mode=any update 2>"$own/error"
}

need_suite() { suite "$1" || die "the mirror $mirror has no suite $1: $(tail -n 1 "$work/$1/error")"; }

# version PACKAGE: the one that the suite has; nothing if it has none.
version() { apt-cache "${apt_options[@]}" show --no-all-versions "$1" 2>/dev/null | awk '$1 == "Version:" && !found {print $2; found = 1}'; }

# unpack FOLDER PACKAGE…: these and nothing else.
unpack() {
  local folder=$1 packages
  shift
  packages=$(mktemp -d -p "$work")
  (cd -- "$packages" && apt-get "${apt_options[@]}" download "$@") && _unpack_files "$folder" "$packages"/*.deb
}

# unpack_with_dependencies FOLDER PACKAGE…: these and all that they need, the C library included.
unpack_with_dependencies() {
  local folder=$1 archives
  shift
  archives=$(mktemp -d -p "$work")
  mkdir "$archives/partial"
  apt-get "${apt_options[@]}" -o Dir::Cache::archives="$archives" -y --no-install-recommends --download-only install "$@" </dev/null >/dev/null &&
    _unpack_files "$folder" "$archives"/*.deb
}

_unpack_files() {
  local folder=$1 package
  shift
  mkdir -p -- "$folder"
  for package in "$@"; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$folder" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/man' || return
  done
}

# own_libraries ROOT PROGRAM…: these programs of ROOT load the C library and all others from ROOT, not the machine's.
own_libraries() {
  local libraries=$1/usr/lib/x86_64-linux-gnu
  shift
  [ -x "$work/patchelf/usr/bin/patchelf" ] || (suite "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" && unpack "$work/patchelf" patchelf) || return
  "$work/patchelf/usr/bin/patchelf" --force-rpath --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" "$@"
}

# debootstrap FOLDER SUITE: a small Debian, installed into the folder.
debootstrap() {
  local tool=$work/debootstrap
  unpack "$tool" debootstrap || return
  DEBOOTSTRAP_DIR=$tool/usr/share/debootstrap bash "$tool/usr/sbin/debootstrap" --variant=minbase --include=ca-certificates --components=main,contrib,non-free "$2" "$1" "$mirror" >"$tool/log" 2>&1 ||
    die "debootstrap failed: $(tail -n 1 "$tool/log")"
}
