package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// askTimeout bounds one question to the proxy, and maxVersion what is read of its answer.
	askTimeout = 2 * time.Second
	maxVersion = 256
	maxHeaders = 4 << 10
)

// ask returns the version that the proxy's configuration has, as it answers itself.
func (d directory) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeaders,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, d.socket()) },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://proxy/", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask the proxy for its version: %w", err)
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("ask the proxy for its version: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxVersion))
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return "", fmt.Errorf("ask the proxy for its version: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask the proxy for its version: status %d", answer.StatusCode)
	}
	return strings.TrimSpace(string(text)), nil
}

// dial connects to a socket in a directory to which the proxy may write: it follows no link out of there.
func dial(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	held := os.NewFile(uintptr(fd), path)
	defer held.Close() //nolint:errcheck // it names the socket only
	info, err := held.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is not a socket", path)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
}
