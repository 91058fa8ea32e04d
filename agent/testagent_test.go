package agent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/kubelet"
	"istio-pod-network-controller/runtime/nri"
	"istio-pod-network-controller/test/kerneltest"
)

// testAgent is a running agent with a container runtime and an API server that may be away.
type testAgent struct {
	*agent
	runtime *adaptation.Adaptation
	health  *health
	netns   string // the pod's
	// Calls of the backend for the pod's namespace, which the watch makes as well, at its own time, and for any other.
	applied, elsewhere *atomic.Int64
	stop               func() error
}

func runAgent(t *testing.T, apiURL string, failOpen bool, change ...func(*Options)) *testAgent {
	t.Helper()
	r := newTestAgent(t, failOpen)
	r.runtime = newNRIRuntime(t, filepath.Dir(r.NRI.Socket))
	for _, c := range change {
		c(&r.Options)
	}
	r.begin(t, apiURL)
	return r
}

// newTestAgent returns an agent that does not run yet, without a runtime.
func newTestAgent(t *testing.T, failOpen bool) *testAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &testAgent{
		health: &health{"unix", filepath.Join(dir, "health.sock")}, netns: kerneltest.New(t).Path(),
		applied: &atomic.Int64{}, elsewhere: &atomic.Int64{},
	}
	r.agent = &agent{
		Options: Options{
			NodeName: "node", PodsFrom: string(kubelet.API), HealthAddr: "unix://" + r.health.address, MetricsAddr: "0", CNI: CNIOff, FailOpen: failOpen,
			NRI:    NRI{Mode: NRIAuto, Socket: filepath.Join(dir, "nri.sock"), Name: nri.DefaultName, Index: nri.DefaultIndex},
			Intent: intent.Config{Defaults: intent.StandardDefaults(), Select: intent.SelectAnnotation, ExcludedNamespaces: []string{"kube-system"}},
		},
		core: newCoreHolder(), ready: &readiness{}, finder: fakeRuntimeFinder{r.netns}, metrics: prometheus.NewRegistry(),
	}
	r.agent.backends = kernel.New(namespaces(t), fakeDriver{apply: func(path string) error {
		own, err := os.Stat(r.netns)
		if err != nil {
			return err
		}
		if now, err := os.Stat(path); err == nil && os.SameFile(now, own) {
			r.applied.Add(1)
		} else {
			r.elsewhere.Add(1)
		}
		return nil
	}})
	return r
}

// begin runs the agent until the test ends.
func (r *testAgent) begin(t *testing.T, apiURL string) {
	t.Helper()
	if err := r.core.open(r.Options); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx, &rest.Config{Host: apiURL}) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
}
