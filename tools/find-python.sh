#!/bin/sh
# Print a Python 3.11 or newer that can create virtual environments. $PYTHON, if set, is the only candidate.
set -eu

suits() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    if suits "$candidate"; then
        "$candidate" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done

for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        echo "setup: $(command -v "$candidate") is new enough but lacks venv or ensurepip;" \
            "on Debian and Ubuntu: apt install python3-venv; or set PYTHON=/path/to/python3" >&2
        exit 1
    fi
done
echo "setup: Python 3.11 or newer is needed and none was found${PYTHON:+ at PYTHON=$PYTHON};" \
    "install it, or set PYTHON=/path/to/python3" >&2
exit 1
