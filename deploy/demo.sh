#!/usr/bin/env bash
# The whole path on loopback, in a folder that is removed at the end.
# Usage: deploy/demo.sh <folder of the built binaries>
set -euo pipefail
cd "$(dirname "$0")/.."

binaries=$(realpath "$1")
# Postgres may run as another user, which must be able to reach its folder.
work=$(mktemp -d /tmp/chancery-demo-XXXXXX)
chmod 755 "$work"
chancery() { "$binaries/chancery" --state "$work/state" "$@"; }
clean_up() {
  chancery down >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
refused() {
  if "$@"; then
    echo "demo: this should have been refused" >&2
    exit 1
  fi
}

prompt='In the beginning God created'
original=$(sed -n 's/^ *"greedy_text": "\(.*\)",\{0,1\}$/\1/p' tests/data/tiny-qwen3.reference.json | head -n 1)

step "1. Five services over mutual TLS, with a Postgres of their own"
chancery up --detach --binaries "$binaries" --source-root tests/data

step "2. A model key, kept by the key service"
chancery keys create demo

step "3. Seal tiny-qwen3 under it: a sealed checkpoint and a sealed container, in storage"
chancery seal submit tiny-qwen3 --key demo --model tiny --transform perm --lock v2 --watch
chancery artifacts list

step "4. Unlock it on the inference node and write text"
chancery model load tiny
printf 'original: %s%b' "$prompt" "$original"
echo -n "sealed:   $prompt"
chancery run tiny "$prompt" --max-tokens 48 --ignore-stop

step "5. A wrong key is refused"
"$binaries/chancery" keys generate -o "$work/one.key" >/dev/null
"$binaries/chancery" keys generate -o "$work/two.key" >/dev/null
"$binaries/chancery" checkpoint seal tests/data/tiny-qwen3 -o "$work/sealed" --key "$work/one.key" \
  --transform perm --lock v2 >/dev/null
refused "$binaries/chancery" checkpoint unlock "$work/sealed" -o "$work/plain" --key "$work/two.key"

step "6. After revocation the node is refused"
chancery keys disable demo --reason "shown in the demo"
chancery model unload tiny
refused chancery model load tiny

step "7. The receipts, and their verification without any service"
chancery receipts list
chancery receipts export -o "$work/receipts"
chancery down
chancery receipts verify "$work/receipts"

step "Done: everything is stopped and $work is removed"
