#!/usr/bin/env bash
# HAProxy's do-resolve asks the name server anew for each request, also within the time of `hold valid`.
#
# A frontend looks up the name of each request by do-resolve. The resolvers keep valid answers for 30 s. Three requests come within a second.
#
# Expected: one question: the manual says that `hold valid` is for do-resolve, the period for which a valid response is kept before another question.
# Seen: as many questions as requests: an answer is kept while a server of the configuration, or another request at this moment, wants it.
# Source: HAProxy 2.6.12, src/resolvers.c: _resolv_unlink_resolution releases a resolution without requesters; doc/configuration.txt, "hold valid"
# Date: 2026-11-30
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian haproxy haproxy 2.6.12-1+deb12u4
debian dnsmasq dnsmasq-base 2.90-4~deb12u2

cat >"$dir/haproxy.cfg" <<'END'
resolvers here
  nameserver one 127.0.0.1:5353
  hold valid 30s
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend asks
  bind 127.0.0.1:18080
  http-request do-resolve(txn.ip,here,ipv4) str(service.example)
  http-request return status 200 content-type text/plain lf-string "%[var(txn.ip)]\n"
END

# asked N: how often the name server is asked while N requests are answered one after the other.
asked() {
  requests=$1 inside <<'END'
dnsmasq --keep-in-foreground --no-resolv --no-hosts --port=5353 --listen-address=127.0.0.1 --bind-interfaces --user=root --pid-file= --log-queries \
  --log-facility=- --address=/service.example/192.0.2.1 >log 2>&1 &
dns=$!
haproxy -db -f haproxy.cfg >proxy.log 2>&1 &
proxy=$!
trap 'kill $dns $proxy 2>/dev/null || true; wait' EXIT
ask() {
  exec 3<>/dev/tcp/127.0.0.1/18080
  printf 'GET / HTTP/1.0\r\n\r\n' >&3
  tail -n 1 <&3
  exec 3>&-
}
for ((i = 0; i < 100; i++)); do if (echo >/dev/tcp/127.0.0.1/18080) 2>/dev/null; then break; fi; sleep 0.05; done
for ((i = 0; i < requests; i++)); do ask >>answers; done
grep -c 192.0.2.1 answers | sed 's/$/ answered, /' | tr -d '\n'
grep -c 'query\[A\] service.example' log | sed 's/$/ questions/'
rm -f answers log
END
}

expect "one request" "$(asked 1)" "1 answered, 1 questions"
expect "three requests within the time of hold valid" "$(asked 3)" "3 answered, 3 questions"
