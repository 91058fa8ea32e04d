package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/runtime/kubelet"
	"istio-pod-network-controller/test/standins/kubeletstandin"
)

// serveKubelet serves pods as a kubelet does, at a socket of its own.
func serveKubelet(t *testing.T, pods ...string) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := kubeletstandin.New(filepath.Join(dir, "pods-api.sock"))
	for _, text := range pods {
		pod := &corev1.Pod{}
		if err := json.Unmarshal([]byte(text), pod); err != nil {
			t.Fatal(err)
		}
		k.Put(pod)
	}
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k.Socket
}

// keepNamespace writes what an earlier agent has kept: the namespace shop, which asks for its pods.
func keepNamespace(t *testing.T, seen time.Time) (dir string) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "namespaces.json")
	const text = `[{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"shop","annotations":{"istio-pod-network-controller/initialize":"true"}}}]`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(dir, "nodes.json")
	if err := errors.Join(os.WriteFile(node, []byte(`[{"metadata":{"name":"node"}}]`), 0o600), os.Chtimes(node, seen, seen), os.Chtimes(file, seen, seen)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Neither its annotation: its namespace asks.
const (
	podPlain  = `{"metadata":{"name":"cart","namespace":"shop","uid":"u1"},"spec":{"nodeName":"node","containers":[{"name":"app"},{"name":"istio-proxy"}]}}`
	podStatic = `{"metadata":{"name":"static-node","namespace":"shop","uid":"hash","annotations":{"kubernetes.io/config.source":"file"}},
	"spec":{"nodeName":"node","containers":[{"name":"app"},{"name":"istio-proxy"}]}}`
)

// A node whose agent starts while the API server is away has its kubelet's pods, and what namespaces asked for when they were seen last.
func TestAnAgentThatStartsWithAKubeletAlone(t *testing.T) {
	server, seen := newPodAPI(t), time.Now().Add(-time.Hour).Truncate(time.Second)
	socket, dir := serveKubelet(t, podPlain, podStatic), keepNamespace(t, seen)
	r := runAgent(t, "http://"+server.addr, false, func(o *Options) {
		o.PodsFrom, o.KubeletSocket, o.KeepDir, o.StartupTaint = string(kubelet.Kubelet), socket, dir, true
	})
	r.awaitNRI(t)
	r.await(t, "the core", r.core.isSet)
	if got := r.start(t, nil); got != "" || r.applied.Load() == 0 {
		t.Errorf("a pod is refused: %q, applied %d", got, r.applied.Load())
	}
	before := r.applied.Load()
	static := func(p *api.PodSandbox) {
		p.Name, p.Uid, p.Annotations = "static-node", "hash", map[string]string{"kubernetes.io/config.source": "file"}
	}
	if got := r.start(t, static); got != "" || r.applied.Load() == before {
		t.Errorf("a static pod is refused: %q, applied %d after %d", got, r.applied.Load(), before)
	}
	if at := r.core.kept.Since(); !at.Equal(seen) {
		t.Errorf("namespaces are of %s, want %s", at, seen)
	}
	if got := answerOf(t, r.health, "/readyz"); strings.HasPrefix(got, "200") || !strings.Contains(got, "cache: namespaces and profiles are those of "+seen.UTC().Format(time.RFC3339)) {
		t.Errorf("readyz says %q", got)
	}
	server.serve(t, "list")
	r.await(t, "the API server", func() bool { return r.core.kept.Since().IsZero() && r.core.contact.Err() == nil })
	if from := r.core.podsFrom(); from != "kubelet" {
		t.Errorf("pods come from %q", from)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// A release that cannot ask the API server does not take over from an agent that serves, whatever was kept: pods of namespaces that it does not know would
// not start. Once that agent is gone, there is no better one.
func TestAgent_cannotAskAndAnotherServes_beginsWithNothingKept(t *testing.T) {
	server := newPodAPI(t)
	socket, dir := serveKubelet(t, podPlain), keepNamespace(t, time.Now().Add(-time.Hour))
	var other taking
	r := runAgent(t, "http://"+server.addr, false, func(o *Options) {
		o.PodsFrom, o.KubeletSocket, o.KeepDir = string(kubelet.Kubelet), socket, dir
		other = take(t, o.NRI.Socket, filledCore())
		other.wantLocked(t, "the predecessor")
	})
	r.await(t, "the loss of contact", func() bool { return r.core.contact.Err() != nil })
	<-time.After(5 * time.Second) // kept objects are used after two
	if r.core.isSet() {
		t.Error("it took over")
	}
	other.stop()
	r.awaitNRI(t)
	r.await(t, "the core", r.core.isSet)
	r.await(t, "its own lock", r.core.doors[0].othersServe)
	if !r.core.isAlone() {
		t.Error("it takes itself for another agent: kinds whose watch comes later do not begin with what was kept")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// Without a kubelet that serves its pods, an agent that may not ask the API server for them says why it is not ready.
func TestAnAgentWhoseKubeletServesNoPods(t *testing.T) {
	server := newPodAPI(t)
	server.serve(t, "list")
	r := runAgent(t, "http://"+server.addr, false, func(o *Options) { o.PodsFrom, o.KubeletSocket = string(kubelet.Kubelet), "/nonexistent/pods-api.sock" })
	r.awaitNRI(t)
	r.await(t, "the reason at readyz", func() bool {
		return strings.Contains(answerOf(t, r.health, "/readyz"), "the agent has not read its pods yet: ask the kubelet at /nonexistent/pods-api.sock for its pods:")
	})
	if got := r.start(t, nil); !strings.Contains(got, "/nonexistent/pods-api.sock") {
		t.Errorf("a pod that may ask: %q", got)
	}
	if server.wasAsked("/api/v1/pods") {
		t.Error("the API server was asked for pods")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// The other way round: pods of the API server until a kubelet serves them.
func TestAnAgentWhoseKubeletComesLater(t *testing.T) {
	server := newPodAPI(t)
	server.serve(t, "list")
	r := runAgent(t, "http://"+server.addr, false, func(o *Options) { o.PodsFrom, o.KubeletSocket = string(kubelet.Auto), "/nonexistent/pods-api.sock" })
	r.awaitNRI(t)
	r.await(t, "the core", r.core.isSet)
	if got := r.start(t, nil); got != "" || r.core.podsFrom() != "api" {
		t.Errorf("a pod is refused: %q; pods come from %q", got, r.core.podsFrom())
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
