package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tempDir has a shorter path than t.TempDir: a socket's path has at most 107 bytes.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "probe") //nolint:usetesting // its names are too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serve runs an HTTP server at a socket file, as the agent does.
func serve(t *testing.T, h http.HandlerFunc) (socket string) {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(tempDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serveText answers one connection with a text and closes it.
func serveText(t *testing.T, text string) (socket string) {
	t.Helper()
	l := listen(t)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 100)) // else the kernel resets the connection
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}()
	return l.Addr().String()
}

func call(args ...string) (code int, said string) {
	var out bytes.Buffer
	code = run(args, &out)
	return code, strings.TrimSpace(out.String())
}

func TestTheExitStatusFollowsTheAnswer(t *testing.T) {
	handler := http.NewServeMux()
	handler.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	handler.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "nri: the runtime does not call us", http.StatusInternalServerError)
	})
	handler.HandleFunc("GET /long", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	handler.HandleFunc("GET /empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	socket := serve(t, handler.ServeHTTP)
	for path, want := range map[string]struct {
		code int
		said string
	}{
		"/healthz": {0, ""},
		"/long":    {0, ""},
		"/readyz":  {1, "error: /readyz is answered 500: nri: the runtime does not call us"},
		"/empty":   {1, "error: /empty is answered 204:"},
		"/other":   {1, "error: /other is answered 404: 404 page not found"},
	} {
		if code, said := call("-socket", socket, path); code != want.code || said != want.said {
			t.Errorf("%s: exit status %d, %q; want %+v", path, code, said, want)
		}
	}
}

func TestWithoutAnAgentTheErrorNamesTheSocket(t *testing.T) {
	missing := filepath.Join(tempDir(t), "s")
	if code, said := call("--socket="+missing, "/readyz"); code != 1 || !strings.Contains(said, missing) || !strings.Contains(said, "no such file") {
		t.Errorf("exit status %d, %q", code, said)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: missing, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // as an agent that was killed
	if code, said := call("--socket="+missing, "/readyz"); code != 1 || !strings.Contains(said, "connection refused") {
		t.Errorf("a stale socket: exit status %d, %q", code, said)
	}
}

func TestAServerThatHangsIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	start := func(t *testing.T, h http.HandlerFunc) string { t.Helper(); return serve(t, h) }
	for name, socket := range map[string]string{
		"before it takes the connection": listen(t).Addr().String(),
		"before it answers": start(t, func(http.ResponseWriter, *http.Request) {
			select {
			case <-release:
			case <-time.After(10 * time.Second):
			}
		}),
		"after half an answer": start(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-time.After(10 * time.Second):
			}
		}),
	} {
		begin := time.Now()
		code, said := call("-socket", socket, "-timeout", "100ms", "/readyz")
		if code != 1 || !strings.Contains(said, "i/o timeout") || time.Since(begin) > 5*time.Second {
			t.Errorf("%s: exit status %d after %s, %q", name, code, time.Since(begin), said)
		}
	}
}

func TestAnAnswerThatIsNotHTTPIsAnError(t *testing.T) {
	for _, text := range []string{
		"", "ok", "200", "HTTP/1.0 200 OK", "HTTP/2 200 OK\r\n\r\n", "HTTP/1.0 2000 OK\r\n\r\n", "HTTP/1.1\r\n\r\n", "SSH-2.0-200 200 200\r\n\r\n",
		strings.Repeat("\x00", 2*maxAnswer),
	} {
		if code, said := call("-socket", serveText(t, text), "/readyz"); code != 1 || !strings.Contains(said, "not HTTP") || len(said) > 500 {
			t.Errorf("%.20q: exit status %d, %q", text, code, said)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"-socket: required":       {"/readyz"},
		"want one path":           {"-socket", "/s"},
		`["/readyz" "/healthz"]`:  {"-socket", "/s", "/readyz", "/healthz"},
		`["readyz"]`:              {"-socket", "/s", "readyz"},
		`["/readyz HTTP/1.1\r\n`:  {"-socket", "/s", "/readyz HTTP/1.1\r\n"},
		"value 0s":                {"-socket", "/s", "-timeout", "0", "/readyz"},
		"flag provided but not d": {"-url", "http://x"},
	} {
		if code, said := call(args...); code != 1 || !strings.Contains(said, want) {
			t.Errorf("%q: exit status %d, %q; want %q", args, code, said, want)
		}
	}
	if code, said := call("-h"); code != 0 || !strings.Contains(said, "-socket") {
		t.Errorf("asked for help: exit status %d, %q", code, said)
	}
}
