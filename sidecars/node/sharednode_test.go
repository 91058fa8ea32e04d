package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/test/kerneltest"
)

// sharedNode is a container runtime with a pod's sandbox, and with the proxy of the profile shared as a process that takes its files when it
// gets the reload signal.
type sharedNode struct {
	criv1.UnimplementedRuntimeServiceServer
	t   *testing.T
	dir string // of the profile

	mu      sync.Mutex
	made    bool
	process *exec.Cmd // nil while the proxy does not run
	answers net.Listener
}

// proxyPod is the UID of the proxy's pod.
const proxyPod = "proxy-pod"

const proxyScript = `cd "$1"
take() { cp files/current/proxy.cfg taken.new && mv taken.new taken; }
trap take USR2
until [ -e files/current/proxy.cfg ]; do sleep 0.1; done
take
while :; do sleep 1000 & wait $!; done`

// start starts the proxy. What it has taken is answered by this process, whose group the profile has.
func (n *sharedNode) start() {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Join(n.dir, "run", proxyPod), 0o700); err != nil {
		n.t.Fatal(err)
	}
	answers, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", filepath.Join(n.dir, "run", proxyPod, "version.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		version, _, ok := strings.Cut(n.taken(), "\n")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(version))
	})}
	go func() { _ = server.Serve(answers) }()
	process := exec.CommandContext(n.t.Context(), "sh", "-c", proxyScript, "proxy", n.dir)
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := process.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made, n.process, n.answers = true, process, answers
}

// taken is the configuration that the proxy has.
func (n *sharedNode) taken() string {
	text, _ := os.ReadFile(filepath.Join(n.dir, "taken"))
	return string(text)
}

// stop ends the proxy. The runtime does not say so: the agent sees it by the process.
func (n *sharedNode) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		_ = n.answers.Close()
		_ = syscall.Kill(-n.process.Process.Pid, syscall.SIGKILL)
		_ = n.process.Wait()
	}
	n.process = nil
}

func (n *sharedNode) ListPodSandbox(context.Context, *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	return &criv1.ListPodSandboxResponse{Items: []*criv1.PodSandbox{{
		Id: "proxy-sandbox", Metadata: &criv1.PodSandboxMetadata{Namespace: "agents"}, Labels: map[string]string{sidecar.LabelShared: "shared"},
	}}}, nil
}

func (n *sharedNode) PodSandboxStatus(context.Context, *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	return &criv1.PodSandboxStatusResponse{Status: &criv1.PodSandboxStatus{}}, nil // which is ready
}

func (n *sharedNode) ListContainers(context.Context, *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.made {
		return &criv1.ListContainersResponse{}, nil
	}
	return &criv1.ListContainersResponse{Containers: []*criv1.Container{{
		Id: "proxy-1", PodSandboxId: "proxy-sandbox", Metadata: &criv1.ContainerMetadata{Name: "proxy"}, State: criv1.ContainerState_CONTAINER_RUNNING,
		Image: &criv1.ImageSpec{UserSpecifiedImage: "localhost/proxy:1"}, Labels: map[string]string{"io.kubernetes.pod.uid": proxyPod},
	}}}, nil
}

func (n *sharedNode) ContainerStatus(context.Context, *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pid := 0
	if n.process != nil {
		pid = n.process.Process.Pid
	}
	return &criv1.ContainerStatusResponse{
		Status: &criv1.ContainerStatus{State: criv1.ContainerState_CONTAINER_RUNNING}, Info: map[string]string{"info": fmt.Sprintf(`{"pid":%d}`, pid)},
	}, nil
}

func (n *sharedNode) ExecSync(_ context.Context, r *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	out := &criv1.ExecSyncResponse{}
	if _, err := os.Stat(filepath.Join(n.dir, r.GetCmd()[1])); err != nil {
		out.ExitCode, out.Stderr = 1, []byte(err.Error())
	}
	return out, nil
}

// switching reads what a test says at the moment.
type switching struct {
	mu  sync.Mutex
	now client.Reader
}

func (c *switching) set(now client.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *switching) reader() client.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *switching) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	return c.reader().Get(ctx, key, into, o...)
}

func (c *switching) List(ctx context.Context, into client.ObjectList, o ...client.ListOption) error {
	return c.reader().List(ctx, into, o...)
}

// runner is a manager.Manager that notes what is added.
type runner struct {
	manager.Manager
	added []manager.Runnable
}

func (r *runner) Add(what manager.Runnable) error {
	r.added = append(r.added, what)
	return nil
}

// wired is a pod that changes its profile, on a node whose shared proxies are looked after as in the agent.
type wired struct {
	*changing
	node         *sharedNode
	metrics      *prometheus.Registry
	cached, live *switching
}

func newWired(t *testing.T) *wired {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "shared") //nolint:usetesting // it has to be in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	w := &wired{changing: newChanging(t), metrics: prometheus.NewRegistry(), cached: &switching{}, live: &switching{}}
	w.node = &sharedNode{t: t, dir: filepath.Join(root, "shared")}
	path := fmt.Sprintf("%s/agent-test-%d", netnsDirectories()[0], os.Getpid())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	namedBy(t, kerneltest.New(t).Path(), path)
	w.sandbox.NetNS = path
	for _, p := range append(w.more, w.profile) {
		if p.Spec.Container != nil {
			p.Spec.Container.RunAsGroup = int64(os.Getgid())
		}
		if h := p.Spec.Shared; h != nil {
			h.RunAsGroup = int64(os.Getgid())
			h.Files = []v1alpha1.File{{Name: "proxy.cfg", Template: "{{ .Version }}\n{{ range .Pods }}{{ .NetNS }} {{ .Namespace }}/{{ .Name }}\n{{ end }}"}}
			h.Check, h.ReloadSignal = []string{"check", "files/next/proxy.cfg"}, "USR2"
		}
	}
	w.changing.choose("shared") // which reads the profiles as they are now
	w.cluster.profiles.cache = w.cached
	w.chooses("shared")
	c := Config{SharedRoot: root, Node: "node-1", AgentNamespace: "agents", Namespaces: namespaces(t)}
	added := &runner{}
	w.cluster.pods = controllers.Reader{Cache: w.cached, Live: w.live}
	if err := addShared(added, w.metrics, c, w.Proxies, reaching(t, w.node)); err != nil || len(added.added) != 1 {
		t.Fatalf("%d parts of the agent, error %v", len(added.added), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { _ = added.added[0].Start(ctx) })
	t.Cleanup(func() { cancel(); working.Wait() })
	t.Cleanup(w.node.stop)
	return w
}

// chooses has the pod choose a profile.
func (w *wired) chooses(profile string) {
	w.pod.Annotations[intent.KeySidecar] = profile
	now := w.read(w.t)
	w.cached.set(now.pods.Cache)
	w.live.set(now.pods.Live)
}

// served waits until the shared proxy serves the pod, or does not, and has it in its files or not.
func (w *wired) served(step string, want bool) {
	w.t.Helper()
	line := filepath.Base(w.sandbox.NetNS) + " shop/cart\n"
	var got, known bool
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		got, known = w.shared.Serves("shared", w.sandbox)
		if known && got == want && strings.Contains(w.node.taken(), line) == want {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	w.reports.mu.Lock()
	defer w.reports.mu.Unlock()
	w.t.Fatalf("%s: served %v, known %v, want %v; the proxy has %q, reported is %+v", step, got, known, want, w.node.taken(), w.reports.reports)
}

// The agent's manager of shared proxies keeps a pod that chooses another profile, lets it go once its rules are gone, and has it back.
func TestAddShared_podChoosesAnother_keepsTheSharedProxy(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.must("there is no proxy yet", "shared", false)
	w.node.start()
	w.served("it has chosen the shared one", true)
	if ready, known := w.Ready(w.sandbox); !ready || !known {
		t.Errorf("ready %v, known %v", ready, known)
	}
	if got := valuesOf(t, w.metrics); got["shared_proxy_pods shared served"] != 1 || got["shared_proxy_up shared"] != 1 || got["shared_proxy_newest shared"] != 1 || got["shared_proxy_reloads_total shared applied"] != 2 || // the first without pods
		got["shared_proxy_reloads_total shared failed"] != 0 || got["shared_proxy_change_duration_seconds shared"] != 1 {
		t.Errorf("metrics %v", got)
	}
	w.chooses("edge")
	w.must("it has chosen one of its own", "shared", true)
	w.shared.Notify("shared")
	<-time.After(1500 * time.Millisecond) // a round
	w.served("it has chosen one of its own", true)
	w.chooses(intent.SidecarNone)
	w.shared.Notify("shared")
	<-time.After(1500 * time.Millisecond)
	w.served("its rules are not gone yet", true)
	w.Led(w.sandbox, nil)
	w.Follow(w.sandbox, controllers.Watch, "")
	w.served("its rules are gone", false)
	w.chooses("shared")
	w.must("it has chosen the shared one again", "shared", false)
	w.served("it is back", true)
	w.node.stop()
	for end := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) {
		ready, known := w.Ready(w.sandbox)
		if got := valuesOf(t, w.metrics); !ready && known && got["shared_proxy_up shared"] == 0 && got["shared_proxy_pods shared waiting"] == 1 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the proxy has ended: ready %v, known %v, metrics %v", ready, known, got)
		}
	}
	w.must("the proxy has ended", "shared", false)
}
