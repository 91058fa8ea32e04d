package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/runtime/cniinstall"
)

// apiAnswer is what a fake API server says: a status, and an object.
type apiAnswer struct {
	code int
	body string
}

func metadataOf(name, more string) apiAnswer {
	return apiAnswer{http.StatusOK, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"` + name + `","uid":"u"` + more + `}}`}
}

func refusal(code int, reason string) apiAnswer {
	return apiAnswer{code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"told so","reason":%q,"code":%d}`, reason, code)}
}

const deleted = `,"deletionTimestamp":"2026-01-01T00:00:00Z"`

// apiServer answers questions for the DaemonSet in turn, the last one again and again, and those for its namespace.
func apiServer(t *testing.T, namespace apiAnswer, sets ...apiAnswer) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := apiAnswer{http.StatusTeapot, r.URL.Path}
		switch r.URL.Path {
		case "/apis/apps/v1/namespaces/mesh/daemonsets/agent":
			answer = sets[min(int(asked.Add(1)), len(sets))-1]
		case "/api/v1/namespaces/mesh":
			answer = namespace
		}
		if answer.code == 0 { // no answer
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", map[bool]string{true: "application/json", false: "text/html"}[strings.HasPrefix(answer.body, "{")])
		w.WriteHeader(answer.code)
		fmt.Fprint(w, answer.body)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

const conflist = `{"cniVersion":"1.0.0","name":"kc","plugins":[{"type":"bridge"}]}`

// cniNode is a node's directories.
type cniNode struct{ bin, conf, source string }

func newCNINode(t *testing.T) cniNode {
	t.Helper()
	n := cniNode{bin: t.TempDir(), conf: t.TempDir(), source: filepath.Join(t.TempDir(), "plugin")}
	for file, text := range map[string]string{n.source: "#!program", filepath.Join(n.conf, "10-kc.conflist"): conflist} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n cniNode) list(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.conf, "10-kc.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// keptChain is a plugin in the chain of a node, kept there by what the agent runs.
type keptChain struct {
	node cniNode
	log  strings.Builder
	// end ends the agent's manager, tell tells the process to end, which ends the manager, too.
	end, tell context.CancelFunc
	done      chan error
}

func keep(t *testing.T, h *home) *keptChain {
	t.Helper()
	k := &keptChain{node: newCNINode(t), done: make(chan error, 1)}
	i, err := cniinstall.New(cniinstall.Config{
		BinDir: k.node.bin, ConfDir: k.node.conf, Source: k.node.source, Entry: []byte(`{"type":"istio-pod-network-cni"}`),
		Versions: []string{"1.0.0"}, Settle: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	var told, running context.Context
	told, k.tell = context.WithCancel(t.Context())
	running, k.end = context.WithCancel(told)
	log := logr.FromSlogHandler(slog.NewTextHandler(&k.log, nil))
	go func() { k.done <- keepChain(told, log, i, h)(running) }()
	deadline := time.After(20 * time.Second)
	for i.Check() != nil {
		select {
		case <-deadline:
			t.Fatal("the entry never came")
		case <-time.After(time.Millisecond):
		}
	}
	return k
}

// ended gives what became of the configuration.
func (k *keptChain) ended(t *testing.T) (isThere bool) {
	t.Helper()
	select {
	case err := <-k.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	text := k.node.list(t)
	isThere = strings.Contains(text, "istio-pod-network-cni")
	if !isThere && text != conflist {
		t.Errorf("the configuration is not what it was:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(k.node.bin, "istio-pod-network-cni")); err != nil {
		t.Errorf("the binary that old sandboxes need: %v", err)
	}
	return isThere
}

func testHome(t *testing.T, url string) *home {
	t.Helper()
	h, err := newHome(&rest.Config{Host: url}, "mesh", "agent")
	if err != nil {
		t.Fatal(err)
	}
	h.every, h.limit = time.Millisecond, 500*time.Millisecond
	return h
}

func TestTheEntryGoesWithTheDaemonSet(t *testing.T) {
	stands, namespace := metadataOf("agent", ""), metadataOf("mesh", "")
	forbidden, unauthorized := refusal(http.StatusForbidden, "Forbidden"), refusal(http.StatusUnauthorized, "Unauthorized")
	gone, silent := refusal(http.StatusNotFound, "NotFound"), apiAnswer{}
	says := func(mode string) apiAnswer {
		return metadataOf("agent", `,"annotations":{"pod-network-controller.istio.io/cni":"`+mode+`"}`)
	}
	for name, c := range map[string]struct {
		namespace apiAnswer
		sets      []apiAnswer
		stays     bool
		log       string
	}{
		"the DaemonSet stands":                     {namespace, []apiAnswer{stands}, true, "for the next agent"},
		"it stands, and wants the chain":           {namespace, []apiAnswer{says("install")}, true, "for the next agent"},
		"it stands, and wants the chain no more":   {namespace, []apiAnswer{says("off")}, false, "cni=off"},
		"it stands, and wants the entry taken out": {namespace, []apiAnswer{says("uninstall")}, false, "cni=uninstall"},
		"it stands, its namespace is not told":     {forbidden, []apiAnswer{stands}, true, "for the next agent"},
		"it is being deleted":                      {namespace, []apiAnswer{metadataOf("agent", deleted)}, false, "being deleted"},
		"its namespace is being deleted":           {metadataOf("mesh", deleted), []apiAnswer{stands}, false, "namespace is being deleted"},
		"it is gone":                               {namespace, []apiAnswer{gone}, false, "DaemonSet is gone"},
		"its Role is gone":                         {namespace, []apiAnswer{forbidden}, false, "may not ask"},
		"its account is gone":                      {namespace, []apiAnswer{unauthorized}, false, "may not ask"},
		"its Role is gone, then its account":       {namespace, []apiAnswer{forbidden, unauthorized}, false, "may not ask"},
		"an API server that has just started":      {namespace, []apiAnswer{forbidden, unauthorized, stands}, true, "for the next agent"},
		"refused now and then":                     {namespace, []apiAnswer{forbidden, forbidden, refusal(500, "InternalError"), forbidden, stands}, true, "for the next agent"},
		"an API server that fails":                 {namespace, []apiAnswer{refusal(500, "InternalError")}, true, "nobody could tell"},
		"one that fails at first":                  {namespace, []apiAnswer{refusal(503, "ServiceUnavailable"), gone}, false, "DaemonSet is gone"},
		"a proxy that knows no API server":         {namespace, []apiAnswer{{404, "<html>no such page"}}, true, "nobody could tell"},
		"a proxy that lets nobody by":              {namespace, []apiAnswer{{403, "<html>keep out"}}, true, "nobody could tell"},
		"something else than an object":            {namespace, []apiAnswer{{200, "<html>welcome"}}, true, "nobody could tell"},
		"no answer":                                {namespace, []apiAnswer{silent}, true, "nobody could tell"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := apiServer(t, c.namespace, c.sets...)
			k := keep(t, testHome(t, url))
			k.tell()
			if is := k.ended(t); is != c.stays {
				t.Errorf("the entry is there: %v, want %v", is, c.stays)
			}
			if !strings.Contains(k.log.String(), c.log) {
				t.Errorf("logged %q, want %q in it", k.log.String(), c.log)
			}
		})
	}
}

func TestTheEntryStaysWithoutAnAPIServer(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	k := keep(t, testHome(t, s.URL))
	began := time.Now()
	k.tell()
	if !k.ended(t) || time.Since(began) > 10*time.Second {
		t.Errorf("taken out, or after %v", time.Since(began))
	}
}

// An agent that ends by itself comes back, and one that belongs to no DaemonSet has nobody to ask for.
func TestNobodyIsAskedWithoutNeed(t *testing.T) {
	url, asked := apiServer(t, metadataOf("mesh", ""), refusal(http.StatusNotFound, "NotFound"))
	k := keep(t, testHome(t, url))
	k.end()
	if !k.ended(t) {
		t.Error("taken out by an agent that will be started again")
	}
	k.tell()
	h, err := newHome(&rest.Config{Host: url}, "mesh", "")
	if err != nil || h != nil {
		t.Fatalf("%v, %v", h, err)
	}
	k = keep(t, h)
	k.tell()
	if !k.ended(t) {
		t.Error("taken out by an agent that belongs to no DaemonSet")
	}
	if asked.Load() != 0 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// A question that hangs must not use the time of all others up, and all of them must leave time for what the agent ends by.
func TestTheTimeForQuestions(t *testing.T) {
	h, err := newHome(&rest.Config{Host: "https://192.0.2.1"}, "mesh", "agent")
	if err != nil {
		t.Fatal(err)
	}
	if refused := h.every * (maxRefusals - 1); refused <= 0 || refused >= h.limit || h.limit > 10*time.Second {
		t.Errorf("a question every %v for %v at most", h.every, h.limit)
	}
}
