package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/test/kerneltest"
)

// freeAddr returns an address that nobody listens at.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The agents of an update share the node's network, and with it the port of their metrics.
func TestTwoAgentsServeMetricsOnOnePort(t *testing.T) {
	addr := freeAddr(t)
	first, err := Shared(addr)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := Shared(addr)(t.Context())
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

// A server that fails later is not lost until the agent's next start.
func TestPorts_serverFails_isNamedAndServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Ports
		fails, served := make(chan error), 0
		stop := p.Serve(t.Context(), "metrics", func(context.Context) (net.Listener, error) { return nil, nil }, func(ctx context.Context, _ net.Listener) error {
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
			if err := p.Check(t.Context()); err == nil || err.Error() != "metrics is not served: accept: no descriptors" {
				t.Errorf("after a failure: %v", err)
			}
			<-time.After(15 * time.Second)
			synctest.Wait()
			if err := p.Check(t.Context()); err != nil {
				t.Errorf("15 s later: %v", err)
			}
		}
		if stop(); served != 11 {
			t.Errorf("served %d times", served)
		}
	})
}

// A port that somebody else has is passed over; below port 1 there is none.
func TestNoPortIsTriedBelowTheFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:1")
	if err != nil {
		kerneltest.SkipOrFail(t, "port 1 cannot be bound: %v", err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	if _, _, err := Below(t.Context(), "127.0.0.1:1", 3); err == nil || strings.Contains(err.Error(), ":0") {
		t.Errorf("error %v", err)
	}
}

func TestTwoAgentsOfANodeHaveAPortEach(t *testing.T) {
	held, port, err := Below(t.Context(), "127.0.0.1:0", 3)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() //nolint:errcheck // the test is over
	second, other, err := Below(t.Context(), fmt.Sprintf("127.0.0.1:%d", port), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close() //nolint:errcheck // the test is over
	if other >= port || other < port-2 {
		t.Errorf("the first has port %d, the second %d", port, other)
	}
}
