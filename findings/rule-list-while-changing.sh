#!/usr/bin/env bash
# A list of policy rules that changes meanwhile lacks untouched rules, and is not marked as interrupted.
#
# The kernel lists objects in several messages, and sets NLM_F_DUMP_INTR in a list that does not fit together, so that the reader asks again. Libraries
# turn the flag into an error (ErrDumpInterrupted in Go's netlink), and who gets no error trusts the list.
#
# Expected: a rule is removed or added while a list of others is read: the list is right for the others, or it has the flag, as a list of addresses has.
# Seen: one rule that nobody touched is missing after a removal, and one is there twice after an addition. The flag is not set. A list of addresses,
#   changed in the same way, has it.
# Source: Linux 6.18, net/core/fib_rules.c, dump_rules, which counts places and checks nothing, beside net/ipv4/devinet.c, which calls nl_dump_check_consistent
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
program list <<'END'
// Command list reads a list by netlink, and runs a command when the first message is there.
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
)

const (
	newRule, getRule = 32, 34
	rulePriority     = 6    // FRA_PRIORITY
	interrupted      = 0x10 // NLM_F_DUMP_INTR
)

func main() {
	request, item := uint16(getRule), uint16(newRule)
	if os.Args[1] == "addresses" {
		request, item = syscall.RTM_GETADDR, syscall.RTM_NEWADDR
	}
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, syscall.NETLINK_ROUTE)
	check(err)
	ask := make([]byte, syscall.SizeofNlMsghdr+12)
	binary.NativeEndian.PutUint32(ask, uint32(len(ask)))
	binary.NativeEndian.PutUint16(ask[4:], request)
	binary.NativeEndian.PutUint16(ask[6:], syscall.NLM_F_REQUEST|syscall.NLM_F_DUMP)
	ask[syscall.SizeofNlMsghdr] = syscall.AF_INET
	check(syscall.Sendto(fd, ask, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}))
	var flags uint16
	seen := map[uint32]int{}
	for received := 0; ; received++ {
		buffer := make([]byte, 1<<16)
		n, _, err := syscall.Recvfrom(fd, buffer, 0)
		check(err)
		if received == 0 {
			check(exec.Command("ip", os.Args[2:]...).Run())
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		check(err)
		for _, m := range messages {
			flags |= m.Header.Flags
			switch m.Header.Type {
			case item:
				seen[priority(m.Data)]++
			case syscall.NLMSG_DONE:
				report(seen, flags)
				return
			case syscall.NLMSG_ERROR:
				log.Fatal("the kernel refuses the list")
			}
		}
	}
}

// priority returns a rule's; 0 for an address.
func priority(data []byte) uint32 {
	for at := 12; at+4 <= len(data); {
		size := int(binary.NativeEndian.Uint16(data[at:]))
		if binary.NativeEndian.Uint16(data[at+2:]) == rulePriority && size == 8 {
			return binary.NativeEndian.Uint32(data[at+4:])
		}
		at += (max(size, 4) + 3) &^ 3
	}
	return 0
}

// report speaks of the rules 1000 to 2999.
func report(seen map[uint32]int, flags uint16) {
	missing, twice := 0, 0
	for p := uint32(1000); p < 3000; p++ {
		switch seen[p] {
		case 0:
			missing++
		case 2:
			twice++
		}
	}
	if os.Args[1] == "rules" {
		fmt.Printf("%d missing, %d twice, ", missing, twice)
	}
	fmt.Printf("flag %t\n", flags&interrupted != 0)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
echo "Linux $(uname -r)"

seen=$(inside <<'END'
{
  for ((i = 0; i < 2000; i++)); do
    echo "rule add pref $((1000 + i)) lookup 200"
    echo "addr add 127.1.$((i / 250)).$((i % 250 + 1))/32 dev lo"
  done
  echo "rule add pref 100 lookup 200"
} | ip -batch -
./list rules rule show
./list rules rule del pref 100
./list rules rule add pref 100 lookup 200
./list addresses addr show lo
./list addresses addr del 127.1.0.1/32 dev lo
END
)
{
  read -r calm; read -r removed; read -r added; read -r addresses; read -r changing
} <<<"$seen"
expect "rules, undisturbed" "$calm" "0 missing, 0 twice, flag false"
expect "rules, a removal meanwhile" "$removed" "1 missing, 0 twice, flag false"
expect "rules, an addition meanwhile" "$added" "0 missing, 1 twice, flag false"
expect "addresses, undisturbed" "$addresses" "flag false"
expect "addresses, a removal meanwhile" "$changing" "flag true"
