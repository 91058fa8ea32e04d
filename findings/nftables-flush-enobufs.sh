#!/usr/bin/env bash
# github.com/google/nftables v0.3.0 says that a large transaction failed which the kernel has committed.
#
# Flush sends all changes as one transaction, which the kernel takes whole or not at all, and returns its answer.
#
# Expected: an error of Flush means that nothing was changed, and the change may be tried again.
# Seen: 250 rules in one transaction, with the usual socket buffers of 212992 bytes: Flush returns "no buffer space available", and all 250 rules are in
#   force. Tried again, there are 500. The kernel sends an answer for every message, and they do not fit into the buffer before the library begins to read.
# Source: github.com/google/nftables v0.3.0, conn.go, Flush; later, untagged commits read answers in another way, and set larger buffers
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program flush github.com/google/nftables@v0.3.0 github.com/mdlayher/netlink@v1.7.3-0.20250113171957-fbb4dce95f42 <<'END'
// Command flush adds rules in one transaction, and says what Flush returns and how many rules there are then.
package main

import (
	"fmt"
	"log"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// usual is half of net.core.rmem_default as Linux has it: the kernel doubles it.
const usual = 212992 / 2

func main() {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetReadBuffer(usual) }))
	check(err)
	add(conn, "few", 50)
	add(conn, "many", 250)
	add(conn, "many", 250)
}

func add(conn *nftables.Conn, chain string, n int) {
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "t"})
	c := conn.AddChain(&nftables.Chain{Name: chain, Table: table})
	for range n {
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: []expr.Any{&expr.Counter{}}})
	}
	failed := conn.Flush()
	rules, err := conn.GetRules(table, c)
	check(err)
	fmt.Printf("%d added, %d there, error: %v\n", n, len(rules), failed)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
echo "Linux $(uname -r)"

seen=$(inside <<<./flush)
{ read -r few; read -r many; read -r again; } <<<"$seen"
expect "a small transaction" "$few" "50 added, 50 there, error: <nil>"
expect "a large one" "$many" "250 added, 250 there, error: netlink receive: recvmsg: no buffer space available"
expect "the large one, tried again" "$again" "250 added, 500 there, error: netlink receive: recvmsg: no buffer space available"
