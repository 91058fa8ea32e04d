#!/usr/bin/env bash
# Runs `go build ARGUMENTS`, and says how many packages it has compiled: a first build takes minutes.
set -euo pipefail

began=$SECONDS
compiled=0
go build -v "$@" 2>&1 | {
  while IFS= read -r line; do
    if [[ $line == *[\ :#]* ]]; then
      printf '%s\n' "$line" >&2
    elif ((++compiled % 100 == 0)); then
      printf '%d packages compiled (%ds)\n' "$compiled" $((SECONDS - began))
    fi
  done
}
