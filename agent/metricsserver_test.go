package agent

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/apiauth"
	"istio-pod-network-controller/internal/serving"
)

// fakeReviewer is an API server that makes reviews: "reader" may get /metrics, "stranger" may not, and other tokens are nobody's.
func fakeReviewer(t *testing.T) (config *rest.Config, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		var review struct {
			Spec struct {
				Token, User           string
				NonResourceAttributes struct{ Path, Verb string }
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		answer := map[string]any{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}
		known := review.Spec.Token == "reader" || review.Spec.Token == "stranger"
		answer["status"] = map[string]any{"authenticated": known, "user": map[string]any{"username": review.Spec.Token}}
		if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
			want := struct{ Path, Verb string }{"/metrics", "get"}
			answer["kind"], answer["apiVersion"] = "SubjectAccessReview", "authorization.k8s.io/v1"
			answer["status"] = map[string]any{"allowed": review.Spec.User == "reader" && review.Spec.NonResourceAttributes == want}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, requests
}

func TestMetricsAreForThoseWhoMay(t *testing.T) {
	config, requests := fakeReviewer(t)
	handler, err := authorizedMetrics(config, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "the metrics") }))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, authorization string) (code int, body string) {
		r := httptest.NewRequest(method, path, http.NoBody)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for name, tc := range map[string]struct {
		method, path, authorization string
		want                        int
	}{
		"who may":                    {http.MethodGet, "/metrics", "Bearer reader", 200},
		"who may not":                {http.MethodGet, "/metrics", "Bearer stranger", 403},
		"a token of nobody":          {http.MethodGet, "/metrics", "Bearer x", 401},
		"no token":                   {http.MethodGet, "/metrics", "", 401},
		"a password":                 {http.MethodGet, "/metrics", "Basic cmVhZGVyOg==", 401},
		"who may, another path":      {http.MethodGet, "/debug", "Bearer reader", 403},
		"who may, but not with POST": {http.MethodPost, "/metrics", "Bearer reader", 403},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := ask(tc.method, tc.path, tc.authorization)
			if code != tc.want || strings.Contains(body, "the metrics") != (tc.want == 200) {
				t.Errorf("%d %q, want %d", code, body, tc.want)
			}
		})
	}
	before := requests.Load()
	for range 10 {
		if code, _ := ask(http.MethodGet, "/metrics", "Bearer reader"); code != 200 {
			t.Errorf("asked again: %d", code)
		}
	}
	if n := requests.Load() - before; n != 0 {
		t.Errorf("%d requests to the API server for scrapes within %s", n, metricsAllowedTime)
	}
}

// Without the API server nobody reads metrics, and nobody learns why.
func TestNoMetricsWithoutTheAPIServer(t *testing.T) {
	reviews, err := apiauth.NewClient(&rest.Config{Host: "http://127.0.0.1:1"}, http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Authorization", "Bearer reader")
	authorizedHandler{authorizer: apiauth.New(reviews, apiauth.Options{AllowedTime: metricsAllowedTime}), log: logr.Discard()}.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "127.0.0.1") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// serveMetrics serves until the test ends, and returns where.
func serveMetrics(t *testing.T, o Options) string {
	t.Helper()
	o.MetricsAddr = freeAddr(t)
	var p serving.Ports
	stop, err := o.serveMetrics(t.Context(), &p, &rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o.MetricsAddr
}

// Whoever reaches the port has neither a token nor the right to fill the agent's memory.
func TestConnectionsToMetricsAreBounded(t *testing.T) {
	at := serveMetrics(t, Options{})
	if response, err := http.Get("http://" + at + "/metrics"); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%+v, %v", response, err)
	}
	refused := 0
	for range 2 * metricsBounds().OpenEach {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test is over
		_ = conn.SetDeadline(time.Now().Add(metricsReadTimeout / 2))
		_, _ = conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: a\r\nX: "))
		_, _ = conn.Write(bytes.Repeat([]byte("x"), 1<<17))
		answer := make([]byte, 12)
		switch n, err := conn.Read(answer); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatal("headers of 128 KB are waited for")
		case n == len(answer) && string(answer) != "HTTP/1.1 431":
			t.Fatalf("answer %q", answer)
		case n == 0:
			refused++
		}
	}
	var open []net.Conn
	for range 2 * metricsBounds().OpenEach {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test is over
		open = append(open, conn)
	}
	closed := 0
	for _, conn := range open {
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed < metricsBounds().OpenEach {
		t.Errorf("%d of %d idle connections of one address were closed", closed, len(open))
	}
}

// The options reach the server: TLS 1.2 or newer with HTTP/1.1, a filter; and none of it without --metrics-secure.
func TestHowMetricsAreServed(t *testing.T) {
	at := serveMetrics(t, Options{MetricsSecure: true})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // what is tested
	response, err := client.Get("https://" + at + "/metrics")
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Fatalf("%+v, %v", response, err)
	}
	_ = response.Body.Close()
	for version, wantErr := range map[uint16]bool{tls.VersionTLS11: true, tls.VersionTLS12: false, tls.VersionTLS13: false} {
		conn, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, ServerName: Name, MinVersion: tls.VersionTLS10, MaxVersion: version, NextProtos: []string{"h2", "http/1.1"}}) //nolint:gosec // what is tested
		if (err != nil) != wantErr {
			t.Errorf("TLS version %x: %v", version, err)
		}
		if err == nil {
			state := conn.ConnectionState()
			if state.NegotiatedProtocol != "http/1.1" || state.PeerCertificates[0].Subject.CommonName != Name {
				t.Errorf("protocol %q, certificate of %s", state.NegotiatedProtocol, state.PeerCertificates[0].Subject)
			}
			_ = conn.Close()
		}
	}
}
