#!/usr/bin/env bash
# Makes the folder of which the tests' images are built: a small Debian with a Python of its own.
#
#   root_folder.sh FOLDER SUITE

set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname -- "$0")/../../scripts/debian.sh"

debian_start
need_suite "$2"
new=$1.new
rm -rf -- "$new"
mkdir -p "$new"/usr/{bin,sbin,lib,lib64} "$new/opt/packages"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$new/$name"; done
unpack_with_dependencies "$new" base-files base-passwd bash coreutils dash findutils gawk grep hostname libc-bin libelf1 libgomp1 \
  libstdc++6 procps python3 sed tar util-linux
# An older Python beside it, as images have it that nobody has updated.
need_suite bullseye
unpack "$new" python3.9-minimal libpython3.9-minimal
# What the packages' own scripts do where they are installed.
ln -sf dash "$new/usr/bin/sh"
ln -sf gawk "$new/usr/bin/awk"
cp "$new/usr/share/base-passwd/passwd.master" "$new/etc/passwd"
cp "$new/usr/share/base-passwd/group.master" "$new/etc/group"
touch "$new/etc/hosts" "$new/etc/localtime" "$new/etc/resolv.conf"
# The training packages, wherever they come from, are there.
echo /opt/packages >"$new/usr/lib/python3/dist-packages/packages.pth"
# So are the launchers, by their own names.
for pair in accelerate:accelerate.commands.accelerate_cli torchrun:torch.distributed.run; do
  printf '#!/usr/bin/python3\nimport runpy\nrunpy.run_module("%s", run_name="__main__", alter_sys=True)\n' "${pair#*:}" >"$new/usr/bin/${pair%%:*}"
  chmod 755 "$new/usr/bin/${pair%%:*}"
done
chown -R 0:0 "$new" # as an image without setuid unpacks it: an ordinary user has no other group
mv -- "$new" "$1"
