package shared

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/sidecar"
)

// newer is a pod of the DaemonSet that is to replace the one before.
type newer struct {
	*fakeNode
	version string // what it answers; "" for nothing
}

// startNewer starts the DaemonSet's next pod.
func (n *fakeNode) startNewer(version string) *newer {
	n.t.Helper()
	own := filepath.Join(n.root, "edge", "run", newerPod)
	if err := os.MkdirAll(own, 0o700); err != nil {
		n.t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(own, versionName))
	if err != nil {
		n.t.Fatal(err)
	}
	out := &newer{n, version}
	n.change(func() { n.newer = out })
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if out.version == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(out.version))
	})}
	go func() { _ = server.Serve(listener) }()
	n.t.Cleanup(func() { _ = server.Close() })
	return out
}

// marked reports whether a pod of the DaemonSet may become ready.
func (n *fakeNode) marked(pod string) bool {
	_, err := os.Stat(filepath.Join(n.root, "edge", "run", pod, servingName))
	return err == nil
}

// The newer pod is the proxy, and becomes ready, once it answers what is in force; an agent that starts then knows.
func TestSucceed_newerAnswers_isTheProxy(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	if !h.marked(proxyPod) {
		t.Error("the first pod is not ready")
	}
	next := h.startNewer("")
	h.rounds(1)
	h.change(func() { next.version = "another" })
	h.rounds(2)
	if h.marked(newerPod) || h.g.proxy.PodUID != proxyPod || h.reloads != 2 {
		t.Errorf("the proxy is %+v after %d signals", h.g.proxy.Container, h.reloads)
	}
	h.change(func() { next.version = h.version })
	h.rounds(1)
	if !h.marked(newerPod) || h.g.proxy.PodUID != newerPod || h.g.state.Confirmed.Container != "container-newer" {
		t.Errorf("the proxy is %+v, noted %+v", h.g.proxy.Container, h.g.state.Confirmed)
	}
	h.g.unlock()
	h.g = newGroup(h.g.Config, "edge")
	h.rounds(1)
	if h.g.proxy.PodUID != newerPod {
		t.Errorf("for the next agent the proxy is %+v", h.g.proxy.Container)
	}
	h.change(func() { h.newer = nil }) // it ends
	h.rounds(1)
	if h.g.proxy.PodUID != proxyPod || h.g.state.Confirmed.Container != h.container {
		t.Errorf("after its end the proxy is %+v", h.g.proxy.Container)
	}
}

// Changes wait for a pod that starts, so that both have the same listeners, and not for one that does not start.
func TestSucceed_newerStarts_changesWait(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.startNewer("")
	h.join("b")
	h.rounds(2)
	h.wantServed("a")
	h.g.newer.since = time.Now().Add(-startLimit)
	h.rounds(2)
	h.wantServed("a", "b")
	if h.marked(newerPod) || !h.g.newer.slow {
		t.Errorf("%+v", h.g.newer)
	}
}

// A newer pod of another group is none that pods' rules would know.
func TestSucceed_newerOfAnotherGroup_olderServes(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	h.g.state.Confirmed.Spec.RunAsGroup++ // as if the profile had another one
	h.startNewer(h.version)
	h.rounds(1)
	if h.g.proxy.PodUID != proxyPod || h.marked(newerPod) {
		t.Errorf("the proxy is %+v", h.g.proxy.Container)
	}
}

// The proxy ends before its successor answers: then the successor is the proxy, whatever it answers.
func TestChoose_olderEnds_newerIsTheProxy(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	version := h.version
	h.startNewer(version)
	h.stopProxy()
	h.rounds(1)
	if h.g.proxy.PodUID != newerPod || h.g.inForceVersion() != version {
		t.Errorf("the proxy is %+v", h.g.proxy.Container)
	}
}

func (g *group) inForceVersion() string {
	if g.state.Confirmed == nil {
		return ""
	}
	return g.state.Confirmed.Version
}

// The directories of pods that are gone are removed, in the end.
func TestSweep_podGone_hasNoDirectory(t *testing.T) {
	t.Parallel()
	d := directory{t.TempDir()}
	old := time.Now().Add(-2 * forgotten)
	for _, name := range []string{"listed", "gone", "new"} {
		own := filepath.Join(d.run(), name)
		err := os.MkdirAll(own, 0o700)
		if name != "new" {
			err = errors.Join(err, os.Chtimes(own, old, old))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := d.sweep([]sidecar.Container{{Labels: sidecar.Labels{PodUID: "listed"}}}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(d.run())
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil || strings.Join(names, " ") != "listed new" {
		t.Errorf("left are %q, error %v", names, err)
	}
}
