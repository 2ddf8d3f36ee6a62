#!/bin/sh
# Regenerate requirements/*.lock: every version pinned, every file hashed, for all platforms and Python 3.11 or newer.
set -eu
cd "$(dirname "$0")/.."

if command -v uv >/dev/null 2>&1; then
    uv=uv
elif [ -x .venv/bin/uv ]; then
    uv=.venv/bin/uv
else
    echo "lock: uv is needed to write the lock files: python3 -m pip install uv" >&2
    exit 1
fi

compile() {
    output=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-header --no-annotate "$@" --output-file "$output"
    echo "lock: $output pins $(grep -c '==' "$output") versions" >&2
}

compile requirements/build.lock ${UPGRADE:+--upgrade} --allow-unsafe requirements/build.in
compile requirements/all.lock ${UPGRADE:+--upgrade} --all-extras --constraints requirements/build.lock pyproject.toml
compile requirements/java.lock ${UPGRADE:+--upgrade} requirements/java.in
compile requirements/kit.lock ${UPGRADE:+--upgrade} requirements/kit.in
compile requirements/site.lock ${UPGRADE:+--upgrade} --constraints requirements/all.lock pyproject.toml requirements/site.in
