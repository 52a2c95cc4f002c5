#!/usr/bin/env bash
# Pin what the image installs, with hashes: run it in the repository's root after a change of pyproject.toml, and to take
# newer versions. It needs uv (pip install uv).
set -euo pipefail
lock() {
  uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header "$@"
}
lock --extra server pyproject.toml --output-file deploy/requirements.lock
echo hatchling | lock - --output-file deploy/build.lock
