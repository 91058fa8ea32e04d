package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// memoryLimit is the chart's limit of the agent's memory, which its DaemonSet passes to Go.
const memoryLimit = "GOMEMLIMIT=268435456"

// readyLimit bounds the start of an agent.
const readyLimit = time.Minute

// prefix starts the names of the agent's own metrics.
const prefix = "istio_pod_network_controller_"

// agent is the real agent, at work on one node of the server.
type agent struct {
	*process
	health, metricsAddr, pprofAddr string
	ready                          time.Duration // from its start to being ready
}

// startAgent starts the agent of the measured node beside a container runtime, and waits until it is ready.
func (n *node) startAgent(ctx context.Context, flags ...string) (*agent, error) {
	text, err := n.server.agents.KubeConfig()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(n.runtime.Dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		return nil, err
	}
	a := &agent{health: filepath.Join(n.runtime.Dir, "health.sock")}
	for _, address := range []*string{&a.metricsAddr, &a.pprofAddr} { // at which nobody listens
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*address = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	args := append([]string{
		"run", "--node-name=" + measured, "--agent-namespace=mesh", "--backend=nftables", "--runtime=containerd", "--runtime-endpoint=unix://" + n.runtime.CRISocket(),
		"--nri-socket=" + n.runtime.NRISocket(), "--health-addr=unix://" + a.health, "--metrics-addr=" + a.metricsAddr, "--pprof-addr=" + a.pprofAddr,
	}, flags...)
	if n.kubelets != nil {
		args = append(args, "--pods-from=kubelet", "--kubelet-socket="+n.kubelets.of[measured].Socket)
	} else {
		args = append(args, "--pods-from=api")
	}
	began := time.Now()
	if a.process, err = start(n.runtime.Dir, "agent", []string{"KUBECONFIG=" + kubeconfig, memoryLimit}, n.agent, args...); err != nil {
		return nil, err
	}
	err = eventually(ctx, readyLimit, "the agent is ready", func(ctx context.Context) error {
		_, err := get(ctx, "unix", a.health, "http://agent/readyz")
		return err
	})
	a.ready = time.Since(began)
	if err != nil {
		return nil, errors.Join(err, a.stop())
	}
	return a, nil
}

func (a *agent) metrics(ctx context.Context) (metrics, error) {
	text, err := get(ctx, "tcp", a.metricsAddr, "http://agent/metrics")
	return parseMetrics(text), err
}

// inUse returns what the agent has in use of Go's heap after a collection, and for stacks, in KiB. It takes the least of five collections:
// each is made while the agent works.
func (a *agent) inUse(ctx context.Context) (kib float64, err error) {
	kib = math.Inf(1)
	for range 5 {
		text, err := get(ctx, "tcp", a.pprofAddr, "http://agent"+collected)
		if err != nil {
			return 0, err
		}
		used, err := inUse(text)
		if err != nil {
			return 0, err
		}
		kib = min(kib, used)
		if err := pause(ctx, time.Second); err != nil {
			return 0, err
		}
	}
	return kib, nil
}

// collected is a profile of a Go program's heap after a collection.
const collected = "/debug/pprof/heap?gc=1&debug=1"

// inUse returns what a profile says of heap and stacks, in KiB.
func inUse(profile string) (float64, error) {
	var heap, stacks float64
	for name, value := range map[string]*float64{"HeapAlloc": &heap, "Stack": &stacks} {
		_, line, _ := strings.Cut(profile, "# "+name+" = ")
		if _, err := fmt.Sscan(line, value); err != nil {
			return 0, fmt.Errorf("read %s of a heap's profile: %w", name, err)
		}
	}
	return (heap + stacks) / 1024, nil
}

// awaitProgrammed waits until so many pods are programmed and reported.
func (a *agent) awaitProgrammed(ctx context.Context, pods int) error {
	return eventually(ctx, 2*time.Minute, fmt.Sprintf("%d pods are programmed", pods), func(ctx context.Context) error {
		m, err := a.metrics(ctx)
		if err != nil {
			return err
		}
		if n := m.sum(prefix+"pods", `state="programmed"`); int(n) != pods {
			_ = pause(ctx, 100*time.Millisecond) // each look costs the agent memory
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
