package inspectserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
)

// podProxy is what the API server does with pods/proxy: it takes the caller's token away, and does not check the agent's certificate.
func podProxy(t *testing.T, at *agentstatus.Inspect, seen func(*http.Request)) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, fmt.Sprintf("/api/v1/namespaces/mesh-system/pods/https:agent-1:%d/proxy", at.Port))
		if !ok {
			http.NotFound(w, r)
			return
		}
		seen(r.Clone(r.Context()))
		r.Header.Del("Authorization")
		to := &url.URL{Scheme: "https", Host: fmt.Sprintf("127.0.0.1:%d", at.Port), Path: rest}
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as the API server
		p := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL, r.Out.Host = to, to.Host }}
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestTheAPIServerPassesWhatItCannotRead(t *testing.T) {
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	var passed *http.Request
	api := podProxy(t, at, func(r *http.Request) { passed = r })
	c := callerOfAgent(at, "dev")
	c.Dial = func(ctx context.Context) (net.Conn, error) {
		return inspect.Tunnel(ctx, &rest.Config{Host: api.URL, BearerToken: "dev"}, "mesh-system", "agent-1", at.Port)
	}
	doc, err := c.Get(t.Context(), "shop", "cart")
	if err != nil || doc.Pod != "shop/cart" {
		t.Fatalf("document %+v, error %v", doc, err)
	}
	if passed.Method != http.MethodGet || passed.Header.Get("Upgrade") != inspect.UpgradeProtocol {
		t.Errorf("the API server saw %s with %v", passed.Method, passed.Header)
	}
	if _, err := c.Get(t.Context(), "secret", "cart"); codeOf(t, err) != http.StatusForbidden {
		t.Error(err)
	}
	c.Certificate = strings.Repeat("0", 64)
	if _, err := c.Get(t.Context(), "shop", "cart"); err == nil || !strings.Contains(err.Error(), "somebody is in between") {
		t.Errorf("with another certificate: %v", err)
	}
}

// What asks by way of the API server without TLS inside has lost its token, and gets nothing.
func TestAPlainRequestThroughTheAPIServerIsRefused(t *testing.T) {
	_, at := served(t, (&oneNode{}).looker(fakeKernel{}))
	api := podProxy(t, at, func(*http.Request) {})
	for path, want := range map[string]int{
		inspect.Path("shop", "cart"): http.StatusUnauthorized, inspect.TunnelPath: http.StatusBadRequest, "/metrics": http.StatusNotFound, "/": http.StatusNotFound,
	} {
		response, err := http.Get(fmt.Sprintf("%s/api/v1/namespaces/mesh-system/pods/https:agent-1:%d/proxy%s", api.URL, at.Port, path))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, response.StatusCode, want)
		}
	}
}
