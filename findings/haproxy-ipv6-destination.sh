#!/usr/bin/env bash
# HAProxy knows where a redirected IPv4 connection was going, and takes its own listener for the destination of an IPv6 one.
#
# `dst` of a connection behind REDIRECT is the address that the client dialled, as a transparent proxy needs it. One listener is bound for each family.
#
# Expected: the client's destination, in both families.
# Seen: for IPv4 HAProxy asks the kernel (SO_ORIGINAL_DST) and has the client's destination. For IPv6 it does not ask (IP6T_SO_ORIGINAL_DST), and has the
#   address and the port that the connection was redirected to. Nothing is logged of it.
# Source: HAProxy 2.6.12, src/sock_inet.c, sock_inet_get_dst; configuration.txt, dst, makes no difference between the families
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian haproxy haproxy 2.6.12-1+deb12u4
debian nft nftables 1.0.6-2+deb12u2
cat >"$dir/haproxy.cfg" <<'END'
defaults
  mode tcp
  timeout connect 1s
  timeout client 2s
  timeout server 2s
  log stdout format raw local0
frontend redirected
  bind 0.0.0.0:15001
  bind [::]:15001 v6only
  log-format "%[dst] %[dst_port]"
  tcp-request content reject
END

seen=$(inside <<'END'
ip addr add fd00::1/64 dev lo
ip route add 10.7.7.0/24 dev lo
ip route add fd00:7::/64 dev lo
nft 'add table inet t; add chain inet t c { type nat hook output priority -100; }; add rule inet t c tcp dport 80 redirect to :15001'
haproxy -db -f haproxy.cfg >log 2>&1 &
haproxy=$!
trap 'kill $haproxy' EXIT
await() { for ((i = 0; i < 200; i++)); do if grep -q "$1" log; then return; fi; sleep 0.05; done; cat log >&2; }
for ((i = 0; i < 200; i++)); do if (echo >/dev/tcp/127.0.0.1/15001) 2>/dev/null; then break; fi; sleep 0.05; done
await '127.0.0.1 15001'
dial() { (echo >/dev/tcp/$1/80) 2>/dev/null || true; }
dial 10.7.7.7
await '10.7.7.7'
dial fd00:7::7
await ':'
tail -n 2 log
END
)
{ read -r four; read -r six; } <<<"$seen"
expect "destination of a connection to 10.7.7.7:80" "$four" "10.7.7.7 80"
expect "destination of a connection to [fd00:7::7]:80" "$six" "::1 15001"
