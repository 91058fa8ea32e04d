// Package serving has what the agent's servers share: listeners that last and are limited, and certificates.
package serving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// Socket listens at a socket file. It replaces the file that a killed container has left. Only root can connect to it.
func Socket(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("%s is in the way: it is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Below listens at HOST:PORT, or at one of the next ports below if that is taken, of so many in all. Port 0 is any.
func Below(ctx context.Context, addr string, ports uint64) (net.Listener, int, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, 0, fmt.Errorf("listen at %q: %w", addr, err)
	}
	first, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("listen at %q: %w", addr, err)
	}
	var config net.ListenConfig
	var errs []error
	for i := range ports {
		if i >= first && i > 0 {
			break
		}
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.FormatUint(first-i, 10)))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			return l, at.Port, nil
		}
	}
	return nil, 0, errors.Join(errs...)
}
