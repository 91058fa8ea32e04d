package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/test/kerneltest"
)

// The agents of an update share the node's network, and with it the port of their metrics.
func TestTwoAgentsServeMetricsOnOnePort(t *testing.T) {
	addr := freeAddr(t)
	first, err := sharedPort(addr)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := sharedPort(addr)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatalf("the second listener is not reached: %v", err)
	}
	defer conn.Close()
	if _, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener without SO_REUSEPORT gets the port: %v", err)
	}
}

// Whoever binds a port of the agent first must not be able to end it, and with it the start of pods.
func TestPorts_takenByAnotherProgram_areNamedAndServedOnceFree(t *testing.T) {
	for name, serve := range map[string]func(ctx context.Context, p *ports, addr string) (func(), error){
		"metrics": func(ctx context.Context, p *ports, addr string) (func(), error) {
			return Options{MetricsAddr: addr}.serveMetrics(ctx, p, &rest.Config{Host: "http://127.0.0.1:1"})
		},
		"pprof": func(ctx context.Context, p *ports, addr string) (func(), error) { return p.servePprof(ctx, addr), nil },
		"health": func(ctx context.Context, p *ports, addr string) (func(), error) {
			return (&health{"tcp", addr}).serve(ctx, &readiness{}, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr := freeAddr(t)
			other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			var p ports
			stop, err := serve(t.Context(), &p, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			if err := p.check(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), name+" is not served: ") {
				t.Errorf("while another program has it: %v", err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			eventuallyNil(t, func() error { return p.check(t.Context()) })
			path := map[string]string{"metrics": "/metrics", "pprof": "/debug/pprof/", "health": "/healthz"}[name]
			if got := status(t, "http://"+addr+path); got != http.StatusOK {
				t.Errorf("status %d", got)
			}
		})
	}
}

// A server that fails later is not lost until the agent's next start.
func TestPorts_serverFails_isNamedAndServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p ports
		fails, served := make(chan error), 0
		stop := p.serve(t.Context(), "metrics", func(context.Context) (net.Listener, error) { return nil, nil }, func(ctx context.Context, _ net.Listener) error {
			served++
			select {
			case err := <-fails:
				return err
			case <-ctx.Done():
				return nil
			}
		})
		for range 10 {
			fails <- errors.New("accept: no descriptors")
			synctest.Wait()
			if err := p.check(t.Context()); err == nil || err.Error() != "metrics is not served: accept: no descriptors" {
				t.Errorf("after a failure: %v", err)
			}
			<-time.After(15 * time.Second)
			synctest.Wait()
			if err := p.check(t.Context()); err != nil {
				t.Errorf("15 s later: %v", err)
			}
		}
		if stop(); served != 11 {
			t.Errorf("served %d times", served)
		}
	})
}

// The three ports of inspect are for two agents of an update, and nobody's for ever.
func TestPorts_inspectTakenByAnotherProgram_isServedOnceFree(t *testing.T) {
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:1")
	if err != nil {
		kerneltest.SkipOrFail(t, "port 1 cannot be bound: %v", err)
	}
	a := &agent{Options: Options{NodeName: "node1", HealthAddr: "0", InspectAddr: "127.0.0.1:1"}, core: newCoreHolder(), backends: kernel.New(kernel.Namespaces{}, fakeDriver{})}
	defer a.inspector().serve(t.Context(), &rest.Config{Host: "http://127.0.0.1:1"})()
	if err := a.ports.check(t.Context()); !errors.Is(err, syscall.EADDRINUSE) || a.inspect.Load() != nil {
		t.Errorf("while another program has it: %v, says %v", err, a.inspect.Load())
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	eventuallyNil(t, func() error { return a.ports.check(t.Context()) })
	if at := a.inspect.Load(); at == nil || !listens(t, at.Port) {
		t.Errorf("says %v", at)
	}
}

// A node whose pods have all that they need does not keep its taint for a port.
func TestPorts_taken_keepNoTaint(t *testing.T) {
	ready, p := &readiness{}, &ports{}
	ready.add("cache", func(context.Context) error { return nil })
	ready.addForPeople("ports", p.check)
	p.note("metrics", syscall.EADDRINUSE)
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
