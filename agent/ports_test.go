package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/serving"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/test/kerneltest"
)

// Whoever binds a port of the agent first must not be able to end it, and with it the start of pods.
func TestPorts_takenByAnotherProgram_areNamedAndServedOnceFree(t *testing.T) {
	for name, serve := range map[string]func(ctx context.Context, p *serving.Ports, addr string) (func(), error){
		"metrics": func(ctx context.Context, p *serving.Ports, addr string) (func(), error) {
			return Options{MetricsAddr: addr}.serveMetrics(ctx, p, &rest.Config{Host: "http://127.0.0.1:1"})
		},
		"pprof": func(ctx context.Context, p *serving.Ports, addr string) (func(), error) {
			return servePprof(ctx, p, addr), nil
		},
		"health": func(ctx context.Context, p *serving.Ports, addr string) (func(), error) {
			return (&health{"tcp", addr}).serve(ctx, &readiness{}, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr := freeAddr(t)
			other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			var p serving.Ports
			stop, err := serve(t.Context(), &p, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			if err := p.Check(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), name+" is not served: ") {
				t.Errorf("while another program has it: %v", err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			eventuallyNil(t, func() error { return p.Check(t.Context()) })
			path := map[string]string{"metrics": "/metrics", "pprof": "/debug/pprof/", "health": "/healthz"}[name]
			if got := status(t, "http://"+addr+path); got != http.StatusOK {
				t.Errorf("status %d", got)
			}
		})
	}
}

// The three ports of inspect are for two agents of an update, and nobody's for ever.
func TestPorts_inspectTakenByAnotherProgram_isServedOnceFree(t *testing.T) {
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:1")
	if err != nil {
		kerneltest.SkipOrFail(t, "port 1 cannot be bound: %v", err)
	}
	a := &agent{Options: Options{NodeName: "node1", HealthAddr: "0", InspectAddr: "127.0.0.1:1"}, core: newCoreHolder(), backends: kernel.New(kernel.Namespaces{}, fakeDriver{})}
	defer a.inspector().Serve(t.Context(), &rest.Config{Host: "http://127.0.0.1:1"})()
	if err := a.ports.Check(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || a.inspect.Load() != nil {
		t.Errorf("while another program has it: %v, says %v", err, a.inspect.Load())
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	eventuallyNil(t, func() error { return a.ports.Check(t.Context()) })
	if at := a.inspect.Load(); at == nil || !listens(t, at.Port) {
		t.Errorf("says %v", at)
	}
}

// A node whose pods have all that they need does not keep its taint for a port.
func TestPorts_taken_keepNoTaint(t *testing.T) {
	ready, p := &readiness{}, &serving.Ports{}
	ready.add(part{name: "cache", check: func(context.Context) error { return nil }})
	ready.add(part{name: "ports", check: p.Check, forPeople: true})
	defer p.Serve(t.Context(), "metrics", func(context.Context) (net.Listener, error) { return nil, syscall.EADDRINUSE }, nil)()
	if err := ready.check(t.Context()); err == nil || err.Error() != "ports: metrics is not served: address already in use" {
		t.Errorf("readiness: %v", err)
	}
	if err := ready.serves(t.Context()); err != nil {
		t.Errorf("the taint stays: %v", err)
	}
}

func eventuallyNil(t *testing.T, check func() error) {
	t.Helper()
	tick, limit := time.NewTicker(10*time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for err := check(); err != nil; err = check() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal(err)
		}
	}
}
