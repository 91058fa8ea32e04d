#!/usr/bin/env bash
# A second address of narrower scope, added later, takes over what `redirect` sends to an interface.
#
# REDIRECT sends an incoming connection to the address of the interface that it came in by. A proxy listens there, on the pod's own address.
#
# Expected: the interface's first address, which stays what it is when others are added.
# Seen: addresses are kept by scope, and the narrower one comes first, whenever it was added. After `ip addr add 169.254.7.7/32 scope link` redirected
#   connections go to 169.254.7.7, although clients dial 10.9.0.2, and are refused.
# Source: Linux 6.18, net/netfilter/nf_nat_redirect.c, nf_nat_redirect_ipv4, with net/ipv4/devinet.c, __inet_insert_ifa; iptables-extensions(8), REDIRECT,
#   knows one primary address
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
debian nft nftables 1.0.6-2+deb12u2
program listen <<'END'
// Command listen accepts connections at an address and says so.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
)

func main() {
	l, err := net.Listen("tcp4", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(conn, "redirected to", conn.LocalAddr())
		conn.Close()
	}
}
END
echo "Linux $(uname -r)"

seen=$(inside <<'END'
peer
nft 'add table ip t; add chain ip t c { type nat hook prerouting priority -100; }; add rule ip t c tcp dport 80 redirect to :15006'
./listen 10.9.0.2:15006 & listener=$!
trap 'kill $listener $peer' EXIT
until (echo >/dev/tcp/10.9.0.2/15006) 2>/dev/null; do sleep 0.05; done
ask() { (there bash -c 'exec 3<>/dev/tcp/10.9.0.2/80 && cat <&3' 2>&1 || true) | grep -o 'redirected to .*\|Connection refused' | sort -u; }
ask
ip addr add 169.254.7.7/32 scope link dev eth0
ip -4 -oneline addr show dev eth0 | awk '{ print $4 }' | xargs
ask
END
)
{ read -r before; read -r addresses; read -r after; } <<<"$seen"
expect "a connection to 10.9.0.2:80" "$before" "redirected to 10.9.0.2:15006"
expect "addresses of eth0, with the new one" "$addresses" "169.254.7.7/32 10.9.0.2/24"
expect "a connection to 10.9.0.2:80, with the new one" "$after" "Connection refused"
