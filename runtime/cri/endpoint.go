package cri

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxAnswerBytes bounds one answer. It is twice gRPC's default: a pod may have 256 KiB of annotations, the verbose status repeats them
	// twice, and JSON may need six bytes for one.
	maxAnswerBytes = 8 << 20
	// maxReconnectDelay: gRPC's default of two minutes would be too long after a restart of the runtime.
	maxReconnectDelay = 2 * time.Second
	connectTimeout    = 5 * time.Second
)

// socketPath parses an endpoint as the kubelet parses --container-runtime-endpoint on Linux.
func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("runtime endpoint %q: want unix:///path/to/socket or /path/to/socket", endpoint)
	}
	return path, nil
}

// dial returns a connection that the first call establishes. The path does not go through gRPC's URL parser, which refuses some
// characters. "localhost" is an authority that every runtime's HTTP/2 server accepts.
func dial(path string) (*grpc.ClientConn, error) {
	retry := backoff.DefaultConfig
	retry.BaseDelay = 100 * time.Millisecond
	retry.MaxDelay = maxReconnectDelay
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
	)
}
