package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

const goodRequest = `{"command": "ADD", "sandbox": {"namespace": "shop", "name": "cart", "uid": "u-1", "id": "8f5e", "netns": "/run/netns/x"}}`

func dial(tb testing.TB, socket string) *net.UnixConn {
	tb.Helper()
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: socket, Net: network})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// send sends one packet and returns the answer, "" if the server closes the connection.
func send(tb testing.TB, c *net.UnixConn, packet string) string {
	tb.Helper()
	if _, err := c.Write([]byte(packet)); err != nil {
		tb.Fatal(err)
	}
	return receive(tb, c)
}

func receive(tb testing.TB, c *net.UnixConn) string {
	tb.Helper()
	buf := make([]byte, 2*maxMessage)
	n, err := c.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		tb.Fatal(err)
	}
	return string(buf[:n])
}

func wantServed(tb testing.TB, socket string) {
	tb.Helper()
	if got := send(tb, dial(tb, socket), goodRequest); got != `{"ok":true}` {
		tb.Errorf("a good request is answered %q", got)
	}
}

func TestServer_hostilePeer_isCutOff(t *testing.T) {
	cases := map[string]struct {
		packet string
		want   string // nothing: cut off without an answer
	}{
		"rubbish":                        {"\x00\x01\x02", ""},
		"half an object":                 {goodRequest[:50], ""},
		"an array":                       {"[]", ""},
		"a number for a name":            {strings.Replace(goodRequest, `"cart"`, "1", 1), ""},
		"too long":                       {goodRequest + strings.Repeat(" ", maxMessage), ""},
		"deeper than any parser goes":    {strings.Repeat("[", maxMessage), ""},
		"null":                           {"null", "pod namespace"},
		"no sandbox":                     {`{"command": "ADD"}`, "pod name"},
		"an unknown command":             {strings.Replace(goodRequest, "ADD", "MEND", 1), `command \"MEND\"`},
		"no namespace":                   {strings.Replace(goodRequest, "/run/netns/x", "", 1), "required"},
		"a namespace by detours":         {strings.Replace(goodRequest, "/run/netns/x", "/run/netns/../../proc/1/ns/net", 1), "network namespace"},
		"a relative namespace":           {strings.Replace(goodRequest, "/run/netns/x", "netns", 1), "network namespace"},
		"a pod like a path":              {strings.Replace(goodRequest, "cart", "../cart", 1), "pod name"},
		"a namespace of a hundred bytes": {strings.Replace(goodRequest, "shop", strings.Repeat("a", 100), 1), "pod namespace"},
		"a name of many labels":          {strings.Replace(goodRequest, "cart", strings.Repeat("a.", 200)+"a", 1), "pod name"},
		"an ID with a line break":        {strings.Replace(goodRequest, "8f5e", `8f\n5e`, 1), "sandbox ID"},
	}
	agent := &fakeAgent{}
	socket := serve(t, agent)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := send(t, dial(t, socket), c.packet)
			if c.want == "" && got != "" || !strings.Contains(got, c.want) || strings.Contains(got, `"ok":true`) {
				t.Errorf("answered %q, want %q", got, c.want)
			}
			if asked := agent.requests(); len(asked) != 0 {
				t.Errorf("the agent was asked %q", asked)
			}
		})
	}
	wantServed(t, socket)
}

func TestServer_silentPeers_blockNobody(t *testing.T) {
	socket := serve(t, &fakeAgent{}, func(s *Server) { s.readTimeout, s.config.Concurrency = 50*time.Millisecond, 2 })
	silent := []*net.UnixConn{dial(t, socket), dial(t, socket), dial(t, socket), dial(t, socket)}
	wantServed(t, socket)
	for _, c := range silent {
		if got := receive(t, c); got != "" {
			t.Errorf("received %q", got)
		}
	}
}

func TestServer_halfClosedPeer_isAnswered(t *testing.T) {
	agent := &fakeAgent{}
	socket := serve(t, agent)
	c := dial(t, socket)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, c); got != "" { // at once: there is nothing to wait for
		t.Errorf("received %q", got)
	}
	c = dial(t, socket)
	if _, err := c.Write([]byte(goodRequest)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, c); got != `{"ok":true}` {
		t.Errorf("a peer that closed its sending end was answered %q", got)
	}
	c = dial(t, socket)
	if _, err := c.Write([]byte(goodRequest)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // without reading the answer
	eventually(t, "the request is worked on", func() bool { return len(agent.requests()) == 2 })
	wantServed(t, socket)
}

func TestServer_otherUser_isNotServed(t *testing.T) {
	agent := &fakeAgent{}
	socket := serve(t, agent, func(s *Server) { s.uid++ })
	c := dial(t, socket)
	_, _ = c.Write([]byte(goodRequest)) // the server may have hung up already
	if got := receive(t, c); got != "" || len(agent.requests()) != 0 {
		t.Errorf("answered %q, asked %q", got, agent.requests())
	}
}

func TestServer_socket_isTheOwnersOnly(t *testing.T) {
	socket := serve(t, &fakeAgent{})
	for path, want := range map[string]os.FileMode{socket: os.ModeSocket | 0o600, filepath.Dir(socket): os.ModeDir | 0o700} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
		}
	}
	if os.Getuid() != 0 {
		return // only root can start a process as another user
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(socket)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(PluginType))
	cmd.Env = []string{"CNI_COMMAND=STATUS", "CNI_PATH=/x"}
	cmd.Stdin = strings.NewReader(strings.Replace(conf(socket, `, "statusNeedsAgent": true`), "1.0.0", "1.1.0", 1))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.Output(); err == nil || !bytes.Contains(out, []byte("permission denied")) {
		t.Errorf("another user: %v %s", err, out)
	}
}

func TestServer_staleSocket_isReplaced(t *testing.T) {
	socket := filepath.Join(tempDir(t), "s")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: socket, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // as an agent that was killed
	stop := start(t, socket, &fakeAgent{})
	wantServed(t, socket)
	stop()
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(socket), "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Whatever is in the way, or a directory without space, must not end the agent, which has other hooks.
func TestServer_otherFile_isNotReplacedAndWaitedFor(t *testing.T) {
	file := filepath.Join(tempDir(t), "s")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &fakeAgent{}
	s, err := NewServer(Config{Path: file, Handler: a, Ready: a.ready, Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	s.uid, s.watchInterval = uint32(os.Getuid()), time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	eventually(t, "the fault is named", func() bool { return strings.Contains(fmt.Sprint(s.Check()), "not a socket") })
	if data, _ := os.ReadFile(file); string(data) != "precious" {
		t.Errorf("holds %q", data)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket is there", func() bool { return s.Check() == nil })
	wantServed(t, file)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNewServer_wrongConfig_isRefused(t *testing.T) {
	a := &fakeAgent{}
	for name, c := range map[string]Config{
		"a relative path":   {Path: "s", Handler: a, Ready: a.ready, Log: discard()},
		"a path too long":   {Path: "/" + strings.Repeat("a", 100), Handler: a, Ready: a.ready, Log: discard()},
		"a path by detours": {Path: "/run/../s", Handler: a, Ready: a.ready, Log: discard()},
		"no handler":        {Path: "/s", Ready: a.ready, Log: discard()},
	} {
		if _, err := NewServer(c); err == nil {
			t.Errorf("%s: made", name)
		}
	}
}

func TestServer_slowHandler_hasADeadline(t *testing.T) {
	agent := &fakeAgent{hold: make(chan struct{})}
	socket := serve(t, agent, func(s *Server) { s.timeout = 50 * time.Millisecond })
	if got := send(t, dial(t, socket), goodRequest); !strings.Contains(got, context.DeadlineExceeded.Error()) {
		t.Errorf("answered %q", got)
	}
	s := &Server{timeout: 5 * time.Second}
	if limit := s.limit(cmdCheck); limit >= checkTimeout || limit <= 0 {
		t.Errorf("CHECK may take %s, longer than the plugin waits", limit)
	}
}

// panicking is a Handler with a bug.
type panicking struct{ Handler }

// Check panics.
func (panicking) Check(context.Context, podnet.Sandbox) error { panic("a bug") } //nolint:forbidigo // it has to be survived

func TestServer_handlerPanics_otherRequestsAreServed(t *testing.T) {
	socket := serve(t, &fakeAgent{}, func(s *Server) { s.config.Handler = panicking{s.config.Handler} })
	if got := send(t, dial(t, socket), strings.Replace(goodRequest, "ADD", "CHECK", 1)); got != "" {
		t.Errorf("answered %q", got)
	}
	wantServed(t, socket)
}

func TestServer_ends_finishesRequests(t *testing.T) {
	agent := &fakeAgent{hold: make(chan struct{})}
	socket := filepath.Join(tempDir(t), "s")
	stop := start(t, socket, agent)
	c := dial(t, socket)
	if _, err := c.Write([]byte(goodRequest)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is worked on", func() bool { return len(agent.requests()) == 1 })
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	eventually(t, "the socket is gone", func() bool { _, err := os.Lstat(socket); return err != nil })
	close(agent.hold)
	if got := receive(t, c); got != `{"ok":true}` {
		t.Errorf("answered %q", got)
	}
	<-stopped
}

func TestServer_manyRequests_areServed(t *testing.T) {
	agent := &fakeAgent{}
	socket := serve(t, agent, func(s *Server) { s.config.Concurrency = 4 })
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := ask(t.Context(), socket, request{Command: cmdAdd, Sandbox: podnet.Sandbox{
				Namespace: "shop", Name: "cart", ID: "8f5e", NetNS: "/run/netns/x",
			}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(agent.requests()); n != 200 {
		t.Errorf("%d of 200 requests arrived", n)
	}
}

func TestServer_status_isReadiness(t *testing.T) {
	agent := &fakeAgent{err: errors.New("the cache is not filled")}
	err := ask(t.Context(), serve(t, agent), request{Command: cmdStatus})
	if err == nil || err.Error() != "the cache is not filled" || errors.Is(err, errAway) {
		t.Error(err)
	}
}

func TestServer_longError_isCut(t *testing.T) {
	agent := &fakeAgent{err: errors.New(strings.Repeat("\x00", 2*maxMessage))}
	var a answer
	if err := json.Unmarshal([]byte(send(t, dial(t, serve(t, agent)), goodRequest)), &a); err != nil || len(a.Error) > maxErrorText+10 {
		t.Errorf("%v, %d bytes", err, len(a.Error))
	}
}
