package listen

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"istio-pod-network-controller/test/e2e/xdsenvoy/rbac"
	"istio-pod-network-controller/test/e2e/xdsenvoy/route"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// requestProxy serves requests, of HTTP/1.1 and HTTP/2.
type requestProxy struct {
	listeners *Listeners
	of        *listener
	chain     *chain
	hcm       *hcmv3.HttpConnectionManager
	table     *route.Table // nil: discovered
	rules     []*rbac.Rules

	start  sync.Once
	conns  chan net.Conn
	server *http.Server
	proxy  *httputil.ReverseProxy
}

func (l *Listeners) newRequests(of *listener, c *chain, f *listenerv3.Filter) (*requestProxy, error) {
	p := &requestProxy{listeners: l, of: of, chain: c, hcm: &hcmv3.HttpConnectionManager{}, conns: make(chan net.Conn)}
	if err := f.GetTypedConfig().UnmarshalTo(p.hcm); err != nil {
		return nil, err
	}
	l.Board.Fields(of.name, p.hcm, "codec_type", "stat_prefix", "rds", "route_config", "http_filters", "forward_client_cert_details", "set_current_client_cert_details",
		"server_name", "server_header_transformation", "generate_request_id", "normalize_path", "merge_slashes", "path_with_escaped_slashes_action", "upgrade_configs",
		"access_log", "tracing", "use_remote_address", "stream_idle_timeout", "http_protocol_options", "http2_protocol_options", "delayed_close_timeout",
		"request_id_extension", "append_x_forwarded_port", "proxy_100_continue", "preserve_external_request_id", "always_set_request_id_in_response")
	if config := p.hcm.GetRouteConfig(); config != nil {
		var err error
		if p.table, err = route.New(config, l.Board); err != nil {
			return nil, err
		}
	}
	for _, f := range p.hcm.GetHttpFilters() {
		if err := p.addFilter(f); err != nil {
			return nil, err
		}
	}
	p.proxy = p.newProxy()
	p.server = &http.Server{
		Handler: p, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if of, is := c.(*conn); is && of.counted.asClient {
				ctx = upstream.From(ctx, of.source.Addr(), of.counted.mark)
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	p.server.Protocols.SetHTTP1(true)
	p.server.Protocols.SetUnencryptedHTTP2(true)
	return p, nil
}

func (p *requestProxy) addFilter(f *hcmv3.HttpFilter) error {
	switch {
	case f.GetName() == "envoy.filters.http.rbac" || f.GetTypedConfig().GetTypeUrl() == "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC":
		var m httprbacv3.RBAC
		if err := f.GetTypedConfig().UnmarshalTo(&m); err != nil {
			return err
		}
		p.rules = append(p.rules, rbac.New(m.GetRules(), p.listeners.Log))
	case !slices.Contains(harmless, f.GetName()):
		p.listeners.close(p.chain, "HTTP filter "+f.GetName()+" is not understood")
	}
	return nil
}

// rdsNames lists discovered routes that the chains refer to.
func (p *listener) rdsNames() []string {
	var names []string
	for _, c := range append(slices.Clone(p.chains), p.fallback) {
		if c == nil {
			continue
		}
		if requests, ok := c.terminal.(*requestProxy); ok && requests.table == nil {
			names = append(names, requests.hcm.GetRds().GetRouteConfigName())
		}
	}
	return names
}

type connKey struct{}

// serve hands the connection to the server of package http, which runs from the first connection on.
func (p *requestProxy) serve(ctx context.Context, c *conn) {
	p.start.Do(func() {
		p.server.BaseContext = func(net.Listener) context.Context { return ctx }
		go p.server.Serve(handed{p.conns, ctx.Done()}) //nolint:errcheck // ends with the process
	})
	select {
	case p.conns <- c:
	case <-ctx.Done():
		c.end("the proxy ends")
	}
}

// handed is a listener of connections that others have accepted.
type handed struct {
	conns <-chan net.Conn
	done  <-chan struct{}
}

func (h handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h handed) Close() error   { return nil }
func (h handed) Addr() net.Addr { return &net.TCPAddr{} }

// ServeHTTP lets a request through the filters, in this order, and to its route.
func (p *requestProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	x := &exchange{conn: c, began: time.Now(), major: r.ProtoMajor, inbound: p.of.inbound}
	answer := &recorder{ResponseWriter: w}
	defer func() { p.count(x, r, answer.status) }()
	p.prepare(r, c)
	if p.chain.leaving.Load() || p.listeners.leaving(p.of.inbound) {
		w.Header().Set("Connection", "close") // for HTTP/2 this is GOAWAY
	}
	subject := c.subject()
	subject.Request = r
	for _, rules := range p.rules {
		if allowed, policy := rules.Allowed(subject); !allowed {
			x.detail = "denied by policy: " + policy
			p.listeners.Stats.Counter("http.rbac.denied").Add(1)
			reply(answer, http.StatusForbidden, "RBAC: access denied")
			return
		}
	}
	p.route(answer, r, x)
}

// findLimit is how long a request waits for configuration that is on its way.
const findLimit = 10 * time.Second

func (p *requestProxy) route(w http.ResponseWriter, r *http.Request, x *exchange) {
	table := p.table
	if table == nil {
		ctx, cancel := context.WithTimeout(r.Context(), findLimit)
		defer cancel()
		var err error
		if table, err = p.listeners.Routes.Get(ctx, p.hcm.GetRds().GetRouteConfigName()); err != nil {
			x.detail = err.Error()
			reply(w, http.StatusServiceUnavailable, "")
			return
		}
	}
	x.match = table.Find(r)
	if x.match == nil {
		x.detail = "no route in " + table.Name
		reply(w, http.StatusNotFound, "")
		return
	}
	delay, status := x.match.Fault.Draw()
	if delay > 0 {
		x.detail = "delay injected"
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case status > 0:
		x.detail = "fault injected"
		reply(w, status, "fault filter abort")
	case x.match.Direct > 0:
		x.match.EditResponse(w.Header())
		reply(w, x.match.Direct, x.match.Body)
	case x.match.Redirect != nil:
		location, status := x.match.Redirect(r)
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	default:
		p.forward(w, r, x)
	}
}

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the client may have gone
}
