package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/serving"
)

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "health") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "pod", "s")
}

// wantAnswer compares the answer with want: status and body, or "nobody" if the connection is refused.
func wantAnswer(t *testing.T, h *health, path, want string) {
	t.Helper()
	if got := answerOf(t, h, path); got != want {
		t.Errorf("%s%s: %q, want %q", h.address, path, got, want)
	}
}

func answerOf(t *testing.T, h *health, path string) string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), h.network, h.address)
	if err != nil {
		return "nobody"
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, text)
}

// serveHealth serves until stop is called.
func serveHealth(t *testing.T, h *health, ready *readiness) (stop func()) {
	t.Helper()
	l, err := h.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- healthServer(l, ready).Start(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestHealthIsServedAtASocketAndAtAPort(t *testing.T) {
	for _, addr := range []string{"unix://" + socketPath(t), "127.0.0.1:0"} {
		h, err := newHealth(addr)
		if err != nil {
			t.Fatal(err)
		}
		fault := errors.New("the runtime does not call us")
		ready := &readiness{}
		var stuck error
		ready.add(part{name: "nri", check: func(context.Context) error { return fault }, note: func() string { return "not offered" }})
		ready.liveCheck = func(context.Context) error { return stuck }
		ready.add(part{name: "cache", check: func(context.Context) error { return nil }})
		stop := serveHealth(t, h, ready)
		for path, want := range map[string]string{
			"/healthz": "200 ok", "/readyz": "500 nri: the runtime does not call us\n", "/readyz/cache": "200 ok",
			"/readyz/nri": "500 the runtime does not call us\n", "/metrics": "404 404 page not found\n",
		} {
			wantAnswer(t, h, path, want)
		}
		fault = nil
		wantAnswer(t, h, "/readyz", "200 ok: nri: not offered, cache")
		stuck = errors.New("a call is stuck")
		wantAnswer(t, h, "/healthz", "500 a call is stuck\n")
		stop()
		wantAnswer(t, h, "/healthz", "nobody")
	}
}

func TestTheSocketOfAKilledContainerIsReplaced(t *testing.T) {
	h, err := newHealth("unix://" + socketPath(t))
	if err != nil {
		t.Fatal(err)
	}
	killed, err := h.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = killed.Close()
	stop := serveHealth(t, h, &readiness{})
	wantAnswer(t, h, "/healthz", "200 ok")
	info, err := os.Lstat(h.address)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	stop()
	if err := os.WriteFile(h.address, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.listen(t.Context()); err == nil || !strings.Contains(err.Error(), h.address+" is in the way") {
		t.Errorf("a file that is no socket: %v", err)
	}
}

func TestAddressesOfHealth(t *testing.T) {
	for addr, want := range map[string][2]string{
		"0": {}, ":15078": {"tcp", ":15078"}, "[::1]:1": {"tcp", "[::1]:1"}, "unix:///run/a/s": {"unix", "/run/a/s"},
	} {
		h, err := newHealth(addr)
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		if d := cmp.Diff(want, [2]string{h.network, h.address}); d != "" {
			t.Errorf("%s: %s", addr, d)
		}
	}
	for _, addr := range []string{
		"", "here", "unix:", "unix://", "unix:///", "unix://run/s", "unix:///run/../s", "unix:///run/", "unix:run/s", "unix:///" + strings.Repeat("x", 107),
	} {
		if _, err := newHealth(addr); err == nil {
			t.Errorf("%q is accepted", addr)
		}
	}
}

func TestHealthIsServedBeforeAndAfterEverythingElse(t *testing.T) {
	for _, addr := range []string{"unix://" + socketPath(t), "0"} {
		h, err := newHealth(addr)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stop, err := h.serve(ctx, &readiness{}, &serving.Ports{})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if addr != "0" {
			wantAnswer(t, h, "/healthz", "200 ok")
		}
		stop()
		if left, _ := os.Lstat(h.address); left != nil {
			t.Error("the socket is left behind")
		}
	}
}
