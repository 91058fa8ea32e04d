package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// memoryLimit is the chart's limit of the agent's memory, which its DaemonSet passes to Go.
const memoryLimit = "GOMEMLIMIT=268435456"

// readyLimit bounds the start of an agent.
const readyLimit = time.Minute

// agent is the real agent, at work on one node of the server.
type agent struct {
	*process
	health, metricsAddr, pprofAddr string
	ready                          time.Duration // from its start to being ready
}

// startAgent starts the agent of the measured node beside a container runtime, and waits until it is ready.
func startAgent(ctx context.Context, s *server, r *containerRuntime, binary string, flags ...string) (*agent, error) {
	kubeconfig, err := s.writeKubeconfig(r.dir)
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(ctx, 2)
	if err != nil {
		return nil, err
	}
	a := &agent{health: filepath.Join(r.dir, "health.sock"), metricsAddr: addresses[0], pprofAddr: addresses[1]}
	args := append([]string{
		"run", "--node-name=" + measured, "--agent-namespace=mesh", "--backend=nftables", "--runtime=containerd", "--runtime-endpoint=unix://" + r.criSocket(),
		"--nri-socket=" + r.nriSocket(), "--health-addr=unix://" + a.health, "--metrics-addr=" + a.metricsAddr, "--pprof-addr=" + a.pprofAddr,
	}, flags...)
	began := time.Now()
	if a.process, err = start(r.dir, "agent", []string{"KUBECONFIG=" + kubeconfig, memoryLimit}, binary, args...); err != nil {
		return nil, err
	}
	err = eventually(ctx, readyLimit, "the agent is ready", func(ctx context.Context) error {
		_, err := get(ctx, "unix", a.health, "http://agent/readyz")
		return err
	})
	a.ready = time.Since(began)
	if err != nil {
		return nil, errors.Join(err, a.stop(syscall.SIGKILL))
	}
	return a, nil
}

func (a *agent) metrics(ctx context.Context) (metrics, error) {
	text, err := get(ctx, "tcp", a.metricsAddr, "http://agent/metrics")
	return parseMetrics(text), err
}

// inUse returns what the agent has in use of Go's heap after a collection, and for stacks, in KiB. It takes the least of some collections:
// each is made while the agent works.
func (a *agent) inUse(ctx context.Context, collections int) (kib float64, err error) {
	kib = math.Inf(1)
	for i := range collections {
		if i > 0 {
			if err := pause(ctx, time.Second); err != nil {
				return 0, err
			}
		}
		text, err := get(ctx, "tcp", a.pprofAddr, "http://agent/debug/pprof/heap?gc=1&debug=1")
		if err != nil {
			return 0, err
		}
		sum := 0.0
		for _, name := range []string{"HeapAlloc", "Stack"} {
			_, line, _ := strings.Cut(text, "# "+name+" = ")
			var bytes float64
			if _, err := fmt.Sscan(line, &bytes); err != nil {
				return 0, fmt.Errorf("read %s of the agent: %w", name, err)
			}
			sum += bytes / 1024
		}
		kib = min(kib, sum)
	}
	return kib, nil
}

// profile writes a CPU profile of the next seconds to a file.
func (a *agent) profile(ctx context.Context, kind string, file string) error {
	text, err := get(ctx, "tcp", a.pprofAddr, "http://agent/debug/pprof/"+kind)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

// awaitProgrammed waits until so many pods are programmed and reported.
func (a *agent) awaitProgrammed(ctx context.Context, pods int) error {
	return eventually(ctx, 2*time.Minute, fmt.Sprintf("%d pods are programmed", pods), func(ctx context.Context) error {
		m, err := a.metrics(ctx)
		if err != nil {
			return err
		}
		if n := m.sum(prefix+"pods", `state="programmed"`); int(n) != pods {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
}

// get returns the answer of a server at an address, unless it is an error.
func get(ctx context.Context, network, address, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", url, resp.StatusCode, text)
	}
	return string(text), err
}

// writeKubeconfig writes the agents' kubeconfig into a directory.
func (s *server) writeKubeconfig(dir string) (string, error) {
	type values map[string]any
	text, err := json.Marshal(values{
		"apiVersion": "v1", "kind": "Config", "current-context": "scale",
		"clusters": []values{{"name": "scale", "cluster": values{"server": s.host, "insecure-skip-tls-verify": true}}},
		"users":    []values{{"name": "agent", "user": values{"token": s.token}}},
		"contexts": []values{{"name": "scale", "context": values{"cluster": "scale", "user": "agent"}}},
	})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kubeconfig")
	return file, os.WriteFile(file, text, 0o600)
}
