#!/usr/bin/env bash
# Makes a Debian into which packages can be installed, in the place of NVIDIA's base image, with this machine's pip settings.
#
#   base_folder.sh FOLDER SUITE

set -euo pipefail
# shellcheck source=/dev/null
. "$(dirname -- "$0")/../../scripts/debian.sh"

debian_start
need_suite "$2"
debootstrap "$1" "$2"
# A build in a user namespace may not make devices; Apptainer brings its own.
rm -rf -- "${1:?}/dev"
mkdir "$1/dev"
cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
