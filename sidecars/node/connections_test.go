package node

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// connections are made through a pod's proxy, in both directions.
type connections struct {
	done           chan struct{}
	working        sync.WaitGroup
	connected      atomic.Int64
	requests       atomic.Int64
	failed, broken atomic.Int64
	mu             sync.Mutex
	why            []string
}

// startLoad opens new connections and keeps long ones, until stop is called.
func (n envoyNode) startLoad(t *testing.T) (l *connections, stop func()) {
	t.Helper()
	l = &connections{done: make(chan struct{})}
	for _, from := range []struct {
		ns *netns.NS
		to string
	}{{n.pod(), "127.0.0.1:15001"}, {n.worlds[0], kerneltest.Pod4 + ":15006"}} {
		l.working.Go(func() { l.repeat(5*time.Millisecond, func() { l.connect(t, from.ns, from.to, 1) }) })
		for range 2 {
			l.working.Go(func() { l.repeat(time.Millisecond, func() { l.connect(t, from.ns, from.to, 1<<20) }) })
		}
	}
	return l, sync.OnceFunc(func() { close(l.done); l.working.Wait() })
}

func (l *connections) repeat(pause time.Duration, f func()) {
	for !l.ended() {
		f()
		<-time.After(pause)
	}
}

func (l *connections) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// connect opens a connection and makes requests, until the proxy says that it will close it.
func (l *connections) connect(t *testing.T, from *netns.NS, to string, requests int) {
	t.Helper()
	var conn net.Conn
	err := from.Inside(func() (err error) {
		conn, err = net.DialTimeout("tcp", to, 3*time.Second)
		return err
	})
	if err != nil {
		l.note(&l.failed, err)
		return
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for i := range requests {
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		_, err := fmt.Fprintln(conn, "hello")
		answer := ""
		if err == nil {
			answer, err = answers.ReadString('\n')
		}
		if err != nil && i == 0 {
			l.note(&l.failed, err)
			return
		} else if err != nil {
			l.note(&l.broken, err)
			return
		}
		l.requests.Add(1)
		if strings.Contains(answer, "close") || l.ended() {
			break
		}
		if requests > 1 {
			<-time.After(20 * time.Millisecond)
		}
	}
	l.connected.Add(1)
}

func (l *connections) note(counter *atomic.Int64, err error) {
	counter.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.why) < 5 {
		l.why = append(l.why, err.Error())
	}
}

// mustBeWhole fails the test if a connection failed or broke.
func (l *connections) mustBeWhole(t *testing.T) {
	t.Helper()
	t.Logf("%d connections, %d requests", l.connected.Load(), l.requests.Load())
	if l.failed.Load() > 0 || l.broken.Load() > 0 || l.connected.Load() == 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Errorf("%d connections failed and %d broke of %d: %q", l.failed.Load(), l.broken.Load(), l.connected.Load(), l.why)
	}
}
