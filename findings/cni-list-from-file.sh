#!/usr/bin/env bash
# libcni reads more plugins from a list's file than from the list's bytes.
#
# A .conflist names all plugins of a network. Who wants to know what a runtime will call reads the file and parses its content.
#
# Expected: NetworkConfFromFile is os.ReadFile and NetworkConfFromBytes. A directory beside the list means nothing, as the list names its plugins itself.
# Seen: if there is a directory of the network's name beside the file, its *.conf are appended behind the list's own plugins, and only NetworkConfFromFile
#   does that. So a list can have more plugins than its text says, and with no trace of it in Bytes, which runtimes log. loadOnlyInlinedPlugins: true ends it.
# Source: github.com/containernetworking/cni v1.3.1, libcni/conf.go, NetworkConfFromFile; SPEC.md 1.1.0 does not know the directory
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program plugins github.com/containernetworking/cni@v1.3.1 <<'END'
// Command plugins prints a list's plugins, read from its file and parsed from its bytes.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	fromFile, err := libcni.NetworkConfFromFile(os.Args[1])
	check(err)
	text, err := os.ReadFile(os.Args[1])
	check(err)
	fromBytes, err := libcni.NetworkConfFromBytes(text)
	check(err)
	for _, list := range []*libcni.NetworkConfigList{fromFile, fromBytes} {
		for _, p := range list.Plugins {
			fmt.Print(p.Network.Type, " ")
		}
		fmt.Println()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END

mkdir "$dir/net.d"
list='{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}'
echo "$list" >"$dir/net.d/10-pods.conflist"
plugins() { "$dir/plugins" "$dir/net.d/10-pods.conflist" | sed -n "$1p"; }

expect "from the file" "$(plugins 1)" "bridge portmap "
mkdir "$dir/net.d/pods"
echo '{"type": "tuning"}' >"$dir/net.d/pods/50-tuning.conf"
expect "from the file, with pods/50-tuning.conf beside it" "$(plugins 1)" "bridge portmap tuning "
expect "from its bytes" "$(plugins 2)" "bridge portmap "
echo "${list/\}\]/\}], \"loadOnlyInlinedPlugins\": true}" | sed 's/}}$/}/' >"$dir/net.d/10-pods.conflist"
expect "from the file, with loadOnlyInlinedPlugins" "$(plugins 1)" "bridge portmap "
