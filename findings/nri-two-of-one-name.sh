#!/usr/bin/env bash
# Two NRI plugins of the same name and index are both registered, and both are called.
#
# A plugin registers with a name and an index ("10-mesh"). A node agent that is updated without a gap has its old and its new process beside each other.
#
# Expected: a name is there once. The second registration is refused, or replaces the first, whose connection is closed.
# Seen: both stay, and each call goes to both, one after the other. Neither learns of the other one.
# Source: github.com/containerd/nri v0.12.3 (as containerd 2.4.2 has it), pkg/adaptation/adaptation.go, acceptPluginConnections
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program names github.com/containerd/nri@v0.12.3 <<'END'
// Command names is a runtime's half of NRI and two plugins, connected by a socket.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

type plugin struct{ synchronized, called, closed atomic.Int32 }

func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	p.synchronized.Add(1)
	return nil, nil
}

func (p *plugin) RunPodSandbox(context.Context, *api.PodSandbox) error {
	p.called.Add(1)
	return nil
}

func main() {
	ctx, dir := context.Background(), os.Args[1]
	socket := filepath.Join(dir, "nri.sock")
	runtime, err := adaptation.New("finding", "1",
		func(ctx context.Context, synchronize adaptation.SyncCB) error { _, err := synchronize(ctx, nil, nil); return err },
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(dir+"/none"), adaptation.WithPluginConfigPath(dir+"/none"))
	check(err)
	check(runtime.Start())
	var old, next plugin
	for _, p := range []*plugin{&old, &next} {
		s, err := stub.New(p, stub.WithSocketPath(socket), stub.WithPluginName("mesh"), stub.WithPluginIdx("10"),
			stub.WithOnClose(func() { p.closed.Add(1) }))
		check(err)
		check(s.Start(ctx))
		for limit := time.Now().Add(10 * time.Second); p.synchronized.Load() == 0 && time.Now().Before(limit); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	check(runtime.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: &api.PodSandbox{Id: "a", Name: "cart", Namespace: "shop"}}))
	fmt.Printf("first: called %d, closed %d; second: called %d, closed %d\n",
		old.called.Load(), old.closed.Load(), next.called.Load(), next.closed.Load())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END

expect "two plugins 10-mesh, and a sandbox" "$("$dir/names" "$dir" 2>"$dir/log")" "first: called 1, closed 0; second: called 1, closed 0"
