package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// Serves returns nil if an epoch's Envoy has taken over: then its admin interface answers /ready with 200.
func (a asker) Serves(ctx context.Context, s podnet.Sandbox, epoch uint32) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return ask(ctx, http.MethodGet, "http://localhost/ready", func(ctx context.Context) (net.Conn, error) {
		return sidecars.DialSocket(ctx, a.homes.AdminSocket(s, epoch))
	})
}

// Listens returns sidecars.ErrNobodyListens if connections to the profile's outbound port are refused.
func (a asker) Listens(ctx context.Context, s podnet.Sandbox, p *sidecars.Profile) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := a.dial(ctx, s, p.Spec.Network.OutboundPort)
	if errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w: %w", sidecars.ErrNobodyListens, err)
	} else if err != nil {
		return err
	}
	return conn.Close()
}

// ask returns nil if a page is answered with a status from 200 to 399.
func ask(ctx context.Context, method, url string, dial func(context.Context) (net.Conn, error)) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
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
		return fmt.Errorf("the proxy answers %s", response.Status)
	}
	return nil
}
