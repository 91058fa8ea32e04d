package inspectserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/serving"
)

// fakeProxies has one proxy. Its log has lines, and goes on with each of more if it is followed.
type fakeProxies struct {
	lines []string
	more  chan string
	err   error
	asked inspect.LogOptions
	ran   []string
}

func (f *fakeProxies) Log(ctx context.Context, namespace, pod string, o inspect.LogOptions, w io.Writer) error {
	f.asked = o
	for _, line := range f.lines {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	for o.Follow {
		select {
		case line, more := <-f.more:
			if !more {
				return f.err
			}
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
	return f.err
}

func (f *fakeProxies) Exec(_ context.Context, _, _ string, command []string, out, errOut io.Writer) (int, error) {
	f.ran = command
	_, _ = io.WriteString(out, strings.Join(f.lines, ""))
	_, _ = io.WriteString(errOut, "warning")
	return 3, f.err
}

// servedProxies serves a node's proxies, and returns the API server and where.
func servedProxies(t *testing.T, proxies ProxyAccess) (*reviews, *agentstatus.Inspect) {
	t.Helper()
	api := &reviews{}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	look := (&oneNode{}).looker(fakeKernel{})
	i := Server{Addr: "127.0.0.1:0", Look: look, Ports: &serving.Ports{}, At: &atomic.Pointer[agentstatus.Inspect]{}, Proxies: proxies}
	stop, err := i.serveTLS(t.Context(), &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return api, i.At.Load()
}

// Logs and commands take the rights to the pod's own.
func TestProxyHandler_callerWithTheRight_isServed(t *testing.T) {
	proxies := &fakeProxies{lines: []string{"one\n", "two\n"}}
	api, at := servedProxies(t, proxies)
	var out bytes.Buffer
	want := inspect.LogOptions{Previous: true, Times: true, Tail: 7}
	if err := callerOfAgent(at, "dev").Log(t.Context(), "shop", "cart", want, &out); err != nil || out.String() != "one\ntwo\n" || proxies.asked != want {
		t.Errorf("%q, %v; asked %+v", out.String(), err, proxies.asked)
	}
	got, err := callerOfAgent(at, "dev").Exec(t.Context(), "shop", "cart", inspect.Command{Args: []string{"ls", "-l"}})
	if err != nil || string(got.Out) != "one\ntwo\n" || string(got.Err) != "warning" || got.Code != 3 || got.Cut || !slices.Equal(proxies.ran, []string{"ls", "-l"}) {
		t.Errorf("%+v, %v; ran %q", got, err, proxies.ran)
	}
	rights := []string{"dev [developers] map[k:[v]] get pods/log shop/cart", "dev [developers] map[k:[v]] create pods/exec shop/cart"}
	if !slices.Equal(api.rights, rights) {
		t.Errorf("the API server was asked %q", api.rights)
	}
}

func TestProxyHandler_callerWithoutTheRight_learnsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		token, namespace, pod string
		proxies               *fakeProxies
		want                  int
		words                 string
	}{
		"no right":              {"dev", "secret", "cart", &fakeProxies{}, http.StatusForbidden, "pods/"},
		"a token nobody knows":  {"stolen", "shop", "cart", &fakeProxies{}, http.StatusUnauthorized, "token"},
		"a pod of another node": {"dev", "shop", "other", &fakeProxies{}, http.StatusNotFound, "knows no pod"},
		"a pod without a proxy": {"dev", "shop", "cart", &fakeProxies{err: errors.New("no proxy")}, http.StatusNotFound, "no proxy"},
		"a name that is none":   {"dev", "shop", "Cart", &fakeProxies{}, http.StatusBadRequest, "want the path"},
	} {
		_, at := servedProxies(t, c.proxies)
		var out bytes.Buffer
		client := callerOfAgent(at, c.token)
		errLog := client.Log(t.Context(), c.namespace, c.pod, inspect.LogOptions{Tail: -1}, &out)
		_, errExec := client.Exec(t.Context(), c.namespace, c.pod, inspect.Command{Args: []string{"ls"}})
		for what, err := range map[string]error{"log": errLog, "exec": errExec} {
			if codeOf(t, err) != c.want || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if out.Len() > 0 || c.want != http.StatusNotFound && c.proxies.ran != nil {
			t.Errorf("%s: got %q, ran %q", name, out.String(), c.proxies.ran)
		}
	}
}

// A command that is too long is refused in these words, and not run cut off.
func TestProxyHandler_hugeCommand_isRefused(t *testing.T) {
	proxies := &fakeProxies{}
	_, at := servedProxies(t, proxies)
	_, err := callerOfAgent(at, "dev").Exec(t.Context(), "shop", "cart", inspect.Command{Args: []string{"echo", strings.Repeat("x", inspect.MaxCommand)}})
	if codeOf(t, err) != http.StatusRequestEntityTooLarge || !strings.Contains(err.Error(), "longer than 65536 bytes") || proxies.ran != nil {
		t.Errorf("%v, ran %d arguments", err, len(proxies.ran))
	}
}

// A log is followed for longer than other requests may take, line by line; an error after the first line is told, too.
func TestProxyHandler_followedLog_goesOn(t *testing.T) {
	proxies := &fakeProxies{lines: []string{"one\n"}, more: make(chan string), err: errors.New("rotated\naway")}
	_, at := servedProxies(t, proxies)
	out := make(chan string, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- callerOfAgent(at, "dev").Log(t.Context(), "shop", "cart", inspect.LogOptions{Follow: true, Tail: -1}, lineTo(out))
	}()
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-out:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no %q", want)
		}
	}
	wait("one\n")
	<-time.After(timeout + time.Second) // which ends other requests
	proxies.more <- "two\n"
	wait("two\n")
	close(proxies.more)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "cut off: rotated away") {
		t.Errorf("error %v", err)
	}
}

type lineTo chan string

func (c lineTo) Write(text []byte) (int, error) { c <- string(text); return len(text), nil }

func TestProxyHandler_tooMany_areRefused(t *testing.T) {
	proxies := &fakeProxies{lines: []string{"one\n"}, more: make(chan string)}
	_, at := servedProxies(t, proxies)
	for range proxiesAtOnce {
		out := make(chan string, 1)
		go func() {
			_ = callerOfAgent(at, "dev").Log(t.Context(), "shop", "cart", inspect.LogOptions{Follow: true}, lineTo(out))
		}()
		<-out
	}
	_, err := callerOfAgent(at, "dev").Exec(t.Context(), "shop", "cart", inspect.Command{Args: []string{"ls"}})
	if codeOf(t, err) != http.StatusServiceUnavailable {
		t.Error(err)
	}
}

func TestProxyHandler_muchOutput_isCut(t *testing.T) {
	proxies := &fakeProxies{lines: []string{strings.Repeat("x", inspect.MaxOutput), "y"}}
	_, at := servedProxies(t, proxies)
	got, err := callerOfAgent(at, "dev").Exec(t.Context(), "shop", "cart", inspect.Command{Args: []string{"yes"}})
	if err != nil || !got.Cut || len(got.Out) != inspect.MaxOutput {
		t.Errorf("%d bytes, cut %t, %v", len(got.Out), got.Cut, err)
	}
}

// An agent without proxies does not serve them.
func TestProxyHandler_noProxies_isToldPlainly(t *testing.T) {
	_, at := servedProxies(t, nil)
	_, err := callerOfAgent(at, "dev").Exec(t.Context(), "shop", "cart", inspect.Command{Args: []string{"ls"}})
	if codeOf(t, err) != http.StatusNotFound || !strings.Contains(err.Error(), "does not serve") {
		t.Error(err)
	}
}

// deadlines is a response whose connection has a deadline for what is written.
type deadlines struct {
	*httptest.ResponseRecorder
	write time.Time
}

func (d *deadlines) SetReadDeadline(time.Time) error     { return nil }
func (d *deadlines) SetWriteDeadline(at time.Time) error { d.write = at; return nil }

// The end of a log has to reach a reader who has seen nothing new for long.
func TestProxyHandler_quietLogEnds_endIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxies := &fakeProxies{lines: []string{"one\n"}, more: make(chan string)}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		time.AfterFunc(10*time.Minute, func() { close(proxies.more) })
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?follow=true&tail=-1", nil)
		err := handler{proxies: proxies}.log(t.Context(), w, r, "shop", "cart")
		if left := time.Until(w.write); err != nil || left != writeTime {
			t.Errorf("%s are left for the end, error %v", left, err)
		}
	})
}
