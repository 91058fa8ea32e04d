package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	// maxAnswerBytes bounds what one answer may cost. A pod's annotations come as labels: 256 KiB, up to six times as many
	// bytes in JSON.
	maxAnswerBytes = 8 << 20
	// maxPathBytes is PATH_MAX.
	maxPathBytes = 4096
)

// transport asks over the Engine's socket, and has an answer end in an error where it is too large: the client reads it whole.
type transport struct{ base *http.Transport }

func newTransport(path string) transport {
	return transport{base: &http.Transport{
		DisableCompression: true,
		MaxIdleConns:       2,
		IdleConnTimeout:    30 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
}

// RoundTrip is http.RoundTripper's.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundBody{ReadCloser: resp.Body, left: maxAnswerBytes}
	return resp, nil
}

type boundBody struct {
	io.ReadCloser
	left int
}

// Read reads no more than is left, and one byte to tell an answer that ends there from one that goes on.
func (b *boundBody) Read(p []byte) (int, error) {
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	if b.left < 0 {
		return n, fmt.Errorf("the Engine's answer is larger than %d bytes", maxAnswerBytes)
	}
	return n, err
}
