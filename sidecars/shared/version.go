package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	// askTimeout bounds one question to the proxy, and maxVersion what is read of its answer.
	askTimeout = 2 * time.Second
	maxVersion = 256
)

// ask returns the version that the proxy's configuration has, as it answers itself.
func (d directory) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := os.Lstat(d.socket())
	if err != nil {
		return "", fmt.Errorf("ask the proxy for its version: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket { // the proxy may write there
		return "", fmt.Errorf("ask the proxy for its version: %s is not a socket", d.socket())
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.socket())
	}}
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
