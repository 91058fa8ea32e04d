#!/usr/bin/env bash
# How everything is compiled that is neither released nor measured: as the cluster's programs are (Gcflags of the kit), so that tests, linters, tools
# and the cluster share what they compile. Without inlining and debugging information the compiler takes a third less time.
#
#   source hack/quick.sh         for the rest of a script
#   hack/quick.sh COMMAND...     for one command
#
# What the caller has in GOFLAGS stays.
if [[ ${GOFLAGS:-} != *"-gcflags=all=-l -dwarf=false"* ]]; then
  GOFLAGS="$(go env GOFLAGS 2>/dev/null) -trimpath -tags=grpcnotrace '-gcflags=all=-l -dwarf=false'"
fi
export GOFLAGS CGO_ENABLED=0
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then exec "$@"; fi
