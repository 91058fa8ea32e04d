package istio

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// load is traffic from a pod: new connections all the time, and some that stay.
type load struct {
	requests, lost atomic.Int64
	first          atomic.Value // an error
	stop           context.CancelFunc
	done           sync.WaitGroup
}

func (l *load) record(err error) {
	l.requests.Add(1)
	if err != nil {
		l.lost.Add(1)
		l.first.CompareAndSwap(nil, err.Error())
	}
}

// load asks the service, until it is ended, each way from several places at once: on new connections, on kept ones, and by HTTP/2 on one connection.
// A kept connection that the proxy asks to close is opened anew.
func (e *echoes) load(t *testing.T) *load {
	t.Helper()
	const each = 3
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	ask := func(pod *meshPod, host, address string) {
		for ctx.Err() == nil {
			got, err := pod.get(t, host, address, "/")
			if err == nil && got.status != http.StatusOK {
				err = fmt.Errorf("answered %s of %s by %d: %s", got.Protocol, host, got.status, got.body)
			}
			l.record(err)
		}
	}
	http2 := e.client.overHTTP2()
	t.Cleanup(http2.transport.CloseIdleConnections)
	for range each {
		l.done.Go(func() { ask(e.client, echoHost, echoAt) })
		l.done.Go(func() { ask(http2, echoHost+":9001", "10.96.0.10:9001") })
	}
	for range each {
		l.done.Go(func() {
			for ctx.Err() == nil {
				if err := e.client.keepAsking(ctx, l); err != nil {
					l.record(err)
				}
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// keepAsking asks on one connection until it is to be closed.
func (p *meshPod) keepAsking(ctx context.Context, l *load) error {
	c, err := p.dial(ctx, echoAt)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer c.Close() //nolint:errcheck // it is over
	from := bufio.NewReader(c)
	for ctx.Err() == nil {
		if err := c.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", echoHost); err != nil {
			return fmt.Errorf("kept connection: %w", err)
		}
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			return fmt.Errorf("kept connection: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return fmt.Errorf("kept connection: %w", err)
		}
		l.record(nil)
		if response.Close {
			return nil
		}
	}
	return nil
}

// A second proxy of a pod takes over from the first, which is told to end: no connection is lost, on neither side, because both listen at the same
// ports, and the old one serves what it has accepted.
func TestHandover_underLoad_losesNoConnection(t *testing.T) {
	parent, e := t, newEchoes(t)
	for _, c := range []struct {
		pod, from *meshPod // who is handed over, and who has a connection through it
		to        string
	}{{e.servers[0], e.outside(), e.servers[0].ip + ":9000"}, {e.client, e.client, "10.96.0.10:9000"}} {
		pod := c.pod
		t.Run(pod.name, func(t *testing.T) {
			l := e.load(t)
			old := e.proxies[pod.name]
			for range 2 {
				held, err := c.from.dial(t.Context(), c.to)
				if err != nil {
					t.Fatal(err)
				}
				next := pod.start(parent)
				next.awaitReady(t)
				old.stopListening(t)
				old.end(t, func() {
					if got, err := converse(held, "held"); err != nil || !strings.HasSuffix(got, " held") {
						t.Errorf("a connection that the old proxy has says %q, %v", got, err)
					}
				})
				old = next
			}
			e.proxies[pod.name] = old
			l.end()
			if first := l.first.Load(); first != nil {
				t.Errorf("%d of %d requests were lost, the first: %v", l.lost.Load(), l.requests.Load(), first)
			}
			t.Logf("%d requests, %d lost", l.requests.Load(), l.lost.Load())
		})
	}
}

// stopListening has Envoy ask clients of both directions to go, and then accept no more. The agent itself, when it is told to end, has Envoy do that
// for inbound connections alone: it would serve new outbound ones for ever.
func (x *proxy) stopListening(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return x.pod.dial(ctx, address)
	}}}
	for _, how := range []string{"?graceful", ""} {
		response, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/drain_listeners%s", x.admin, how), "", nil) //nolint:noctx // it has a timeout
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("drain_listeners%s: %s, %v", how, response.Status, err)
		}
	}
}

// end tells the agent to end, and waits until it has: when nothing is left to serve. Meanwhile something is done.
func (x *proxy) end(t *testing.T, meanwhile func()) {
	t.Helper()
	if err := unix.Kill(x.cmd.Process.Pid, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// The agent looks for open connections after the shortest time of a drain, every second.
	select {
	case <-x.ended:
		t.Fatalf("the proxy of %s has ended with a connection", x.pod.name)
	case <-time.After(3 * time.Second):
	}
	meanwhile()
	began := time.Now()
	select {
	case <-x.ended:
		t.Logf("ended after %s", time.Since(began).Round(time.Millisecond))
	case <-time.After(30 * time.Second):
		t.Fatalf("the proxy of %s has not ended", x.pod.name)
	}
}
