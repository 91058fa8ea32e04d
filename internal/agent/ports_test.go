package agent

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The agents of an update share the node's network, and with it the port of their metrics.
func TestTwoAgentsServeMetricsOnOnePort(t *testing.T) {
	config := sharedPort()
	first, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	addr := first.Addr().String()
	second, err := config.Listen(t.Context(), "tcp", addr)
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

// The metrics server of a manager sets SO_REUSEPORT, too.
func TestTheManagersMetricsShareTheirPort(t *testing.T) {
	config := sharedPort()
	older, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close()
	o := Options{NodeName: "node", MetricsAddr: older.Addr().String()}
	mgr, err := newManager(&rest.Config{Host: apiWithoutPods(t)}, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := o.addMetrics(ctx, mgr); err != nil {
		t.Fatal(err)
	}
	if err := mgr.Add(manager.RunnableFunc(func(context.Context) error { cancel(); return nil })); err != nil {
		t.Fatal(err)
	}
	if err := mgr.Start(ctx); err != nil {
		t.Error(err)
	}
}
