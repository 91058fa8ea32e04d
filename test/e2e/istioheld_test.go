package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
)

const (
	// shoppers make new connections all the time, each through its own proxy and that of one of the stores.
	shoppers, stores = 2, 2
	// shopEvery is the time between two connections of a shopper, and identityEvery that between two looks at identities.
	shopEvery, identityEvery = 20 * time.Millisecond, 50 * time.Millisecond
)

// mall are stores and shoppers in a namespace that takes mTLS alone, and what is counted of them until they close.
type mall struct {
	managed
	pods   []*corev1.Pod // the stores first
	buying []*corev1.Pod
	shown  *looks
}

// open makes the pods, and returns when all of them trade. Connections are held for as long as a test takes.
func (o outside) open(t *testing.T, change ...func(spec map[string]any)) *mall {
	t.Helper()
	m := &mall{managed: o.mesh(t, append(change, allAtOnce, drainsLong)...)}
	m.apply(t, strict)
	for i := range stores {
		m.pods = append(m.pods, m.create(t, m.store(t, fmt.Sprint("v", i))))
	}
	for i := range shoppers {
		m.pods = append(m.pods, m.create(t, m.shopper(t, fmt.Sprint("v", i), "store")))
	}
	m.wantIdentities(t, m.pods)
	m.buying = m.pods[stores:]
	m.awaitMore(t, m.buying)
	m.shown = m.lookAtIdentities(t, m.pods)
	return m
}

// upgrade changes the profile, does something meanwhile, and waits until all pods have proxies of the new version.
func (m *mall) upgrade(t *testing.T, name string, change map[string]any, meanwhile func()) {
	t.Helper()
	before, err := m.sidecar(t.Context(), m.pods[0].Name)
	must(t, err)
	began := time.Now()
	m.patchProfile(t, change)
	meanwhile()
	for _, pod := range m.pods {
		m.awaitSidecar(t, pod.Name, isUpgraded(before))
	}
	t.Logf("upgrade %s: %d proxies in %s", name, len(m.pods), time.Since(began).Round(time.Millisecond))
	m.awaitMore(t, m.buying)
}

// wantNothingLost wants all connections to have been answered, all identities to have been shown, and no application to have been restarted.
func (m *mall) wantNothingLost(t *testing.T) {
	t.Helper()
	m.shown.end(t)
	must(t, m.eachDials(t.Context(), m.buying, func(s summary) error {
		t.Logf("%d new connections, %d lost", s.OK+s.Failed, s.Failed)
		if s.Failed > 0 {
			return fmt.Errorf("of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
	for _, pod := range m.pods {
		for _, c := range m.await(t, pod.Name, isReadyNow).Status.ContainerStatuses {
			if c.RestartCount > 0 {
				t.Errorf("the container %s of %s was restarted", c.Name, pod.Name)
			}
		}
	}
	m.wantIdentities(t, m.pods)
}

// bytesPort is the stores' port for echoes.
const bytesPort uint16 = 9000

// store is an application that has also the Service "bytes", for connections that stay.
func (m managed) store(t *testing.T, version string) *corev1.Pod {
	t.Helper()
	pod := m.member(t, "store", version)
	c := &pod.Spec.Containers[0]
	c.Args = append(c.Args, fmt.Sprintf("-tcp=%d", bytesPort))
	c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: int32(bytesPort)})
	_, err := m.api.CoreV1().Services(m.name).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "bytes"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "store"}, Ports: []corev1.ServicePort{{Name: "tcp", Port: int32(bytesPort)}},
	}}, metav1.CreateOptions{})
	must(t, exists(err))
	return pod
}

// shopper makes connections to another application from when it is answered first, and counts them.
func (m managed) shopper(t *testing.T, version, from string) *corev1.Pod {
	t.Helper()
	pod := m.member(t, "shopper", version)
	target := meshURL(from)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "dials", Image: "localhost/tools:1", Command: []string{"sh", "-c", fmt.Sprintf(
		"until testapp get %s; do usleep 200000; done; exec testapp dial -report 200ms -every %s %s", target, shopEvery, target)}})
	return pod
}

// heldConn is a connection of a shopper to a store that stays open, by mTLS through the proxies of both.
type heldConn struct {
	told    *io.PipeWriter
	lines   chan string // closed behind the last one
	endedAt time.Time   // once lines is closed
}

// hold opens a connection from each shopper.
func (m *mall) hold(t *testing.T) (all []*heldConn) {
	t.Helper()
	for _, pod := range m.buying {
		in, told := io.Pipe()
		out, heard := io.Pipe()
		h := &heldConn{told: told, lines: make(chan string, 1)}
		go func() {
			err := m.stream(t.Context(), command{namespace: m.name, pod: pod.Name, container: "dials", argv: []string{"nc", "bytes", fmt.Sprint(bytesPort)}},
				remotecommand.StreamOptions{Stdin: in, Stdout: heard})
			_ = in.Close()
			_ = heard.CloseWithError(err)
		}()
		go func() {
			for read := bufio.NewScanner(out); read.Scan(); {
				h.lines <- read.Text()
			}
			h.endedAt = time.Now()
			close(h.lines)
		}()
		t.Cleanup(func() { _ = told.Close() })
		h.hear(t) // who has accepted it
		all = append(all, h)
	}
	return all
}

func (h *heldConn) hear(t *testing.T) string {
	t.Helper()
	select {
	case line, isOpen := <-h.lines:
		if !isOpen {
			t.Fatal("the held connection has ended")
		}
		return line
	case <-time.After(answerWithin):
		t.Fatal("the held connection says nothing")
	}
	return ""
}

// say sends a line and wants it back.
func (h *heldConn) say(t *testing.T, words string) {
	t.Helper()
	_, err := fmt.Fprintln(h.told, words)
	must(t, err)
	if got := h.hear(t); got != words {
		t.Errorf("said %q on a held connection, heard %q", words, got)
	}
}

// awaitEnd returns when the connection was ended by the other side.
func (h *heldConn) awaitEnd(t *testing.T) time.Time {
	t.Helper()
	select {
	case line, isOpen := <-h.lines:
		if isOpen {
			t.Fatalf("the held connection says %q", line)
		}
	case <-time.After(patience):
		t.Fatal("the held connection does not end")
	}
	return h.endedAt
}

// looks are looks at something that has to be there all the time, by a new connection each.
type looks struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	n      int
	failed []error
}

// lookAtIdentities looks at the pods in turn, again and again, until end.
func (m managed) lookAtIdentities(t *testing.T, pods []*corev1.Pod) *looks {
	t.Helper()
	next := 0
	return look(t, func(ctx context.Context) error {
		pod := pods[next%len(pods)]
		next++
		if err := m.hasIdentity(ctx, pod); err != nil {
			return fmt.Errorf("%s: %w", pod.Name, err)
		}
		return nil
	})
}

// look calls once, again and again, until end.
func look(t *testing.T, once func(context.Context) error) *looks {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &looks{stop: stop}
	l.done.Go(func() {
		tick := time.NewTicker(identityEvery)
		defer tick.Stop()
		for ; ctx.Err() == nil; l.n++ {
			whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
			if err := once(whole); err != nil {
				l.failed = append(l.failed, err)
			}
			cancel()
			<-tick.C
		}
	})
	t.Cleanup(func() { stop(); l.done.Wait() })
	return l
}

// end wants each look to have seen what was looked for.
func (l *looks) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.done.Wait()
	t.Logf("%d looks, %d gaps", l.n, len(l.failed))
	if len(l.failed) > 0 || l.n == 0 {
		t.Errorf("of %d looks %d failed, the first: %v", l.n, len(l.failed), l.failed[:min(1, len(l.failed))])
	}
}
