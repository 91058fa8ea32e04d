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
	// maxAnswerBytes bounds what one answer may cost. It is twice gRPC's default: annotations of 256 KiB a pod are legal, the
	// verbose status repeats them two times in JSON, which makes six bytes of one.
	maxAnswerBytes = 8 << 20
	// maxReconnectDelay keeps a restarted runtime from being missed for gRPC's default of two minutes.
	maxReconnectDelay = 2 * time.Second
	connectTimeout    = 5 * time.Second
)

// socketPath reads an endpoint as the kubelet's --container-runtime-endpoint is read on Linux.
func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("runtime endpoint %q: want unix:///path/to/socket or /path/to/socket", endpoint)
	}
	return path, nil
}

// dial makes a connection that is established by the first call. The path goes past gRPC's URL parser, which would
// stumble over some characters; "localhost" is the authority that every runtime's HTTP/2 server accepts.
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
