#!/usr/bin/env bash
# Makes chaos in the one-node cluster for CHAOS_DURATION (10m), calms left out, and wants the agent's promises to hold: see test/e2e/chaos_test.go.
# CHAOS_SEED does again what another run did, which printed it. E2E_KEEP=1 uses the cluster that is up, or leaves the new one up.
set -euo pipefail

cd "$(dirname "$0")/.."
if [[ ! ${CHAOS_DURATION:-10m} =~ ^[0-9.hms]*[1-9][0-9.hms]*$ ]]; then
  echo "chaos: CHAOS_DURATION is \"$CHAOS_DURATION\": want how long, such as 10m" >&2
  exit 2
fi
export E2E_CHAOS=${CHAOS_DURATION:-10m} E2E_CHAOS_SEED=${CHAOS_SEED:-} E2E_BACKENDS=none E2E_HOOKS=required
# Calms come on top, and a debugger's patience.
exec hack/e2e.sh -test.run '^TestChaos$' -test.timeout 1h
