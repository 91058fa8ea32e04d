package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// BenchmarkThroughHAProxy measures which share of a request's CPU time redirection has when a whole proxy takes part: in turn the CPU time of a connection with
// one request, and of a request on an open connection, from outside through HAProxy to the application, with default rules and where clients know the
// proxy's port and nothing is redirected. Client and server are one thread. It and HAProxy share a CPU. An operation is a round of both:
//
//	go test -run '^$' -bench ThroughHAProxy -benchtime 60x ./iptables/kernel
func BenchmarkThroughHAProxy(b *testing.B) {
	for _, mode := range []string{"http", "tcp"} {
		b.Run(mode, func(b *testing.B) {
			lanes := []*proxyLane{newProxyLane(b, mode, true), newProxyLane(b, mode, false)}
			for b.Loop() {
				for _, l := range lanes {
					if err := l.client.Inside(l.round); err != nil {
						b.Fatal(err)
					}
				}
			}
			rules, none := lanes[0], lanes[1]
			b.ReportMetric(medianRatio(rules.connection, none.connection), "connection-ratio")
			b.ReportMetric(medianRatio(rules.request, none.request), "request-ratio")
			b.ReportMetric(medianRatio(none.connection, nil), "connection-cpu-us")
			b.ReportMetric(medianRatio(none.request, nil), "request-cpu-us")
		})
	}
}

// medianRatio is the median of the rounds' ratios, or of a itself.
func medianRatio(a, to []float64) float64 {
	all := slices.Clone(a)
	for i := range to {
		all[i] /= to[i]
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Ports of the application, and of the proxy where clients know it.
const lanePort, laneProxyPort = 8080, 15106

// How much of each there is in a round.
const laneConnections, laneRequests = 50, 200

const (
	laneRequest = "GET / HTTP/1.1\r\nHost: cart\r\n\r\n"
	laneAnswer  = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
)

// laneConfig has the mode, and what the two frontends' server is: where the client was going, or the application.
const laneConfig = `global
  maxconn 100
defaults
  mode %s
  timeout connect 5s
  timeout client 1m
  timeout server 1m
  http-reuse never
frontend inbound
  bind 0.0.0.0:15006
  bind 0.0.0.0:15106
  default_backend application
backend application
  source 127.0.0.6
  server application %s
`

// proxyLane is a pod with its proxy and application, and a client of it.
type proxyLane struct {
	client              *netns.NS
	to                  unix.SockaddrInet4
	listener            int
	clock               int32 // the CPU clock of the proxy
	connection, request []float64
}

func newProxyLane(b *testing.B, mode string, redirected bool) *proxyLane {
	b.Helper()
	pod, world := kerneltest.NewPod(b)
	l := &proxyLane{client: world, to: unix.SockaddrInet4{Port: laneProxyPort, Addr: [4]byte{10, 244, 1, 5}}}
	server := fmt.Sprintf("127.0.0.1:%d", lanePort)
	if redirected {
		e, want := ordinary(b)
		if _, err := e.Apply(b.Context(), podnet.Place{Path: pod.Path()}, want); err != nil {
			b.Fatal(err)
		}
		server, l.to.Port = "0.0.0.0", lanePort
	}
	l.clock = startHAProxy(b, pod, fmt.Sprintf(laneConfig, mode, server))
	err := kerneltest.As(pod, kerneltest.App, func() (err error) {
		if l.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptTimeval(l.listener, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
			unix.Bind(l.listener, &unix.SockaddrInet4{Port: lanePort}), unix.Listen(l.listener, unix.SOMAXCONN))
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Close(l.listener) })
	return l
}

// startHAProxy starts a HAProxy as the proxy's user, on one CPU, and returns its CPU clock.
func startHAProxy(b *testing.B, pod *netns.NS, config string) (clock int32) {
	b.Helper()
	program, file := kerneltest.ProgramPath(b, "haproxy"), filepath.Join(b.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		b.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(filepath.Dir(file))} { // the proxy's user enters them
		if err := os.Chmod(dir, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	cmd := exec.CommandContext(b.Context(), program, "-db", "-f", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1337, Gid: 1337}}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := pod.Inside(func() error {
		if err := pinLane(); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	clock = int32(^cmd.Process.Pid<<3 | 2) // CLOCK_PROCESS_CPUTIME_ID of that process: clock_getcpuclockid(3)
	listens := fmt.Sprintf(":%04X", iptables.DefaultSpec().InboundPort)
	kerneltest.Eventually(b, "HAProxy listens", func() bool {
		sockets, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", cmd.Process.Pid))
		return strings.Contains(string(sockets), listens)
	})
	return clock
}

// pinLane keeps the calling thread, and what it starts, on the first CPU that it may use.
func pinLane() error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// round measures once.
func (l *proxyLane) round() error {
	if err := pinLane(); err != nil {
		return err
	}
	if err := l.connections(1 + laneConnections/10); err != nil { // the thread is new, and its caches are cold
		return err
	}
	each, err := l.timed(laneConnections, l.connections)
	if err != nil {
		return err
	}
	l.connection = append(l.connection, each)
	client, server, err := l.open()
	if err != nil {
		return err
	}
	each, err = l.timed(laneRequests, func(n int) error {
		for range n {
			if err := exchangeLane(client, server); err != nil {
				return err
			}
		}
		return nil
	})
	l.request = append(l.request, each)
	return errors.Join(err, unix.Close(client), unix.Close(server))
}

// connections opens connections, makes a request on each, and closes them.
func (l *proxyLane) connections(n int) error {
	for range n {
		client, server, err := l.open()
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Close(client), unix.Close(server)); err != nil {
			return err
		}
	}
	return nil
}

// open opens a connection through the proxy to the application, and makes a request: HAProxy dials then.
func (l *proxyLane) open() (client, server int, err error) {
	if client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, err
	}
	patience := &unix.Timeval{Sec: 5}
	if err := errors.Join(unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_RCVTIMEO, patience), uninterrupted(func() error { return unix.Connect(client, &l.to) })); err != nil {
		return 0, 0, err
	}
	if _, err := unix.Write(client, []byte(laneRequest)); err != nil {
		return 0, 0, err
	}
	err = uninterrupted(func() (err error) {
		server, _, err = unix.Accept4(l.listener, unix.SOCK_CLOEXEC)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("accept what the proxy dials: %w", err)
	}
	return client, server, errors.Join(unix.SetsockoptTimeval(server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, patience), answerLane(client, server))
}

func exchangeLane(client, server int) error {
	if _, err := unix.Write(client, []byte(laneRequest)); err != nil {
		return err
	}
	return answerLane(client, server)
}

// answerLane answers the request that the client has sent.
func answerLane(client, server int) error {
	if err := readUntil(server, "\r\n\r\n"); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if _, err := unix.Write(server, []byte(laneAnswer)); err != nil {
		return err
	}
	if err := readUntil(client, "\r\n\r\nok"); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// readUntil reads until the text ends so.
func readUntil(fd int, end string) error {
	text, part := []byte(nil), make([]byte, 1024)
	for !bytes.HasSuffix(text, []byte(end)) {
		var n int
		err := uninterrupted(func() (err error) { n, err = unix.Read(fd, part); return err })
		if err != nil || n == 0 {
			return fmt.Errorf("after %q: %d bytes, %w", text, n, err)
		}
		text = append(text, part[:n]...)
	}
	return nil
}

// uninterrupted repeats a call that a signal interrupts, such as those by which Go preempts threads.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// timed returns the microseconds of CPU that the calling thread and the proxy take for each of n.
func (l *proxyLane) timed(n int, f func(n int) error) (each float64, err error) {
	used := func() (sum time.Duration, err error) {
		for _, clock := range []int32{unix.CLOCK_THREAD_CPUTIME_ID, l.clock} {
			var at unix.Timespec
			if err := unix.ClockGettime(clock, &at); err != nil {
				return 0, err
			}
			sum += time.Duration(at.Nano())
		}
		return sum, nil
	}
	before, err := used()
	if err != nil {
		return 0, err
	}
	if err := f(n); err != nil {
		return 0, err
	}
	after, err := used()
	return float64((after - before).Nanoseconds()) / 1000 / float64(n), err
}
