package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A page is made of the answers of other servers, with what a proxy has said of the certificates. It fails if one of them does.
func TestHTTPServerAsksOthers(t *testing.T) {
	const cert = `By=spiffe://cluster.local/ns/a/sa/reviews;URI=spiffe://cluster.local/ns/a/sa/page`
	broken := false
	reviews := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken {
			http.Error(w, "RBAC: access denied", http.StatusForbidden)
			return
		}
		_ = writeAnswer(w, answer{Banner: "reviews", ClientCert: cert})
	}))
	defer reviews.Close()
	page := "http://" + startServer(t, "-http", "0", "-bind", "127.0.0.1", "-banner", "page", "-ask", reviews.URL+"/0,"+reviews.URL+"/1") + "/"
	var out strings.Builder
	if err := run(t.Context(), []string{"get", page}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	got := decode[answer](t, out.String())
	want := []answer{{Banner: "reviews", ClientCert: cert}, {Banner: "reviews", ClientCert: cert}}
	if diff := cmp.Diff(want, got.Asked); got.Banner != "page" || diff != "" {
		t.Error(got.Banner, diff)
	}
	broken = true
	err := run(t.Context(), []string{"get", page}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "502") || !strings.Contains(err.Error(), "403 Forbidden: RBAC: access denied") {
		t.Errorf("error %v, want the page's and the reason", err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+startServer(t, "-http", "0", "-bind", "127.0.0.1"), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Forwarded-Client-Cert", cert)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if a, err := readAnswer(response.Body); err != nil || a.ClientCert != cert {
		t.Errorf("the server saw %q, error %v", a.ClientCert, err)
	}
}

// A server that sees another peer knows that somebody is in between.
func TestHTTPClientTellsTheAddressThatItConnectsFrom(t *testing.T) {
	var from, peer string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, peer = r.Header.Get("From-Address"), r.RemoteAddr
		_ = json.NewEncoder(w).Encode(answer{})
	}))
	defer server.Close()
	if err := run(t.Context(), []string{"get", server.URL}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	if from == "" || from != peer {
		t.Errorf("the client says that it connects from %q, the server sees %s", from, peer)
	}
}

func TestDialCountsAnswersByBanner(t *testing.T) {
	addr := startServer(t, "-http", "", "-tcp", "0", "-bind", "127.0.0.1", "-banner", "b3")
	var out strings.Builder
	if err := run(t.Context(), []string{"dial", "-n", "5", "-every", "0", "-report", "0", addr}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	got := decode[summary](t, out.String())
	got.LongestMillis = 0
	if diff := cmp.Diff(summary{OK: 5, Answers: map[string]int{"b3": 5}, Done: true}, got); diff != "" {
		t.Error(diff)
	}
}

func TestDialFailsWhenOneRequestFailed(t *testing.T) {
	n := 0
	ask := func(context.Context) (string, error) {
		if n++; n == 2 {
			return "", errors.New("refused")
		}
		return "b", nil
	}
	result, err := series{n: 3}.run(t.Context(), ask, io.Discard)
	if err != nil || result.OK != 2 || result.Failed != 1 || result.Errors["refused"] != 1 {
		t.Errorf("got %+v, %v", result, err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"dial", "-n", "1", closed.Addr().String()}, io.Discard, io.Discard); err == nil {
		t.Error("no error though nobody listens")
	}
}

func TestDialEndsInTimeWithoutBreakingARequestOff(t *testing.T) {
	ask := func(ctx context.Context) (string, error) { return "b", ctx.Err() }
	result, err := series{lasting: 30 * time.Millisecond, every: time.Millisecond}.run(t.Context(), ask, io.Discard)
	if err != nil || result.Failed > 0 || result.OK == 0 || !result.Done {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestWrongUse(t *testing.T) {
	for name, args := range map[string][]string{
		"no command": nil, "unknown command": {"x"}, "no URL": {"get"}, "no target": {"dial"}, "no name": {"lookup"}, "both families": {"get", "-4", "-6", "http://x"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
				t.Error("no error")
			}
		})
	}
}

// startServer runs "serve" and returns the address that it says it listens on.
func startServer(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, append([]string{"serve"}, args...), io.Discard, w) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\S+$`).FindString(strings.TrimSpace(line))
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}
