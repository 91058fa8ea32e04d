package listen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"path"
	"strconv"
	"strings"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/route"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// exchange is a request with what became of it.
type exchange struct {
	conn     *conn
	began    time.Time
	major    int // of the client's protocol
	inbound  bool
	match    *route.Match
	endpoint string
	secured  bool // towards the endpoint
	detail   string
}

type exchangeKey struct{}

// prepare makes of a request what policies and routes look at.
func (p *requestProxy) prepare(r *http.Request, c *conn) {
	if p.hcm.GetNormalizePath().GetValue() {
		normalize(r)
	}
	const forwarded, id = "X-Forwarded-Client-Cert", "X-Request-Id"
	mode := p.hcm.GetForwardClientCertDetails()
	before := r.Header.Get(forwarded)
	r.Header.Del(forwarded)
	switch {
	case mode == hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY, c.peer != nil && mode == hcmv3.HttpConnectionManager_FORWARD_ONLY:
		if before != "" {
			r.Header.Set(forwarded, before)
		}
	case c.peer == nil:
	case mode == hcmv3.HttpConnectionManager_APPEND_FORWARD && before != "":
		r.Header.Set(forwarded, before+","+c.peer.Forwarded())
	case mode == hcmv3.HttpConnectionManager_APPEND_FORWARD, mode == hcmv3.HttpConnectionManager_SANITIZE_SET:
		r.Header.Set(forwarded, c.peer.Forwarded())
	}
	if r.Header.Get(id) == "" && (p.hcm.GetGenerateRequestId() == nil || p.hcm.GetGenerateRequestId().GetValue()) {
		r.Header.Set(id, rand.Text())
	}
	if r.Header.Get("X-Forwarded-Proto") == "" {
		r.Header.Set("X-Forwarded-Proto", "http")
	}
}

// normalize takes . and .. out of a path, which would lead policies astray.
func normalize(r *http.Request) {
	if before := r.URL.Path; strings.Contains(before, "/.") {
		r.URL.Path, r.URL.RawPath = path.Clean(before), ""
		if strings.HasSuffix(before, "/") && r.URL.Path != "/" {
			r.URL.Path += "/"
		}
	}
}

// forward sends a request to its cluster, and its answer back.
func (p *requestProxy) forward(w http.ResponseWriter, r *http.Request, x *exchange) {
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if x.match.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, x.match.Timeout)
		defer cancel()
	}
	p.proxy.ServeHTTP(w, r.WithContext(ctx))
}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

func (p *requestProxy) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			// The package takes out what it would not trust of a client.
			for name, values := range pr.In.Header {
				if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" {
					pr.Out.Header[name] = values
				}
			}
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery
			exchangeOf(pr.In).match.EditRequest(pr.Out)
		},
		Transport:     p,
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			x := exchangeOf(response.Request)
			x.match.EditResponse(response.Header)
			if p.hcm.GetServerHeaderTransformation() == hcmv3.HttpConnectionManager_OVERWRITE && p.hcm.GetServerName() != "" {
				response.Header.Set("Server", p.hcm.GetServerName())
			}
			response.Header.Set("X-Envoy-Upstream-Service-Time", strconv.FormatInt(time.Since(x.began).Milliseconds(), 10))
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			exchangeOf(r).detail = err.Error()
			switch {
			case errors.Is(err, upstream.ErrNoEndpoint):
				reply(w, http.StatusServiceUnavailable, "no healthy upstream")
			case errors.Is(err, context.DeadlineExceeded):
				reply(w, http.StatusGatewayTimeout, "upstream request timeout")
			default:
				reply(w, http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers")
			}
		},
		ErrorLog: slog.NewLogLogger(p.listeners.Log.Handler(), slog.LevelDebug),
	}
}

// RoundTrip sends a request to an endpoint of its cluster. What could not connect is tried again, with the next endpoint.
func (p *requestProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r)
	ctx, cancel := context.WithTimeout(r.Context(), findLimit)
	cluster, err := p.listeners.Clusters.Find(ctx, x.match.Cluster)
	cancel()
	if err != nil {
		return nil, err
	}
	if r.Body != nil {
		body := r.Body
		defer body.Close() //nolint:errcheck // it was read as far as it was wanted
		r.Body = keptOpen{body}
	}
	for attempt := 0; ; attempt++ {
		endpoint, err := cluster.Pick(x.conn.target)
		if err != nil {
			return nil, err
		}
		x.endpoint, x.secured = endpoint.Address, cluster.Secured(endpoint)
		response, err := cluster.RoundTrip(r, endpoint, x.major)
		if err == nil || !errors.As(err, new(upstream.ConnectError)) || attempt >= x.match.Retries {
			return response, err
		}
	}
}

// keptOpen is a body for several attempts.
type keptOpen struct{ io.Reader }

// Close leaves the body to who made it.
func (keptOpen) Close() error { return nil }

// recorder remembers the status.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the last status, which is not of those before the answer.
func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// count counts a request as Istio's telemetry does, with the labels that tests look at, and logs it if the mesh wants that.
func (p *requestProxy) count(x *exchange, r *http.Request, status int) {
	reporter, cluster, security, from := "source", "", "none", ""
	if x.match != nil {
		cluster = x.match.Cluster
	}
	if x.inbound {
		reporter = "destination"
	}
	if x.inbound && x.conn.peer != nil || !x.inbound && x.secured {
		security = "mutual_tls"
	}
	if x.conn.peer != nil {
		from = strings.Join(x.conn.peer.Names, ",")
	}
	p.listeners.Stats.Counter(fmt.Sprintf("istio_requests_total{reporter=%q,cluster=%q,response_code=%q,connection_security_policy=%q,source_principal=%q}",
		reporter, cluster, strconv.Itoa(status), security, strings.TrimPrefix(from, "spiffe://"))).Add(1)
	if len(p.hcm.GetAccessLog()) > 0 || x.detail != "" {
		p.listeners.Log.Info("request", "listener", p.of.name, "method", r.Method, "host", r.Host, "path", r.URL.Path, "status", status, "cluster", cluster,
			"endpoint", x.endpoint, "security", security, "peer", from, "detail", x.detail, "duration", time.Since(x.began).String())
	}
}
