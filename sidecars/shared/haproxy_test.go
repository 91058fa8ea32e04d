package shared

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// visitors returns how many pods come to the proxy and leave it, one after the other: 4, or what SHARED_PROXY_VISITORS says.
func visitors(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SHARED_PROXY_VISITORS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SHARED_PROXY_VISITORS: %v", err)
	}
	return n
}

// What the agent's rules do in a pod.
const redirected = `table ip redirected {
	chain output {
		type nat hook output priority -100
		ip saddr 127.0.0.6 return
		meta skgid 1337 return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15101
	}
	chain prerouting {
		type nat hook prerouting priority -100
		meta l4proto tcp redirect to :15106
	}
}`

// realProxy is HAProxy with the sample's configuration and command. Each pod of it is in a network namespace of its own, as those of the
// chart's DaemonSet.
type realProxy struct {
	*fakeNode
	words   *strings.Replacer // the paths here for those in the container
	command string

	daemons struct {
		sync.Mutex
		running []*daemonPod // oldest first
		made    int
	}
}

// daemonPod is a pod of the DaemonSet with its container.
type daemonPod struct {
	sidecar.Container
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *realProxy) Find(context.Context, string) (out []sidecar.Container, err error) {
	p.daemons.Lock()
	defer p.daemons.Unlock()
	for _, d := range p.daemons.running {
		select {
		case <-d.done:
		default:
			out = append(out, d.Container)
		}
	}
	if len(out) == 0 {
		return nil, sidecar.ErrGone
	}
	return out, nil
}

func (p *realProxy) container(id string) *daemonPod {
	p.daemons.Lock()
	defer p.daemons.Unlock()
	i := slices.IndexFunc(p.daemons.running, func(d *daemonPod) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return p.daemons.running[i]
}

func (p *realProxy) newest() *daemonPod {
	p.daemons.Lock()
	defer p.daemons.Unlock()
	return p.daemons.running[len(p.daemons.running)-1]
}

func (p *realProxy) Check(ctx context.Context, id string, command []string) (string, bool, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = p.container(id).cmd.Env
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", false, err
	}
	return string(out), err == nil, nil
}

func (p *realProxy) Signal(ctx context.Context, id string, s unix.Signal) error {
	if err := p.first(ctx, &p.telling); err != nil {
		return err
	}
	return p.container(id).cmd.Process.Signal(s)
}

func (p *realProxy) Wait(ctx context.Context, id string) error {
	select {
	case <-p.container(id).done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startReal starts the proxy's first pod.
func startReal(t *testing.T, n *fakeNode) *realProxy {
	t.Helper()
	dir := filepath.Join(n.root, "edge")
	p := &realProxy{fakeNode: n, words: strings.NewReplacer("/etc/sidecar/", dir+"/files/", "/run/sidecar/", dir+"/run/",
		"/usr/sbin/haproxy", kerneltest.ProgramPath(t, "haproxy"), "sleep 1;", "sleep 0.1;")}
	var sample v1alpha1.ProxyProfile
	if err := yaml.UnmarshalStrict(p.sample(t, "proxy-profile-shared.yaml"), &sample); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.profile.Spec, err = profile.SpecOf(&sample.Spec); err != nil {
		t.Fatal(err)
	}
	n.profile.Spec.NamespaceSelector, n.profile.Spec.RunAsGroup = &metav1.LabelSelector{}, 1337
	var values struct {
		Proxies struct{ Shared []struct{ Args []string } }
	}
	if err := yaml.Unmarshal(p.sample(t, "values-shared-proxy.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	p.command = values.Proxies.Shared[0].Args[0]
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o755); err != nil { // as the kubelet does
		t.Fatal(err)
	}
	p.start(t, p.command)
	return p
}

func (p *realProxy) sample(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../config/samples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(p.words.Replace(string(text)))
}

// start starts another pod with a command.
func (p *realProxy) start(t *testing.T, command string) *daemonPod {
	t.Helper()
	p.daemons.Lock()
	defer p.daemons.Unlock()
	p.daemons.made++
	d := &daemonPod{
		Container: sidecar.Container{ID: fmt.Sprintf("container-%d", p.daemons.made), Image: "haproxy", Labels: sidecar.Labels{PodUID: fmt.Sprintf("pod-%d", p.daemons.made)}},
		done:      make(chan struct{}),
	}
	// The kernel keeps signals without a handler from the first process of a container, which this one is not.
	d.cmd = exec.CommandContext(t.Context(), "sh", "-c", "trap : USR2\n"+command)
	d.cmd.Env = append(os.Environ(), "POD_UID="+d.PodUID)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: 1337}}
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) } // the first process ends its workers
	if err := kerneltest.New(t).Inside(d.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go func() { _ = d.cmd.Wait(); close(d.done) }()
	t.Cleanup(func() { <-d.done })
	p.daemons.running = append(p.daemons.running, d)
	return d
}

// realPod names a network namespace as the runtime does, and returns the sandbox in it.
func (p *realProxy) realPod(t *testing.T, name string, ns *netns.NS) podnet.Sandbox {
	t.Helper()
	const names = "/var/run/netns"
	if err := os.MkdirAll(names, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(names, fmt.Sprintf("shared-test-%d-%s", os.Getpid(), name))
	if err := os.Symlink(ns.Path(), path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	return p.pod(name, func(f *fakePod) { f.sandbox.NetNS = path })
}

// load makes connections one after the other until the test stops it, and counts.
type load struct {
	stop   context.CancelFunc
	ended  sync.WaitGroup
	made   atomic.Int64
	failed atomic.Pointer[error]
}

func startLoad(t *testing.T, from *netns.NS, to, banner string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	for range 4 {
		l.ended.Go(func() {
			for ctx.Err() == nil {
				reply, err := kerneltest.Dial(context.WithoutCancel(ctx), from, kerneltest.App, "", to)
				if err == nil && reply.Banner != banner {
					err = fmt.Errorf("%q answered, want %q", reply.Banner, banner)
				}
				if err != nil {
					l.failed.Store(&err)
				}
				l.made.Add(1)
			}
		})
	}
	t.Cleanup(func() { cancel(); l.ended.Wait() })
	return l
}

func (l *load) wantKept(t *testing.T, what string) {
	t.Helper()
	l.stop()
	l.ended.Wait()
	if err := l.failed.Load(); err != nil {
		t.Errorf("%s: of %d connections one failed: %v", what, l.made.Load(), *err)
	} else if l.made.Load() < 100 {
		t.Errorf("%s: only %d connections", what, l.made.Load())
	}
}

// HAProxy with the sample's configuration serves a pod in both directions, and loses none of its connections while others come and go.
func TestHAProxy_reload_losesNoConnection(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	kerneltest.Listen(t, world, kerneltest.App, "world", 8080)
	kerneltest.Listen(t, pod, kerneltest.App, "app", 8080)
	kerneltest.Shell(t, pod, "nft -f -", redirected)
	p, m := serveReal(t)
	p.join(t, m, "busy", pod)
	out, in := startLoad(t, pod, kerneltest.Outside4+":8080", "world:8080"), startLoad(t, world, kerneltest.Pod4+":8080", "app:8080")
	comers := visitors(t)
	for i := range comers {
		s := p.join(t, m, fmt.Sprintf("visitor-%d", i), kerneltest.New(t))
		p.edit(s, func(f *fakePod) { f.gone, f.stopped = true, true })
		m.Unfollow(s.UID)
		p.unserved(m, s)
	}
	out.wantKept(t, "outbound")
	in.wantKept(t, "inbound")
	t.Logf("%d outbound and %d inbound connections over %d reloads", out.made.Load(), in.made.Load(), 2*comers)
}
