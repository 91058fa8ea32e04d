package agent

import (
	"io"
	"net"
	"net/http"
	"testing"

	"istio-pod-network-controller/internal/serving"
)

func TestProfilesAreServedWhereTheyAreAskedFor(t *testing.T) {
	addr := freeAddr(t)
	stop := servePprof(t.Context(), &serving.Ports{}, addr)
	for path, want := range map[string]int{
		"/debug/pprof/": http.StatusOK, "/debug/pprof/goroutine": http.StatusOK, "/debug/pprof/cmdline": http.StatusOK,
		"/": http.StatusNotFound, "/metrics": http.StatusNotFound, "/healthz": http.StatusNotFound,
	} {
		if got := status(t, "http://"+addr+path); got != want {
			t.Errorf("%s: status %d, want %d", path, got, want)
		}
	}
	stop()
	if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr); err == nil {
		t.Error("profiles are still served after stop")
		_ = conn.Close()
	}
}

func TestTwoAgentsServeProfilesOnOnePort(t *testing.T) {
	addr := freeAddr(t)
	for range 2 {
		var p serving.Ports
		defer servePprof(t.Context(), &p, addr)()
		if err := p.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoProfilesAreServedByDefault(t *testing.T) {
	for _, addr := range []string{"0", ""} {
		var p serving.Ports
		servePprof(t.Context(), &p, addr)()
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("address %q: %v", addr, err)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func status(t *testing.T, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
