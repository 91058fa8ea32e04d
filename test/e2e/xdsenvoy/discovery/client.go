// Package discovery is an xDS client: the aggregated stream, incremental or state of the world, and streams of secrets.
package discovery

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// Types of resources.
const (
	Clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Routes    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	Secrets   = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Change is what one response changes.
type Change struct {
	Type    string
	Set     map[string]*anypb.Any
	Removed []string
}

// Receiver is told of changes.
type Receiver interface {
	// Apply takes a change, or refuses it: the server is told the reason.
	Apply(change Change) error
	// Wanted lists resources of a type that others refer to; nil for a type of which all are wanted.
	Wanted(typeURL string) []string
}

// Client keeps one stream and opens it anew when it ends.
type Client struct {
	Node     *corev3.Node
	Receiver Receiver
	Log      *slog.Logger
	// Types are asked for in this order: the second when the first was received, so that listeners find their clusters.
	Types []string
	// Open opens a stream.
	Open func(ctx context.Context) (Stream, error)
	// OnState is told whether a stream is open; may be nil.
	OnState func(connected bool)
}

// Stream is one of the protocol's variants on one connection.
type Stream interface {
	// Ask subscribes. For a type of which all are wanted, names is nil.
	Ask(typeURL string, names []string) error
	// Receive waits for a response.
	Receive() (*Response, error)
	// Answer accepts a response, or refuses it with a reason.
	Answer(r *Response, reason error) error
}

// Response is a response of either variant.
type Response struct {
	Change
	nonce    string
	version  string            // state of the world
	versions map[string]string // incremental
}

// Between two attempts to open a stream: the first pause, doubled up to the second.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Run keeps the stream until ctx ends.
func (c *Client) Run(ctx context.Context) {
	pause := firstPause
	for {
		began := time.Now()
		err := c.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		c.Log.Warn("stream ended, trying again", "types", shortNames(c.Types), "pause", pause.String(), "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// stream serves one stream to its end.
func (c *Client) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.Open(ctx)
	if err != nil {
		return err
	}
	asked := map[string][]string{}
	defer c.state(false)
	for {
		if err := c.ask(s, asked); err != nil {
			return err
		}
		response, err := s.Receive()
		if err != nil {
			return err
		}
		c.state(true)
		reason := c.Receiver.Apply(response.Change)
		if reason != nil {
			c.Log.Error("update refused", "type", shortName(response.Type), "error", reason)
		} else {
			c.Log.Info("update applied", "type", shortName(response.Type), "set", len(response.Set), "removed", len(response.Removed))
		}
		if err := s.Answer(response, reason); err != nil {
			return err
		}
		if _, ok := asked[response.Type]; ok {
			asked[received+response.Type] = nil
		}
	}
}

// received marks a type in the record of a stream's questions: a response has come.
const received = "received "

// ask brings the subscriptions up to date. A type is asked for at first when a response of the type before it has come, and a type without wanted
// resources is not asked for.
func (c *Client) ask(s Stream, asked map[string][]string) error {
	for _, typeURL := range c.Types {
		names := c.Receiver.Wanted(typeURL)
		slices.Sort(names)
		before, ok := asked[typeURL]
		named := typeURL == Endpoints || typeURL == Routes || typeURL == Secrets
		if (!ok || !slices.Equal(before, names)) && (ok || !named || len(names) > 0) {
			if err := s.Ask(typeURL, names); err != nil {
				return err
			}
			asked[typeURL] = names
		}
		if _, ok := asked[received+typeURL]; !ok && !named {
			return nil
		}
	}
	return nil
}

func (c *Client) state(connected bool) {
	if c.OnState != nil {
		c.OnState(connected)
	}
}

// ADS opens the aggregated stream.
func ADS(conn grpc.ClientConnInterface, node *corev3.Node, incremental bool) func(context.Context) (Stream, error) {
	if incremental {
		known := map[string]map[string]string{} // for all streams: a new one says what is known
		return func(ctx context.Context) (Stream, error) { return openIncremental(ctx, conn, node, known) }
	}
	seen := map[string]map[string]bool{}
	return func(ctx context.Context) (Stream, error) { return openWhole(ctx, conn, node, seen) }
}
