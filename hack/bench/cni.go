package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
)

const (
	// callsEach is how often a program is started for each run of another way: a 99th percentile takes many.
	callsEach = 10
	// socketTimeout bounds the wait for the agent's socket.
	socketTimeout = 5 * time.Second
)

// programs are the binaries of which calls are measured: the CNI plugin, and one that does nothing.
type programs struct{ plugin, empty string }

// validate accepts both or none. A missing file is reported before minutes of measuring.
func (p programs) validate() error {
	if p == (programs{}) {
		return nil
	}
	if p.plugin == "" || p.empty == "" {
		return errors.New("-plugin and -empty: want both or neither, for the one is compared with the other")
	}
	for flag, path := range map[string]string{"-plugin": p.plugin, "-empty": p.empty} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	return nil
}

// cni compares a call of the plugin, which asks an agent that agrees, with the start of a program that does nothing.
func (b bench) cni(ctx context.Context) (rows []row, err error) {
	if b.programs == (programs{}) {
		fmt.Fprintln(os.Stderr, "the rows of the CNI plugin are left out: no -plugin and -empty (make bench builds both)")
		return nil, nil
	}
	info, err := os.Stat(b.programs.plugin)
	if err != nil {
		return nil, fmt.Errorf("measure the CNI plugin: %w", err)
	}
	var agent agreeing
	socket, stop, err := agent.serve(ctx)
	if err != nil {
		return nil, fmt.Errorf("serve the CNI plugin: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	pod, err := netns.New()
	if err != nil {
		return nil, err
	}
	defer pod.Close() //nolint:errcheck // nothing was written that could be lost
	plugin, empty, err := b.programs.calls(ctx, socket, pod.Path(), callsEach*b.runs)
	if err != nil {
		return nil, err
	}
	if asked := int(agent.asked.Load()); asked != len(plugin) {
		return nil, fmt.Errorf("the agent was asked %d times in %d calls of the CNI plugin", asked, len(plugin))
	}
	const name = "CNI ADD, process start included, against an empty Go program"
	return []row{
		newRow(name, "ms p50", median(plugin), median(empty), "< 3"),
		newRow(name, "ms p99", quantile(plugin, 99), quantile(empty, 99), "reported"),
		newRow("size of the CNI plugin", "MB", float64(info.Size())/1e6, 0, "< 8"),
	}, nil
}

// calls starts each program so many times, in turn, and returns what each took, in milliseconds.
func (p programs) calls(ctx context.Context, socket, pod string, n int) (plugin, empty []float64, err error) {
	took := map[string][]float64{}
	for range n {
		for _, program := range []string{p.empty, p.plugin} {
			t, err := add(ctx, program, socket, pod)
			if err != nil {
				return nil, nil, fmt.Errorf("start %s: %w", program, err)
			}
			took[program] = append(took[program], t)
		}
	}
	return took[p.plugin], took[p.empty], nil
}

// add starts a program as a runtime starts a CNI plugin for a new sandbox, and returns the milliseconds until it has ended.
func add(ctx context.Context, program, socket, pod string) (float64, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=8f5e2b", "CNI_NETNS=" + pod, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=3f1c9d52",
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": %q, "socket": %q, "prevResult": {"cniVersion": "1.0.0"}}`,
		cni.PluginType, socket))
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	took := milliseconds(time.Since(start))
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out.Bytes())
	}
	return took, nil
}

// agreeing is an agent that says yes to everything, and counts the sandboxes.
type agreeing struct{ asked atomic.Int64 }

// Add is CNI's ADD.
func (a *agreeing) Add(context.Context, podnet.Sandbox) error {
	a.asked.Add(1)
	return nil
}

// Check is CNI's CHECK.
func (a *agreeing) Check(context.Context, podnet.Sandbox) error { return nil }

// Del is CNI's DEL.
func (a *agreeing) Del(context.Context, podnet.Sandbox) error { return nil }

// serve returns the socket, in a directory of its own, once the agent is there; stop removes both.
func (a *agreeing) serve(ctx context.Context) (socket string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", nil, err
	}
	socket = filepath.Join(dir, "cni.sock")
	server, err := cni.NewServer(cni.Config{
		Path: socket, Handler: a, Ready: func(context.Context) error { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	stop = func() error {
		cancel()
		return errors.Join(<-ended, os.RemoveAll(dir))
	}
	for deadline := time.Now().Add(socketTimeout); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(socket); err == nil {
			return socket, stop, nil
		}
		if len(ended) > 0 || time.Now().After(deadline) {
			return "", nil, errors.Join(fmt.Errorf("no socket at %s", socket), stop())
		}
	}
}
