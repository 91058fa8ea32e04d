package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// maxSocketPath is the longest path that fits the kernel's sun_path with the suffix under which a socket is made.
	maxSocketPath = 107 - len(".12345678")
	// maxErrorText keeps an answer well below the size of a packet, and a pod's event readable.
	maxErrorText = 4096
)

func validatePath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) > maxSocketPath {
		return fmt.Errorf("CNI socket %q: want an absolute path of at most %d bytes", path, maxSocketPath)
	}
	return nil
}

// listener is a socket at a path that agents take over from each other: the agent that listened last has it.
type listener struct {
	*net.UnixListener
	path string
	info os.FileInfo
	once sync.Once
}

// listen makes the socket under another name and, once only root can connect, renames it to path. So at each moment an agent listens
// at the path and only root can connect. It also replaces the socket that a killed agent has left.
func listen(path string) (*listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is in the way: it is not a socket", path)
	}
	temp := fmt.Sprintf("%s.%08x", path, rand.Uint32()) //nolint:gosec // a name, not a secret
	u, err := net.ListenUnix(network, &net.UnixAddr{Name: temp, Net: network})
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false)
	l := &listener{UnixListener: u, path: path}
	if err := l.publish(temp); err != nil {
		return nil, errors.Join(err, u.Close(), os.Remove(temp))
	}
	return l, nil
}

func (l *listener) publish(temp string) error {
	if err := os.Chmod(temp, 0o600); err != nil {
		return err
	}
	info, err := os.Lstat(temp)
	if err != nil {
		return err
	}
	l.info = info
	return os.Rename(temp, l.path)
}

// ownsPath reports whether the path leads to this socket, and not to another agent's.
func (l *listener) ownsPath() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.info)
}

// stop closes the socket, and removes the path unless it leads to another agent's socket.
func (l *listener) stop() {
	l.once.Do(func() {
		if l.ownsPath() {
			_ = os.Remove(l.path)
		}
		_ = l.Close()
	})
}

// abandoned reports whether nobody listens at a path: the agent that had it has removed its socket, or was killed. An agent that is
// slow or refuses still has it.
func abandoned(ctx context.Context, path string, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := ask(ctx, path, request{Command: cmdStatus})
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// peer returns the user ID of the process at the other end.
func peer(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *syscall.Ucred
	var errOption error
	err = raw.Control(func(fd uintptr) {
		cred, errOption = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err := errors.Join(err, errOption); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

func write(conn *net.UnixConn, a answer, timeout time.Duration) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err = conn.Write(data)
	return err
}

// truncated returns an error's text, cut at maxErrorText.
func truncated(err error) string {
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + "…"
	}
	return text
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
