package node

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// load makes new connections through pods' proxies, and holds others.
type load struct {
	patience             time.Duration // for a connection, and for an answer
	done                 chan struct{}
	working              sync.WaitGroup
	made, held, requests atomic.Int64
	mu                   sync.Mutex
	lost                 []string // why connections failed or broke
	stop                 func()
}

func newLoad(patience time.Duration) *load {
	l := &load{patience: patience, done: make(chan struct{})}
	l.stop = sync.OnceFunc(func() { close(l.done); l.working.Wait() })
	return l
}

// startLoad makes new connections in both directions, and keeps long ones, until stop is called.
func (n envoyNode) startLoad() (l *load, stop func()) {
	l = newLoad(3 * time.Second)
	for _, to := range []struct {
		from *netns.NS
		dst  string
	}{{n.pod(), "127.0.0.1:15001"}, {n.worlds[0], kerneltest.Pod4 + ":15006"}} {
		l.repeat(to.from, to.dst, &l.made, func() int { return 1 })
		for range 2 {
			l.repeat(to.from, to.dst, &l.held, func() int { return 1 << 20 })
		}
	}
	return l, l.stop
}

// startLoad loads every pod in both directions: new connections from outside, held ones from inside. Its patience is more than a new version may hold
// connections in its queue before it is given up.
func (n *sharingNode) startLoad() *load {
	l := newLoad(20 * time.Second)
	for i, s := range n.sandboxes {
		l.repeat(n.worlds[i], kerneltest.Pod4+":15006", &l.made, func() int { return 1 })
		for j := range 2 {
			talked := 7*i + 31*j // connections end at different times
			l.repeat(n.pods[s.ID], "127.0.0.1:15001", &l.held, func() int { talked += 37; return 20 + talked%80 })
		}
	}
	return l
}

// repeat makes one connection after the other, on one thread in a namespace, each of which talks a number of times.
func (l *load) repeat(from *netns.NS, to string, whole *atomic.Int64, talks func() int) {
	l.working.Go(func() {
		_ = from.Inside(func() error {
			for ; !l.ended(); <-time.After(10 * time.Millisecond) {
				if err := l.talk(to, talks()); err == nil {
					whole.Add(1)
				} else {
					l.mu.Lock()
					l.lost = append(l.lost, err.Error())
					l.mu.Unlock()
				}
			}
			return nil
		})
	})
}

func (l *load) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// talk makes a connection and talks over it, until the proxy says that it will close it.
func (l *load) talk(to string, times int) error {
	conn, err := net.DialTimeout("tcp", to, l.patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for i := range times {
		_ = conn.SetDeadline(time.Now().Add(l.patience))
		_, err := fmt.Fprintln(conn, "hello")
		answer := ""
		if err == nil {
			answer, err = answers.ReadString('\n')
		}
		if err != nil {
			return fmt.Errorf("after %d answers: %w", i, err)
		}
		l.requests.Add(1)
		if strings.Contains(answer, "close") || l.ended() {
			return nil
		}
		if i+1 < times {
			<-time.After(25 * time.Millisecond)
		}
	}
	return nil
}

// mustBeWhole fails the test if a connection failed or broke.
func (l *load) mustBeWhole(t *testing.T) {
	t.Helper()
	t.Logf("%d new connections, %d held ones, %d requests", l.made.Load(), l.held.Load(), l.requests.Load())
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lost) > 0 || l.made.Load() == 0 {
		t.Errorf("%d connections failed or broke: %.2000q", len(l.lost), l.lost)
	}
}

// end goes on until enough connections were made, and fails the test if one was lost.
func (l *load) end(t *testing.T, made, held int) {
	t.Helper()
	for l.made.Load() < int64(made) || l.held.Load() < int64(held) {
		<-time.After(10 * time.Millisecond)
	}
	l.stop()
	l.mustBeWhole(t)
}

// echoLines returns what it is sent.
func echoLines(l net.Listener) {
	for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}
