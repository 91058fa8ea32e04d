package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// maxAnswer bounds what is read of an answer's headers: an application that has become the proxy's user may answer in its place.
const maxAnswer = 4 << 10

// ask returns nil if a page is answered with a status from 200 to 399.
func ask(ctx context.Context, method, url string, dial func(context.Context) (net.Conn, error)) error {
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make request for the proxy: %w", err)
	}
	response, err := transport.RoundTrip(request) // which follows no redirect
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // without the ports, which are others each time: the text goes into the ManagedProxy
	}
	if err != nil {
		return fmt.Errorf("ask the proxy: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("the proxy answers with status %d", response.StatusCode)
	}
	return nil
}
