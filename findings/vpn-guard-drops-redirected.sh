#!/usr/bin/env bash
# The rule by which wg-quick guards the address of a tunnel drops the answers to the host's own connections once they are redirected to loopback.
#
# wg-quick adds `! -i wg0 -d ADDRESS -m addrtype ! --src-type LOCAL -j DROP` to the chain PREROUTING of the table raw: only the tunnel may bring packets
# for its address, but for those of the host itself. A transparent proxy on the host redirects outgoing connections to a port on loopback.
#
# Expected: a redirected connection stays within the host, so the rule lets its packets pass, by their source, which is local.
# Seen: connect() times out. The proxy's answer has its source translated back on its way out, before it comes in by lo: there it comes from the outside
#   address that the client has dialled, which is not local, and not by the tunnel.
# Source: Linux 6.18, net/netfilter/nf_nat_proto.c, nf_nat_ipv4_out, before ip_finish_output leads to lo; wireguard-tools 1.0.20210914, src/wg-quick/linux.bash
# Date: 2026-11-29
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
debian iptables-nft iptables 1.8.9-2
program listen <<'END'
// Command listen accepts connections at an address and greets them.
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
		fmt.Fprintln(conn, "redirected")
		conn.Close()
	}
}
END
echo "Linux $(uname -r)"

# eth0 stands for the tunnel: the rule knows it by its name alone.
seen=$(inside <<'END'
peer
./listen 127.0.0.1:15001 & listener=$!
trap 'kill $listener $peer' EXIT
until (echo >/dev/tcp/127.0.0.1/15001) 2>/dev/null; do sleep 0.05; done
iptables-nft -t nat -A OUTPUT -d 10.9.0.1 -p tcp --dport 80 -j REDIRECT --to-ports 15001
ask() { timeout 2 bash -c 'exec 3<>/dev/tcp/10.9.0.1/80 && cat <&3' || echo "no answer"; }
ask
iptables-nft -t raw -I PREROUTING ! -i eth0 -d 10.9.0.2 -m addrtype ! --src-type LOCAL -j DROP
ask
iptables-nft -t raw -L PREROUTING -v -n -x | awk '$3 == "DROP" { print ($1 > 0) ? "dropped" : "passed" }'
END
)
{ read -r before; read -r after; read -r rule; } <<<"$seen"
expect "a redirected connection" "$before" "redirected"
expect "a redirected connection, with the guard of a tunnel" "$after" "no answer"
expect "packets that met the guard" "$rule" "dropped"
