package node

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// A proxy is asked inside its pod's namespace, and by its own epoch's socket where two share a port.
func TestAsk_eachKindOfReadiness_isAsked(t *testing.T) {
	ns := kerneltest.New(t)
	tcp := kerneltest.ListenTCP(t, ns, kerneltest.Owner{}, false, "127.0.0.1:7001")
	go kerneltest.Answer(tcp, "x")
	servePages(t, ns)
	e := namespaces(t)
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1", NetNS: ns.Path()}
	dir, err := os.MkdirTemp("", "homes") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := asker{namespaces: e, homes: home.Homes{Root: dir}}
	run := a.homes.Of(s.Key()).Run()
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	listenUnix(t, filepath.Join(run, "admin"))
	go answerLine(listenUnix(t, filepath.Join(run, profile.HandoverSocket(1))))
	listenUnix(t, filepath.Join(run, profile.HandoverSocket(3))) // which nobody answers
	kerneltest.ListenTCP(t, ns, kerneltest.Owner{}, false, "127.0.0.1:7005")
	outside := filepath.Join(dir, "outside")
	listenUnix(t, outside)
	if err := errors.Join(os.Symlink(outside, filepath.Join(run, "link")), os.WriteFile(filepath.Join(run, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		readiness profile.Probe
		handover  profile.Handover
		epoch     uint32
		ready     bool
	}{
		"a port":                         {readiness: profile.Probe{TCPPort: 7001}, ready: true},
		"a port where nobody listens":    {readiness: profile.Probe{TCPPort: 7003}},
		"a page":                         {readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Port: 7002, Path: "/ready"}}, ready: true},
		"a page elsewhere, not followed": {readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Port: 7002, Path: "/moved"}}, ready: true},
		"a page that says no":            {readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Port: 7002, Path: "/down"}}},
		"a page that is not answered":    {readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Port: 7004, Path: "/ready"}}},
		"a socket":                       {readiness: profile.Probe{Socket: "admin"}, ready: true},
		"no socket":                      {readiness: profile.Probe{Socket: "none"}},
		"a link to a socket":             {readiness: profile.Probe{Socket: "link"}},
		"a file":                         {readiness: profile.Probe{Socket: "file"}},
		"a port, by its own socket":      {readiness: profile.Probe{TCPPort: 7001}, handover: profile.HandoverHAProxy, epoch: 1, ready: true},
		"a port, by a socket of its own that nobody answers": {
			readiness: profile.Probe{TCPPort: 7001}, handover: profile.HandoverHAProxy, epoch: 3,
		},
		"a port whose process accepts nothing": {readiness: profile.Probe{TCPPort: 7005}},
		"a socket of its own, no port":         {readiness: profile.Probe{TCPPort: 7003}, handover: profile.HandoverHAProxy, epoch: 1},
		"a port of another epoch":              {readiness: profile.Probe{TCPPort: 7001}, handover: profile.HandoverHAProxy, epoch: 2},
	} {
		p := &profile.Version{Spec: profile.Spec{Readiness: c.readiness, Handover: c.handover}}
		if err := a.Ask(t.Context(), s, p, c.epoch, probe.Ready); c.ready != (err == nil) {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && strings.Contains(err.Error(), "127.0.0.1:") {
			t.Errorf("%s: the words are others each time: %v", name, err)
		}
	}
}

// servePages serves pages on port 7002, and on port 7004 ends each connection.
func servePages(t *testing.T, ns *netns.NS) {
	t.Helper()
	web := kerneltest.ListenTCP(t, ns, kerneltest.Owner{}, false, "127.0.0.1:7002")
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/down", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	go func() { _ = http.Serve(web, mux) }() //nolint:gosec // a test's server

	closing := kerneltest.ListenTCP(t, ns, kerneltest.Owner{}, false, "127.0.0.1:7004")
	go func() {
		for conn, err := closing.Accept(); err == nil; conn, err = closing.Accept() {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
}

// answerLine answers each line as HAProxy does on its admin socket.
func answerLine(l net.Listener) {
	for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
		if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			_, _ = conn.Write([]byte("Name: HAProxy\n"))
		}
		_ = conn.Close()
	}
}

func listenUnix(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
