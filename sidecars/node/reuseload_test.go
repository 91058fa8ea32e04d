package node

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

const (
	// loadPatience is more than a new version may hold connections in its queue before it is given up.
	loadPatience = 20 * time.Second
	// newEvery is the pause between two new connections of a pod, and heldPods how many are held at once in each.
	newEvery = 10 * time.Millisecond
	heldPods = 2
)

// sharedLoad makes new connections to proxies, and holds others.
type sharedLoad struct {
	done      chan struct{}
	working   sync.WaitGroup
	made      atomic.Int64
	held      atomic.Int64
	lostNew   atomic.Int64
	lostHeld  atomic.Int64
	mu        sync.Mutex
	whyLost   []string
	requested atomic.Int64
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

// startLoad loads every pod in both directions: new connections from outside, held ones from inside.
func (n *sharingNode) startLoad(t *testing.T) *sharedLoad {
	t.Helper()
	l := &sharedLoad{done: make(chan struct{})}
	for i, s := range n.sandboxes {
		l.repeat(n.worlds[i], kerneltest.Pod4+":15006", &l.made, &l.lostNew, func() (talks int) { return 1 })
		for j := range heldPods {
			talked := 7*i + 31*j // connections end at different times
			l.repeat(n.pods[s.ID], "127.0.0.1:15001", &l.held, &l.lostHeld, func() int { talked += 37; return 20 + talked%80 })
		}
	}
	return l
}

// repeat makes one connection after the other, on one thread in a namespace, each of which talks a number of times.
func (l *sharedLoad) repeat(from *netns.NS, to string, whole, lost *atomic.Int64, talks func() int) {
	l.working.Go(func() {
		_ = from.Inside(func() error {
			for !l.ended() {
				if err := l.talk(to, talks()); err != nil {
					lost.Add(1)
					l.mu.Lock()
					l.whyLost = append(l.whyLost, err.Error())
					l.mu.Unlock()
				} else {
					whole.Add(1)
				}
				<-time.After(newEvery)
			}
			return nil
		})
	})
}

func (l *sharedLoad) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// talk makes a connection and talks over it every 30 ms.
func (l *sharedLoad) talk(to string, times int) error {
	conn, err := net.DialTimeout("tcp", to, loadPatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for i := range times {
		if i > 0 {
			<-time.After(30 * time.Millisecond)
		}
		_ = conn.SetDeadline(time.Now().Add(loadPatience))
		if _, err := fmt.Fprintln(conn, "hello"); err != nil {
			return fmt.Errorf("after %d answers: %w", i, err)
		}
		if _, err := answers.ReadString('\n'); err != nil {
			return fmt.Errorf("after %d answers: %w", i, err)
		}
		l.requested.Add(1)
	}
	return nil
}

// end goes on until enough connections were made, and fails the test if one was lost.
func (l *sharedLoad) end(t *testing.T, made, held int) {
	t.Helper()
	for l.made.Load() < int64(made) || l.held.Load() < int64(held) {
		<-time.After(10 * time.Millisecond)
	}
	close(l.done)
	l.working.Wait()
	t.Logf("lost %d of %d new connections and %d of %d held ones, with %d requests",
		l.lostNew.Load(), l.made.Load()+l.lostNew.Load(), l.lostHeld.Load(), l.held.Load()+l.lostHeld.Load(), l.requested.Load())
	if l.lostNew.Load()+l.lostHeld.Load() > 0 {
		t.Errorf("connections were lost: %.2000q", l.whyLost)
	}
}
