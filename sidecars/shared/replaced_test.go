package shared

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/test/kerneltest"
)

// upgradesSize is how much a test of upgrades makes. SHARED_PROXY_UPGRADES=whole makes it large.
type upgradesSize struct{ pods, upgrades, connections, held int }

func sizeOf() upgradesSize {
	if os.Getenv("SHARED_PROXY_UPGRADES") == "whole" {
		return upgradesSize{pods: 50, upgrades: 20, connections: 100_000, held: 500}
	}
	return upgradesSize{pods: 4, upgrades: 5, connections: 2000, held: 20}
}

// brokenVersions are commands of the DaemonSet that do not take over, by what they do.
func (u *upgrading) brokenVersions() [][2]string {
	other := filepath.Join(u.root, "other.cfg")
	text := "frontend f\n  mode http\n  timeout client 1s\n  bind 192.0.2.1:1\n" // no address of the proxy's
	if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
		u.t.Fatal(err)
	}
	return [][2]string{
		{"it ends at once", "exit 1"},
		{"it never answers", "exec sleep 1000"},
		{"it waits for files that are missing", strings.ReplaceAll(u.command, "haproxy.cfg", "other.cfg")},
		{"it ends once it has the listeners", strings.TrimSpace(u.command) + " -f " + other},
		{"it answers where nobody asks", "export POD_UID=elsewhere\n" + u.command},
	}
}

// upgrading is a node whose DaemonSet changes under load.
type upgrading struct {
	*realProxy
	t    *testing.T
	size upgradesSize
	m    *Manager
	stop func()
	kill atomic.Int64 // at so many looks for the proxy from now on the agent is killed
	pods []busyPod
	all  []podnet.Sandbox
	load traffic
	held []heldConnection
}

// busyPod is a pod beside a world of its own.
type busyPod struct{ in, out *netns.NS }

const echoPort = ":8090"

func newUpgrading(t *testing.T) *upgrading {
	t.Helper()
	u := &upgrading{realProxy: startReal(t, newNode(t)), t: t, size: sizeOf(), stop: func() {}}
	for i := range u.size.pods {
		var b busyPod
		b.in, b.out = kerneltest.NewPod(t)
		for where, ns := range map[string]*netns.NS{"world": b.out, "app": b.in} {
			kerneltest.Listen(t, ns, kerneltest.App, where, 8080)
			go kerneltest.Echo(kerneltest.ListenTCP(t, ns, kerneltest.App, false, "0.0.0.0"+echoPort), where)
		}
		kerneltest.Shell(t, b.in, "nft -f -", redirected)
		kerneltest.Sysctl(t, b.in, "net/ipv4/tcp_early_demux", "0") // as the agent does before Linux 6.7
		u.pods, u.all = append(u.pods, b), append(u.all, u.realPod(t, fmt.Sprintf("busy-%d", i), b.in))
	}
	u.restart()
	for _, s := range u.all {
		u.isServed(u.m, s)
	}
	return u
}

// restart has another agent work.
func (u *upgrading) restart() {
	u.stop()
	u.m = New(Config{Cluster: u, Proxies: u, Sandboxes: u, Reporter: u, Root: u.root, Node: "node-1"})
	u.stop = u.run(u.t, u.m)
	for _, s := range u.all {
		u.m.Follow(s, "edge")
	}
}

// Find has the agent be killed now and then.
func (u *upgrading) Find(ctx context.Context, profile string) ([]sidecar.Container, error) {
	if u.kill.Add(-1) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return u.realProxy.Find(ctx, profile)
}

// killedAt has the agent be killed at a step, and another one start.
func (u *upgrading) killedAt(step int) {
	u.kill.Store(int64(step))
	u.m.Notify("edge")
	u.eventually("a step", func() bool { u.m.Notify("edge"); return u.kill.Load() <= 0 })
	u.restart()
}

// traffic counts new connections in both directions.
type traffic struct {
	stop   context.CancelFunc
	ended  sync.WaitGroup
	made   atomic.Int64
	failed atomic.Int64
	first  atomic.Pointer[error]
}

func (u *upgrading) startTraffic() {
	ctx, cancel := context.WithCancel(u.t.Context())
	u.load.stop = sync.OnceFunc(func() { cancel(); u.load.ended.Wait() })
	u.t.Cleanup(u.load.stop)
	for worker := range 4 {
		u.load.ended.Go(func() {
			for i := worker; ctx.Err() == nil; i++ {
				b := u.pods[i/2%len(u.pods)]
				from, to, want := b.in, kerneltest.Outside4+":8080", "world:8080"
				if i%2 == 0 {
					from, to, want = b.out, kerneltest.Pod4+":8080", "app:8080"
				}
				reply, err := kerneltest.Dial(context.WithoutCancel(ctx), from, kerneltest.App, "", to)
				if err == nil && reply.Banner != want {
					err = fmt.Errorf("%q answered, want %q", reply.Banner, want)
				}
				if err != nil {
					u.load.failed.Add(1)
					u.load.first.CompareAndSwap(nil, &err)
				}
				u.load.made.Add(1)
			}
		})
	}
}

// awaitTraffic waits until a part of all connections is made.
func (u *upgrading) awaitTraffic(part, of int) {
	for u.load.made.Load() < int64(u.size.connections*part/of) {
		pause(u.t.Context(), 10*time.Millisecond)
	}
}

type heldConnection struct {
	net.Conn
	read *bufio.Reader
}

// hold opens connections that stay until the end.
func (u *upgrading) hold(n int) {
	u.t.Helper()
	for i := range n {
		b := u.pods[(len(u.held)+i)/2%len(u.pods)]
		from, to := b.in, kerneltest.Outside4+echoPort
		if i%2 == 0 {
			from, to = b.out, kerneltest.Pod4+echoPort
		}
		var c net.Conn
		err := kerneltest.As(from, kerneltest.App, func() (err error) {
			c, err = (&net.Dialer{Timeout: time.Second}).DialContext(u.t.Context(), "tcp", to)
			return err
		})
		if err != nil {
			u.t.Fatal(err)
		}
		u.t.Cleanup(func() { _ = c.Close() })
		h := heldConnection{c, bufio.NewReader(c)}
		if _, err := h.read.ReadString('\n'); err != nil {
			u.t.Fatal(err)
		}
		u.held = append(u.held, h)
	}
}

// wantHeld wants each held connection to pass words there and back.
func (u *upgrading) wantHeld(when string) {
	u.t.Helper()
	lost := 0
	for i, h := range u.held {
		word := fmt.Sprintf("%d\n", i)
		_ = h.SetDeadline(time.Now().Add(2 * time.Second))
		_, err := h.Write([]byte(word))
		if got, errRead := h.read.ReadString('\n'); err != nil || errRead != nil || got != word {
			lost++
		}
	}
	if lost > 0 {
		u.t.Errorf("%s: %d of %d held connections are lost", when, lost, len(u.held))
	}
}

// replace is what the DaemonSet does with a new version: the old pod is told to end once the new one is ready. The agent is killed at a step.
func (u *upgrading) replace(step int) {
	u.t.Helper()
	old := u.newest()
	if step == 0 { // no agent is there while the new pod starts
		u.stop()
	}
	next := u.start(u.t, u.command)
	if step == 0 {
		u.eventually("the new pod answers", func() bool { _, err := newDirectory(u.root, "edge").ask(u.t.Context(), next.PodUID); return err == nil })
		u.restart()
	} else {
		u.killedAt(step)
	}
	u.eventually("the new pod is ready", func() bool { u.m.Notify("edge"); return u.marked(next.PodUID) })
	if err := old.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		u.t.Fatal(err)
	}
}

// roll has a broken version come and go.
func (u *upgrading) roll(name, command string) {
	u.t.Helper()
	serving := u.newest()
	next := u.start(u.t, command)
	for range 20 { // 2 s
		u.m.Notify("edge")
		pause(u.t.Context(), 100*time.Millisecond)
	}
	if u.marked(next.PodUID) {
		u.t.Errorf("%s: it is ready", name)
	}
	_ = next.cmd.Process.Signal(syscall.SIGUSR1) // which ends a shell and a sleep as well
	u.eventually(name+" ends", func() bool {
		select {
		case <-next.done:
			return true
		default:
			return false
		}
	})
	u.daemons.Lock()
	u.daemons.running = u.daemons.running[:len(u.daemons.running)-1]
	u.daemons.Unlock()
	for _, s := range u.all {
		if ok, known := u.m.Serves("edge", s); !ok || !known {
			u.t.Errorf("%s: %s is not served", name, s.Name)
		}
	}
	if _, err := newDirectory(u.root, "edge").ask(u.t.Context(), serving.PodUID); err != nil {
		u.t.Errorf("%s: %v", name, err)
	}
}

// The DaemonSet's pod is replaced again and again, broken versions come and go, and the agent is killed at each step: no connection is lost.
func TestHAProxy_podReplaced_losesNoConnection(t *testing.T) {
	u := newUpgrading(t)
	u.startTraffic()
	broken := u.brokenVersions()
	every := u.size.upgrades / len(broken)
	parts := u.size.upgrades + len(broken)
	for i := range u.size.upgrades {
		u.hold(u.size.held / u.size.upgrades)
		u.replace(i % 5)
		u.wantHeld(fmt.Sprintf("after upgrade %d", i+1))
		u.visit(fmt.Sprintf("guest-%d", i))
		if i%every == 0 {
			u.roll(broken[i/every][0], broken[i/every][1])
		}
		u.awaitTraffic(i+1+i/every, parts)
	}
	u.awaitTraffic(parts, parts)
	u.load.stop()
	u.wantHeld("in the end")
	if first := u.load.first.Load(); first != nil {
		t.Errorf("%d of %d connections are lost: %v", u.load.failed.Load(), u.load.made.Load(), *first)
	}
	t.Logf("%d pods, %d upgrades, %d broken versions: %d of %d new connections lost; %d were held", len(u.pods), u.size.upgrades, len(broken), u.load.failed.Load(), u.load.made.Load(), len(u.held))
}

// visit has a pod come, and go.
func (u *upgrading) visit(name string) {
	u.t.Helper()
	guest := u.join(u.t, u.m, name, kerneltest.New(u.t))
	u.edit(guest, func(f *fakePod) { f.gone, f.stopped = true, true })
	u.m.Unfollow(guest.UID)
}
