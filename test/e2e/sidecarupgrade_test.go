package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// loadedPods have their proxies upgraded at the same time, unless E2E_SIDECARS says otherwise.
	loadedPods = 10
	// loadedEvery is the time between two new connections in each direction, of all pods together.
	loadedEvery = 4 * time.Millisecond
)

// loadedPod is an application that makes new connections to the world, counts the answers, and holds one connection that it talks on. Its
// load is in containers of its own: what is run by exec ends with the runtime's restart.
func loadedPod(name string, every time.Duration, world, ticks string) *corev1.Pod {
	// A shell's pause is a process: the more pods there are, the longer it is.
	pause := fmt.Sprintf("usleep %d", 5*every.Microseconds()/2)
	pod := plainPod(name)
	pod.Spec.Containers = append(pod.Spec.Containers,
		corev1.Container{Name: "dials", Image: "localhost/testapp:1", Args: []string{"dial", "-report", "200ms", "-every", every.String(), "http://" + world + "/"}},
		corev1.Container{Name: "talks", Image: "localhost/tools:1", Command: []string{"sh", "-c", "while echo tick; do " + pause + "; done | nc " + strings.Replace(ticks, ":", " ", 1)}},
	)
	// They start when the proxy is there: before, connections are refused.
	for i := range pod.Spec.Containers[1:] {
		c := &pod.Spec.Containers[i+1]
		wait := "until wget -q -O /dev/null http://127.0.0.1:15021/healthz/ready; do " + pause + "; done; "
		if c.Name == "dials" {
			c.Image, c.Command, c.Args = "localhost/tools:1", []string{"sh", "-c", wait + "exec testapp " + strings.Join(c.Args, " ")}, nil
		} else {
			c.Command[2] = wait + c.Command[2]
		}
	}
	return pod
}

// ticker takes connections that stay open, and counts what comes over them.
type ticker struct {
	net.Listener
	mu                 sync.Mutex
	conns, ended, read int
}

func listenTicks(t *testing.T) *ticker {
	t.Helper()
	l, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	c := &ticker{Listener: l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.count(1, 0, 0)
			go c.take(conn)
		}
	}()
	return c
}

func (c *ticker) take(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // it has ended
	defer c.count(0, 1, 0)
	lines := bufio.NewReader(conn)
	for {
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		c.count(0, 0, 1)
	}
}

func (c *ticker) count(conns, ended, read int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns, c.ended, c.read = c.conns+conns, c.ended+ended, c.read+read
}

func (c *ticker) now() (conns, ended, read int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns, c.ended, c.read
}

// underLoad are pods with proxies under load: new connections in both directions all the time, and open ones in both, which are talked on.
type underLoad struct {
	managed

	pods  []*corev1.Pod
	ticks *ticker
	loads []*inboundLoad
	held  []*echo
}

// startUnderLoad returns when all pods are ready and have connections of each kind. Each pod makes a connection in each direction every so often.
func (m managed) startUnderLoad(t *testing.T, n int, every time.Duration, change ...func(*corev1.Pod)) *underLoad {
	t.Helper()
	f := families()[0]
	b := &underLoad{managed: m, pods: make([]*corev1.Pod, n), ticks: listenTicks(t)}
	world, tick := f.at(1, worldPort).String(), f.at(2, uint16(b.ticks.Addr().(*net.TCPAddr).Port)).String()
	for i := range n {
		pod := loadedPod(fmt.Sprintf("loaded-%d", i), every, world, tick)
		for _, f := range change {
			f(pod)
		}
		m.create(t, pod)
	}
	for i := range n {
		b.pods[i] = m.await(t, fmt.Sprintf("loaded-%d", i), isReadyNow)
		b.loads = append(b.loads, loadInboundEvery(t, every, at(b.pods[i], f, appPort), f.passthrough))
		b.held = append(b.held, dialEcho(t, at(b.pods[i], f, appTCPPort)))
	}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		if conns, _, _ := b.ticks.now(); conns < n {
			return fmt.Errorf("%d of %d are open", conns, n)
		}
		return m.eachDials(ctx, b.pods, func(s summary) error { return atLeast(s.OK, 1) })
	})
	return b
}

// say talks on all connections that are held open.
func (b *underLoad) say(t *testing.T, when string) {
	t.Helper()
	for i := range b.held {
		b.held[i].say(t, when)
	}
}

// wantNoneLost ends the load, and wants no connection to have failed, broken or passed the proxy by.
func (b *underLoad) wantNoneLost(t *testing.T) {
	t.Helper()
	asked := 0
	for i, l := range b.loads {
		l.stop(t)
		asked += l.asked
		if l.failed != nil || l.bypassed > 0 || l.asked == 0 {
			t.Errorf("inbound of pod %d: of %d connections %d bypassed the proxy, error %v", i, l.asked, l.bypassed, l.failed)
		}
	}
	conns, ended, read := b.ticks.now()
	if conns != len(b.pods) || ended != 0 {
		t.Errorf("of the pods' %d open connections %d have ended; want %d and none", conns, ended, len(b.pods))
	}
	dialled, faults := 0, []string{}
	eventually(t, "the pods' logs", func(ctx context.Context) error { // the kubelet may have started just now
		dialled, faults = 0, nil
		return b.eachDials(ctx, b.pods, func(s summary) error {
			dialled += s.OK
			if s.Failed > 0 {
				faults = append(faults, fmt.Sprintf("of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors))
			}
			return nil
		})
	})
	if len(faults) > 0 {
		t.Errorf("outbound: %q", faults)
	}
	t.Logf("%d inbound and %d outbound connections, %d lines on %d open ones", asked, dialled, read, conns)
}

// Every proxy of the node is replaced, again and again, under load in both directions: no new connection fails, and none that is open
// breaks. Neither the agent's end nor the kubelet's or the runtime's changes that.
//
// Not parallel: it ends them.
//
//e2e:rounds core nri
func TestSidecarsAreUpgradedWithoutALostConnection(t *testing.T) {
	m := newManaged(t, drainsLong)
	n := amount(t, "E2E_SIDECARS", loadedPods)
	b := m.startUnderLoad(t, n, time.Duration(n)*loadedEvery)
	wantDone := finishedProxy(t)
	for i, trouble := range []func(){
		// In this order: the kubelet does not start without the runtime.
		func() { m.killAgent(t) }, func() { m.restartDaemon(t, m.node.Runtime); m.restartDaemon(t, "kubelet") },
	} {
		began := time.Now()
		before, err := m.sidecar(t.Context(), b.pods[0].Name)
		must(t, err)
		m.newVersion(t, fmt.Sprint("upgrade ", i))
		trouble()
		for _, pod := range b.pods {
			m.awaitSidecar(t, pod.Name, isUpgraded(before))
		}
		t.Logf("upgrade %d: %d proxies in %s", i, len(b.pods), time.Since(began).Round(time.Millisecond))
		b.say(t, fmt.Sprint("after upgrade ", i))
		wantDone()
	}
	b.wantNoneLost(t)
}

// isUpgraded wants a proxy of another version than before to serve. Its epoch is not known: the runtime may end while it starts one.
func isUpgraded(before map[string]any) func(map[string]any) error {
	return func(status map[string]any) error {
		if status["profileHash"] == before["profileHash"] {
			return fmt.Errorf("it is of the version before: %v", status)
		}
		epoch, _ := status["epoch"].(int64)
		return isServing(epoch)(status)
	}
}

func atLeast(n, want int) error {
	if n < want {
		return fmt.Errorf("%d, want %d", n, want)
	}
	return nil
}

// eachDials calls f with what each pod says of the connections that it has made so far.
func (m managed) eachDials(ctx context.Context, pods []*corev1.Pod, f func(summary) error) error {
	lines := int64(2) // behind the last count there is a complaint if connections have failed
	for _, pod := range pods {
		logs, err := m.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: "dials", TailLines: &lines}).Stream(ctx)
		if err != nil {
			return fmt.Errorf("read log of %s: %w", pod.Name, err)
		}
		text, err := io.ReadAll(logs)
		_ = logs.Close()
		var s summary
		for line := range strings.Lines(string(text)) {
			if err == nil && strings.HasPrefix(line, "{") {
				err = json.Unmarshal([]byte(line), &s)
			}
		}
		if err != nil {
			return fmt.Errorf("read log of %s, %q: %w", pod.Name, text, err)
		}
		if err := f(s); err != nil {
			return fmt.Errorf("%s: %w", pod.Name, err)
		}
	}
	return nil
}
