#!/usr/bin/env bash
# Installs what a fresh Debian lacks for building and testing: a C compiler and Postgres.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(build-essential)
if ! command -v initdb >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then
  missing+=(postgresql)
fi
if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  # Debian's package would otherwise start a cluster of its own.
  "${as_root[@]}" mkdir -p /etc/postgresql-common
  [[ -e /etc/postgresql-common/createcluster.conf ]] ||
    echo 'create_main_cluster = false' | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq "${missing[@]}"
fi
if ! command -v cargo >/dev/null; then
  echo "setup: a Rust toolchain is needed (https://rustup.rs, 1.95 or newer)" >&2
  exit 1
fi
