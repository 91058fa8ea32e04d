package e2e

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// loadEvery is the pause between two connections of a load.
const loadEvery = 5 * time.Millisecond

// enough is how many connections of a load there are at least in tests that count them.
const enough = 120

// inboundLoad makes connections to one address, one after the other, and looks who the application sees.
type inboundLoad struct {
	cancel   context.CancelFunc
	ended    sync.WaitGroup
	asked    int
	many     chan struct{} // closed once enough were made
	bypassed int
	lost     int
	failed   error // the last one
}

func loadInbound(t *testing.T, to netip.AddrPort, proxy netip.Addr) *inboundLoad {
	t.Helper()
	return loadInboundEvery(t, loadEvery, to, proxy)
}

func loadInboundEvery(t *testing.T, every time.Duration, to netip.AddrPort, proxy netip.Addr) *inboundLoad {
	t.Helper()
	l := &inboundLoad{many: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	l.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			var a answer
			// The end of the load must not break a request off: that would count as a loss.
			if err := request(context.WithoutCancel(ctx), to, "/", &a); err != nil {
				l.failed = err
				l.lost++
			}
			if l.asked++; l.asked == enough {
				close(l.many)
			}
			if a.peer() != proxy {
				l.bypassed++
			}
			<-tick.C
		}
	})
	t.Cleanup(func() { cancel(); l.ended.Wait() })
	return l
}

func (l *inboundLoad) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.ended.Wait()
}

// outboundLoad is testapp making connections inside a pod.
type outboundLoad struct {
	stdin io.Closer
	done  chan error
	out   string
}

// summary is what testapp says at the end.
type summary struct {
	OK     int            `json:"ok"`
	Failed int            `json:"failed"`
	Errors map[string]int `json:"errors"`
}

// loadOutbound starts the load in the pod's application container, which must have a shell.
func (s *space) loadOutbound(t *testing.T, pod *corev1.Pod, to netip.AddrPort) *outboundLoad {
	t.Helper()
	return s.loadOutboundEvery(t, loadEvery, pod, to)
}

func (s *space) loadOutboundEvery(t *testing.T, every time.Duration, pod *corev1.Pod, to netip.AddrPort) *outboundLoad {
	t.Helper()
	stdin, end := io.Pipe()
	l := &outboundLoad{stdin: end, done: make(chan error, 1)}
	go func() {
		var err error
		l.out, err = s.run(t.Context(), command{
			namespace: s.name, pod: pod.Name, container: "app", stdin: stdin,
			// The shell waits for the end of its input, then for the last line of the load.
			argv: []string{"sh", "-c", "testapp dial -report 0 -every " + every.String() + " http://" + to.String() + "/ & read -r end; kill -TERM $!; wait $!"},
		})
		l.done <- err
	}()
	eventually(t, "the load in "+pod.Name, func(ctx context.Context) error {
		var now map[string]count
		err := ask(ctx, pod, "/counts", &now)
		if err == nil && now[outbound].OK == 0 {
			err = errors.New("the proxy took no connection")
		}
		return err
	})
	t.Cleanup(func() { _ = end.Close() })
	return l
}

func (l *outboundLoad) stop(t *testing.T) summary {
	t.Helper()
	must(t, l.stdin.Close())
	must(t, <-l.done)
	return decode[summary](t, strings.TrimSpace(l.out))
}
