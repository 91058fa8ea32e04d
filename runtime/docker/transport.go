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
	// maxAnswerBytes bounds one answer. A pod's annotations are labels here: 256 KiB, for which JSON may need six times as many
	// bytes.
	maxAnswerBytes = 8 << 20
	// maxPathBytes is PATH_MAX.
	maxPathBytes = 4096
)

// transport connects to the Engine's socket, and makes a too large answer an error, because the client reads answers whole.
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

// RoundTrip implements http.RoundTripper.
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

// Read reads at most what is left and one byte more, which shows that an answer is too large.
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
