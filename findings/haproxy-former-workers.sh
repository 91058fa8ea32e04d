#!/usr/bin/env bash
# HAProxy's master ends the workers that still finish their connections when its current worker is killed, also with no-exit-on-failure.
#
# After a reload a former worker finishes its connections. Then the current worker is killed, as the kernel does when memory is short. The configuration
# has `master-worker no-exit-on-failure`, and the master is started by that line, or by -W.
#
# Expected: the former worker goes on, and so does its connection: with no-exit-on-failure the master ends no other worker.
# Seen: "exit-on-failure: killing every processes with SIGTERM": the former worker and its connection end, either way. The master has started itself
#   anew to wait for its workers, and knows nothing of its configuration then.
# Source: HAProxy 2.6.12, src/mworker.c, mworker_catch_sigchld; configuration.txt, master-worker
# Date: 2026-11-30
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian haproxy haproxy 2.6.12-1+deb12u4
cat >"$dir/haproxy.cfg" <<'END'
global
  master-worker no-exit-on-failure
  nbthread 1
  stats socket 127.0.0.1:18081
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen held
  bind 127.0.0.1:18080
  server self 127.0.0.1:18081
END

# held [ARGUMENT]: whether a connection through a former worker goes on after the current worker was killed.
held() {
  argument=${1:-} inside <<'END'
haproxy $argument -f haproxy.cfg >log 2>&1 &
master=$!
trap 'kill $master 2>/dev/null || true; wait' EXIT
workers() { pgrep -P $master || true; }
await() { for ((i = 0; i < 200; i++)); do if "$@"; then return; fi; sleep 0.05; done; cat log >&2; return 1; }
dials() { (echo >/dev/tcp/127.0.0.1/18080) 2>/dev/null; }
forked() { (($(grep -c forked log) == $1)); }
await dials
exec 3<>/dev/tcp/127.0.0.1/18080
printf 'prompt\n' >&3
sleep 0.2
former=$(workers)
kill -USR2 $master
await forked 2
sleep 1
current=$(workers | grep -vx "$former")
kill -0 "$former" "$current"
kill -KILL "$current"
sleep 1
if kill -0 "$former" 2>/dev/null; then echo "the former worker goes on"; else echo "the former worker has ended"; fi
END
}

expect "started by -W" "$(held -W)" "the former worker has ended"
expect "started by the configuration" "$(held)" "the former worker has ended"
