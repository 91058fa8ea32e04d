#!/usr/bin/env bash
# Cuts the power of the one-node cluster POWERCUT_CUTS times (20), each while the cluster does something else, and wants the agent's promises to
# hold after each boot: see test/e2e/powercut_test.go. POWERCUT_SEED does again what another run did, which printed it. E2E_KEEP=1 uses the
# cluster that is up, or leaves the new one up.
set -euo pipefail

cd "$(dirname "$0")/.."
if [[ ! ${POWERCUT_CUTS:-20} =~ ^[1-9][0-9]*$ ]]; then
  echo "powercut: POWERCUT_CUTS is \"$POWERCUT_CUTS\": want how many, at least 1" >&2
  exit 2
fi
export E2E_POWERCUT_CUTS=${POWERCUT_CUTS:-20} E2E_POWERCUT_SEED=${POWERCUT_SEED:-} E2E_BACKENDS=none E2E_HOOKS=powercut
exec hack/e2e.sh -test.run '^TestPowerCut$' -test.timeout 1h
