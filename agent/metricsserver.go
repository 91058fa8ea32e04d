package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"istio-pod-network-controller/internal/apiauth"
	"istio-pod-network-controller/internal/serving"
)

const (
	// metricsAllowedTime is how long an answer of the API server holds. At 500 agents Prometheus' scrapes cost it 8 requests a second.
	metricsAllowedTime = 2 * time.Minute
	// metricsAtOnce bounds the scrapes under way: anybody may connect, and the readiness checks run for each.
	metricsAtOnce = 4
	// Requests have to come quickly, answers may be read slowly, and idle connections stay open from one scrape to the next.
	metricsReadTimeout, metricsWriteTimeout, metricsIdleTimeout = 5 * time.Second, 30 * time.Second, 2 * time.Minute
)

// metricsBounds leave room for several Prometheus servers, which keep their connections from scrape to scrape.
func metricsBounds() serving.Bounds {
	return serving.Bounds{RateEach: 10, BurstEach: 40, Rate: 50, Burst: 200, OpenEach: 16, Open: 64}
}

// serveMetrics serves /metrics until stop is called, also before the API server is reached.
func (o Options) serveMetrics(ctx context.Context, p *serving.Ports, config *rest.Config) (stop func(), err error) {
	if o.MetricsAddr == "" || o.MetricsAddr == "0" {
		return func() {}, nil
	}
	handler := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: metricsAtOnce})
	if o.MetricsSecure {
		if handler, err = authorizedMetrics(config, handler); err != nil {
			return nil, fmt.Errorf("serve metrics: %w", err)
		}
	}
	return p.Serve(ctx, "metrics", serving.Shared(o.MetricsAddr), func(ctx context.Context, l net.Listener) error {
		return o.metricsServer(l, handler).Start(ctx)
	}), nil
}

// metricsServer returns the server of /metrics. controller-runtime's takes any number of connections, each with a megabyte of headers for half a
// minute: enough for a pod to fill the agent's memory.
func (o Options) metricsServer(l net.Listener, handler http.Handler) *manager.Server {
	l = serving.Limit(l, metricsBounds())
	if o.MetricsSecure {
		l = tls.NewListener(l, o.metricsTLS())
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	return &manager.Server{
		Name: "metrics", Listener: l, ShutdownTimeout: new(time.Second),
		Server: &http.Server{
			Handler: mux, ReadTimeout: metricsReadTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: metricsIdleTimeout, MaxHeaderBytes: 1 << 15,
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // what a caller sends that is no TLS and no HTTP is no news
		},
	}
}

func (o Options) metricsTLS() *tls.Config {
	certificate := &serving.Certificate{Name: Name, Dir: o.MetricsCertDir}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, // HTTP/2 gains a scrape nothing
		GetCertificate: certificate.Get,
	}
}

// authorizedMetrics asks the API server whether the caller may get the path. controller-runtime has such a filter, too, but it links
// k8s.io/apiserver into every agent.
func authorizedMetrics(config *rest.Config, next http.Handler) (http.Handler, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	reviews, err := apiauth.NewClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	authorizer := apiauth.New(reviews, apiauth.Options{AllowedTime: metricsAllowedTime})
	return authorizedHandler{authorizer: authorizer, next: next, log: ctrl.Log.WithName("metrics")}, nil
}

// authorizedHandler passes on what the API server allows.
type authorizedHandler struct {
	authorizer *apiauth.Authorizer
	next       http.Handler
	log        logr.Logger
}

// ServeHTTP answers 401 or 403 to callers who may not, 429 to a flood of tokens, and 503 while the API server does not answer.
func (h authorizedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h.authorizer.Authorize(r.Context(), apiauth.Token(r), apiauth.Attributes{Verb: strings.ToLower(r.Method), Path: r.URL.Path})
	code := apiauth.StatusCode(err)
	if err == nil {
		h.next.ServeHTTP(w, r)
		return
	}
	if code == http.StatusServiceUnavailable { // the reason is for the log only
		h.log.Info("metrics not served", "reason", err.Error())
		err = errors.New("the API server was not asked whether you may")
	}
	http.Error(w, err.Error(), code)
}
