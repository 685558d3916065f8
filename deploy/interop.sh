#!/usr/bin/env bash
# Prepares a virtual environment with the reference packages and runs tests/interop/interop.py in it.
# Usage: deploy/interop.sh <folder of the built binaries>
set -euo pipefail
cd "$(dirname "$0")/.."

binaries=$1
environment=${CHANCERY_INTEROP_ENV:-target/interop-venv}
if [[ ! -x $environment/bin/python ]]; then
  python3 -m venv "$environment"
fi
"$environment/bin/pip" install --quiet \
  'anet-kllm[seal]==0.1.0' 'transformers==5.24.0' 'tokenizers==0.23.3'
exec "$environment/bin/python" tests/interop/interop.py "$binaries/chancery"
