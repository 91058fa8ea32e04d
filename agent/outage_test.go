package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

// fakeRuntimeFinder knows another sandbox of the pod than the one that is being made.
type fakeRuntimeFinder struct{ netns string }

func (f fakeRuntimeFinder) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	pod.ID, pod.NetNS = "sandbox-of-before", f.netns
	return pod, nil
}

func (fakeRuntimeFinder) Version(context.Context) (string, error) { return "fake", nil }
func (fakeRuntimeFinder) FirstStart(context.Context, string, func(string) bool) (time.Time, error) {
	return time.Time{}, nil
}

func (fakeRuntimeFinder) Close() error { return nil }

func newNRIRuntime(t *testing.T, dir string) *adaptation.Adaptation {
	t.Helper()
	catchUp := func(ctx context.Context, plugin adaptation.SyncCB) error { _, err := plugin(ctx, nil, nil); return err }
	update := func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
		return nil, nil
	}
	r, err := adaptation.New("test", "1", catchUp, update, adaptation.WithSocketPath(filepath.Join(dir, "nri.sock")),
		adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// start has the runtime start a pod, and returns the error that the kubelet would get, or "".
func (r *testAgent) start(t *testing.T, change func(*api.PodSandbox)) string {
	t.Helper()
	pod := &api.PodSandbox{
		Id: "sandbox-" + fmt.Sprint(time.Now().UnixNano()), Uid: "u1", Namespace: "shop", Name: "cart",
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "ipc"}, {Type: "network", Path: r.netns}}},
	}
	if change != nil {
		change(pod)
	}
	defer r.runtime.BlockPluginSync().Unblock() // as containerd does
	if err := r.runtime.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod}); err != nil {
		t.Errorf("the sandbox is refused: %v", err)
	}
	_, err := r.runtime.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: pod, Container: &api.Container{Id: "c", PodSandboxId: pod.Id}})
	if err != nil {
		return err.Error()
	}
	return ""
}

func (r *testAgent) await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("timed out: %s; readyz says %q", what, answerOf(t, r.health, "/readyz"))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// awaitNRI waits until the runtime has the agent as a plugin: it adds it to its list after the agent has been told of the node's pods. A
// runtime of NRI 0.12 whose plugin leaves before that reads the plugin's name without a lock.
func (r *testAgent) awaitNRI(t *testing.T) {
	t.Helper()
	r.await(t, "NRI", func() bool { return strings.HasPrefix(answerOf(t, r.health, "/readyz/nri"), "200") })
	r.runtime.BlockPluginSync().Unblock()
}

// An agent that starts while the API server is away keeps running, refuses pods that may ask for rules, lets those pass that cannot,
// reports this at /readyz, and works as soon as the API server is back.
func TestAnAgentThatStartsWithoutAPIServer(t *testing.T) {
	server := newPodAPI(t)
	r := runAgent(t, "http://"+server.addr, false)
	r.awaitNRI(t)
	if got := r.start(t, nil); !strings.Contains(got, "the agent has not read its pods yet: the API server does not answer, since ") {
		t.Errorf("a pod that may have asked: %q", got)
	}
	for name, change := range map[string]func(*api.PodSandbox){
		"an excluded namespace": func(p *api.PodSandbox) { p.Namespace = "kube-system" },
		"the host's network":    func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] },
		"the host's by a path":  func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = "/proc/self/ns/net" },
		"a static pod":          func(p *api.PodSandbox) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} },
	} {
		if got := r.start(t, change); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	r.await(t, "the reason at readyz", func() bool {
		return strings.Contains(answerOf(t, r.health, "/readyz"), "cache: the agent has not read its pods yet: the API server does not answer, since ")
	})
	wantAnswer(t, r.health, "/healthz", "200 ok")
	server.serve(t, "list")
	r.await(t, "the API server", func() bool { return answerOf(t, r.health, "/readyz") == "200 ok: cache, runtime, ports, nri" })
	if got := r.start(t, nil); got != "" || r.applied.Load() == 0 {
		t.Errorf("the pod is refused: %q, applied %v", got, r.applied.Load())
	}
	other := kerneltest.New(t).Path()
	if got := r.start(t, func(p *api.PodSandbox) { p.Uid, p.Linux.Namespaces[1].Path = "u2", other }); got == "" || r.elsewhere.Load() > 0 {
		t.Errorf("another pod's sandbox: %q, applied %v", got, r.elsewhere.Load())
	}
	r.refusesPathsToTheHost(t)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// refusesPathsToTheHost starts a pod that has a network of its own, with events whose paths lead to the host's namespace.
func (r *testAgent) refusesPathsToTheHost(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	link, bind := filepath.Join(dir, "link"), filepath.Join(dir, "bind")
	if err := errors.Join(os.Symlink("/proc/self/ns/net", link), os.WriteFile(bind, nil, 0o600), unix.Mount("/proc/self/ns/net", bind, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(bind, unix.MNT_DETACH) //nolint:errcheck // the test ends
	for _, path := range []string{
		"/proc/self/ns/net", "/proc/1/ns/net", fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), link, bind,
		"", "proc/self/ns/net", "/proc/self/fd/../ns/net", dir + "/../../proc/self/ns/net", "/nonexistent",
	} {
		if got := r.start(t, func(p *api.PodSandbox) { p.Linux.Namespaces[1].Path = path }); !strings.Contains(got, "refuses pod shop/cart") {
			t.Errorf("%q: %q", path, got)
		}
	}
	if got := r.start(t, func(p *api.PodSandbox) { p.Linux.Namespaces = p.Linux.Namespaces[:1] }); !strings.Contains(got, "refuses pod") {
		t.Errorf("no network: %q", got)
	}
	if n := r.elsewhere.Load(); n > 0 {
		t.Errorf("the backend was called %d times", n)
	}
}

// With fail-open, pods start while the API server is away.
func TestAnAgentThatFailsOpen(t *testing.T) {
	r := runAgent(t, "http://"+newPodAPI(t).addr, true)
	r.awaitNRI(t)
	if got := r.start(t, nil); got != "" {
		t.Errorf("refused: %q", got)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if r.ready.liveCheck == nil || len(r.announcers) != 1 {
		t.Errorf("no liveness check, or %d hooks that announce sandboxes", len(r.announcers))
	}
}

// The agent ends in time also while the API server refuses connections, does not answer, or does not answer lists.
func TestTheAgentEndsBeforeItKnowsItsPods(t *testing.T) {
	for _, way := range []string{"refused", "silent", "no list"} {
		t.Run(way, func(t *testing.T) {
			server := newPodAPI(t)
			if way != "refused" {
				server.serve(t, way)
			}
			r := runAgent(t, "http://"+server.addr, false)
			r.await(t, "health", func() bool { return strings.HasPrefix(answerOf(t, r.health, "/readyz"), "500") })
			r.awaitNRI(t)
			if way == "no list" {
				server.await(t, "/api/v1/pods")
			}
			began := time.Now()
			if err := r.stop(); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the end took %s", took)
			}
		})
	}
}

// podAPI is an API server with one pod, which asks for redirection. Until serve is called it refuses connections.
type podAPI struct {
	addr  string
	mu    sync.Mutex
	asked map[string]bool
}

func newPodAPI(t *testing.T) *podAPI {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &podAPI{addr: l.Addr().String(), asked: map[string]bool{}}
}

// serve starts the API server: "list" answers everything, "no list" everything but objects, "silent" nothing.
func (a *podAPI) serve(t *testing.T, way string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", a.addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.asked[r.URL.Path] = true
		a.mu.Unlock()
		text, ok := podObjects[r.URL.Path]
		kinds := strings.Contains(text, "Group") || strings.Contains(text, "APIVersions") || strings.Contains(text, "APIResourceList")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case way == "silent", way == "no list" && !kinds, r.URL.Query().Get("watch") != "" && r.URL.Query().Get("sendInitialEvents") == "":
			<-r.Context().Done()
		case !ok || r.URL.Query().Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		default:
			_, _ = io.Copy(w, bytes.NewBufferString(text))
		}
	})}
	go s.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { _ = s.Close() })
}

func (a *podAPI) wasAsked(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[path]
}

func (a *podAPI) await(t *testing.T, path string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if a.wasAsked(path) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s is not requested", path)
		case <-time.After(time.Millisecond):
		}
	}
}

const podCart = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"cart","namespace":"shop","uid":"u1","resourceVersion":"1",
	"annotations":{"istio-pod-network-controller/initialize":"true"}},"spec":{"nodeName":"node","containers":[{"name":"app"},{"name":"istio-proxy"}]}}`

const nsShop = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"shop","resourceVersion":"1"}}`

var podObjects = map[string]string{
	"/api":  `{"kind": "APIVersions", "versions": ["v1"]}`,
	"/apis": `{"kind": "APIGroupList", "groups": []}`,
	"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
		{"name": "pods", "namespaced": true, "kind": "Pod", "verbs": ["list", "watch"]},
		{"name": "nodes", "namespaced": false, "kind": "Node", "verbs": ["list", "watch"]},
		{"name": "namespaces", "namespaced": false, "kind": "Namespace", "verbs": ["list", "watch"]}]}`,
	"/api/v1/pods":                      `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + podCart + `]}`,
	"/api/v1/namespaces":                `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[` + nsShop + `]}`,
	"/api/v1/namespaces/shop/pods/cart": podCart,
	"/api/v1/namespaces/shop":           nsShop,
}
