package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An application that has become the proxy's user may answer for it. What it says stays with it.
func TestAsk_hostileAnswer_isBoundedAndPrintable(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"a status with words": {"HTTP/1.1 503 \x1b[2Jall is well\r\n\r\n", "the proxy answers with status 503"},
		"a long status":       {"HTTP/1.1 503 " + strings.Repeat("x", 8<<20) + "\r\n\r\n", "response headers exceeded"},
	} {
		at, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if conn, err := at.Accept(); err == nil {
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(c.answer))
				_ = conn.Close()
			}
		}()
		err = ask(t.Context(), http.MethodGet, "http://localhost/", func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", at.Addr().String())
		})
		_ = at.Close()
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 200 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %.300q", name, err)
		}
	}
}

// The kernel drops what comes to a listener whose queue is full. A connection for which no time is left is not waited for.
func TestConnect_noTimeLeft_returns(t *testing.T) {
	listener, port := listenWithoutQueue(t)
	for range 3 {
		fd := newSocket(t)
		if err := unix.Connect(fd, listener); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-10*time.Millisecond))
	defer cancel()
	done := make(chan error, 1)
	fd, err := unix.Dup(newSocket(t)) // connect closes it
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := connect(over, fd, port)
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits on")
	}
}

// Signals interrupt what waits: Go's scheduler sends them to threads that run for long.
func TestConnect_interrupted_waitsOn(t *testing.T) {
	listener, port := listenWithoutQueue(t)
	for range 3 {
		fd := newSocket(t)
		if err := unix.Connect(fd, listener); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	thread, stop, done := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	fd, err := unix.Dup(newSocket(t)) // connect closes it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(ctx, fd, port); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	close(stop)
	<-done
}

// listenWithoutQueue listens on the loopback, and accepts nothing.
func listenWithoutQueue(t *testing.T) (at *unix.SockaddrInet4, port int32) {
	t.Helper()
	fd := newSocket(t)
	err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	found, errName := unix.Getsockname(fd)
	if err = errors.Join(err, errName); err != nil {
		t.Fatal(err)
	}
	at = found.(*unix.SockaddrInet4)
	return at, int32(at.Port)
}

func newSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
