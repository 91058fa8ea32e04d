package shared

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/test/kerneltest"
)

// serveReal has a Manager serve pods by HAProxy.
func serveReal(t *testing.T, change ...func(*Manager)) (*realProxy, *Manager) {
	t.Helper()
	n := newNode(t)
	p := startReal(t, n)
	m := New(Config{Cluster: n, Proxies: p, Sandboxes: n, Reporter: n, Root: n.root, Node: "node-1"})
	for _, f := range change {
		f(m)
	}
	p.run(t, m)
	return p, m
}

// run has an agent work. stop ends it.
func (p *realProxy) run(t *testing.T, m *Manager) (stop func()) {
	t.Helper()
	working, done := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { _ = m.Start(working) })
	stop = func() { done(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

// join has a pod served.
func (p *realProxy) join(t *testing.T, m *Manager, name string, ns *netns.NS) podnet.Sandbox {
	t.Helper()
	s := p.realPod(t, name, ns)
	m.Follow(s, "edge")
	p.isServed(m, s)
	return s
}

func (p *realProxy) isServed(m *Manager, s podnet.Sandbox) {
	p.t.Helper()
	p.eventually(s.Name+" is served", func() bool { ok, _ := m.Serves("edge", s); return ok })
}

// takePorts has root's application of a pod listen on the proxy's ports. It lets others in on its port while it binds it, as the proxy does, if
// beside is set, and then no more.
func takePorts(t *testing.T, ns *netns.NS, beside bool) (give func()) {
	t.Helper()
	var fds []int
	give = sync.OnceFunc(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
	t.Cleanup(give)
	for _, port := range []int{15101, 15106} {
		fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if beside {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: port})
		}
		if err == nil {
			err = unix.Listen(fd, 10)
		}
		if err == nil && beside {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return give
}

// Root in a pod may end the proxy's listeners there, and take their ports. Other pods come and go all the same.
func TestHAProxy_applicationTakesListeners_othersStay(t *testing.T) {
	kerneltest.ProgramPath(t, "ss")
	p, m := serveReal(t)
	hostile := kerneltest.New(t)
	p.join(t, m, "hostile", hostile)
	for i, kill := range []string{"true", "ss -K -ltn state listening >/dev/null"} {
		kerneltest.Shell(t, hostile, kill, "")
		give := takePorts(t, hostile, true)
		began := time.Now()
		p.join(t, m, fmt.Sprintf("other-%d", i), kerneltest.New(t))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("another pod has joined after %s", took)
		}
		give()
	}
}

// inTheLastMoment takes the ports of a pod as soon as they were found free.
type inTheLastMoment struct {
	Sandboxes
	hostile string
	take    func()
	mu      sync.Mutex
	looks   []time.Time
}

func (l *inTheLastMoment) Free(ctx context.Context, s podnet.Sandbox, ports []uint16) error {
	if s.Name != l.hostile {
		return l.Sandboxes.Free(ctx, s, ports)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.looks = append(l.looks, time.Now()); len(l.looks) > 1 {
		return fmt.Errorf("%w: port %d", sidecars.ErrPortTaken, ports[0])
	}
	l.take()
	return nil
}

// A pod that takes the proxy's ports after they were found free keeps nobody out but itself, and is found out at once.
func TestHAProxy_portTakenLate_othersStay(t *testing.T) {
	hostile := kerneltest.New(t)
	at := &inTheLastMoment{hostile: "hostile", take: func() { takePorts(t, hostile, false) }}
	p, m := serveReal(t, func(m *Manager) { at.Sandboxes, m.Sandboxes = m.Sandboxes, at })
	p.join(t, m, "busy", kerneltest.New(t))
	s, other := p.realPod(t, "hostile", hostile), p.realPod(t, "other", kerneltest.New(t))
	m.Follow(s, "edge")
	m.Follow(other, "edge")
	p.eventually("the pod says who has the port", func() bool {
		return strings.Contains(p.status(s).Failure, "port 15106") || strings.Contains(p.status(s).Failure, "port 15101")
	})
	p.isServed(m, other)
	const calm = 3 * time.Second
	pause(t.Context(), calm)
	at.mu.Lock()
	defer at.mu.Unlock()
	if n := len(at.looks); n < 2 || n > 2 && at.looks[2].Sub(at.looks[1]) < calm {
		t.Errorf("looked at %v, want twice, and not again for %s", at.looks, calm)
	}
	if ok, _ := m.Serves("edge", s); ok {
		t.Error("served")
	}
}

// fill has a pod open as many connections as it can, and keep them.
func fill(t *testing.T, from *netns.NS, to string, n int) (open int) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				var c net.Conn
				err := kerneltest.As(from, kerneltest.App, func() (err error) {
					c, err = (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", to)
					return err
				})
				if err != nil {
					continue
				}
				mu.Lock()
				open++
				mu.Unlock()
				t.Cleanup(func() { _ = c.Close() })
			}
		})
	}
	all.Wait()
	return open
}

// Pods of one namespace that open as many connections as they can leave room for those of others, and for the agent's questions.
func TestHAProxy_fullOfConnections_othersAreServed(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	kerneltest.Listen(t, world, kerneltest.App, "world", 8080)
	p, m := serveReal(t)
	kerneltest.Shell(t, pod, "nft -f -", redirected)
	type hostile struct{ ns, out *netns.NS }
	var all []hostile
	for i := range 3 {
		h := hostile{}
		h.ns, h.out = kerneltest.NewPod(t)
		kerneltest.ListenTCP(t, h.out, kerneltest.App, false, "0.0.0.0:8080") // which answers nobody
		kerneltest.ListenTCP(t, h.ns, kerneltest.App, false, "0.0.0.0:8080")
		kerneltest.Shell(t, h.ns, "nft -f -", redirected)
		p.join(t, m, fmt.Sprintf("hostile-%d", i), h.ns)
		all = append(all, h)
	}
	s := p.realPod(t, "good", pod)
	s.Namespace = "other"
	p.edit(s, func(f *fakePod) { f.sandbox.Namespace = s.Namespace })
	m.Follow(s, "edge")
	p.isServed(m, s)
	for _, h := range all {
		t.Logf("%d and %d connections", fill(t, h.ns, kerneltest.Outside4+":8080", 1200), fill(t, h.out, kerneltest.Pod4+":8080", 1200))
	}
	for range 5 {
		began := time.Now()
		r, err := kerneltest.Dial(t.Context(), pod, kerneltest.App, "", kerneltest.Outside4+":8080")
		if err != nil || r.Banner != "world:8080" {
			t.Errorf("%v, %v after %s", r, err, time.Since(began))
		}
	}
	if version, err := newDirectory(p.root, "edge").ask(t.Context(), p.newest().PodUID); err != nil {
		t.Errorf("version %+v, error %v", version, err)
	}
	if ok, known := m.Serves("edge", s); !ok || !known {
		t.Error("not served")
	}
}

// Who has a connection in each worker that a reload leaves behind does not keep all of them.
func TestHAProxy_manyReloads_oldWorkersAreBounded(t *testing.T) {
	const bound = 2
	pod, world := kerneltest.NewPod(t)
	kerneltest.ListenTCP(t, world, kerneltest.App, false, "0.0.0.0:8080") // which answers nobody
	p, m := serveReal(t)
	p.change(func() {
		f := &p.profile.Spec.Files[0]
		text := strings.Replace(f.Template, "mworker-max-reloads 20", fmt.Sprintf("mworker-max-reloads %d", bound), 1)
		if text == f.Template {
			t.Fatal("the sample does not bound old workers")
		}
		f.Template = text
	})
	kerneltest.Shell(t, pod, "nft -f -", redirected)
	p.join(t, m, "hostile", pod)
	for i := range 2 * bound {
		if fill(t, pod, kerneltest.Outside4+":8080", 8) != 8 {
			t.Error("connections are missing")
		}
		p.join(t, m, fmt.Sprintf("other-%d", i), kerneltest.New(t))
	}
	p.eventually("old workers end", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.newest().cmd.Process.Pid))
		n := len(strings.Fields(string(children)))
		return err == nil && n >= 1 && n <= bound+1
	})
}
