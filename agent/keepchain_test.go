package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"istio-pod-network-controller/internal/outage"
	"istio-pod-network-controller/runtime/cni/install"
)

// apiAnswer is an answer of a fake API server: a status code and a body.
type apiAnswer struct {
	code int
	body string
}

func metadataOf(name, more string) apiAnswer {
	return apiAnswer{http.StatusOK, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"` + name + `","uid":"u"` + more + `}}`}
}

func refusal(code int, reason string) apiAnswer {
	return apiAnswer{code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused","reason":%q,"code":%d}`, reason, code)}
}

const deleted = `,"deletionTimestamp":"2026-01-01T00:00:00Z"`

// apiServer answers requests for the DaemonSet with each of sets in turn, then with the last one again, and those for its namespace.
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
	// stopManager ends the agent's manager only; stopProcess ends the process's context, and so the manager, too.
	stopManager, stopProcess context.CancelFunc
	done                     chan error
}

func startChain(t *testing.T, h *ownDaemonSet) *keptChain {
	t.Helper()
	k := &keptChain{node: newCNINode(t), done: make(chan error, 1)}
	i, err := install.New(install.Config{
		BinDir: k.node.bin, ConfDir: k.node.conf, Source: k.node.source, Entry: []byte(`{"type":"istio-pod-network-cni"}`),
		Versions: []string{"1.0.0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var processCtx, managerCtx context.Context
	processCtx, k.stopProcess = context.WithCancel(t.Context())
	managerCtx, k.stopManager = context.WithCancel(processCtx)
	log := logr.FromSlogHandler(slog.NewTextHandler(&k.log, nil))
	go func() { k.done <- keepChain(processCtx, log, i, h)(managerCtx) }()
	deadline := time.After(20 * time.Second)
	for i.Check() != nil {
		select {
		case <-deadline:
			t.Fatal("the entry was not written")
		case <-time.After(time.Millisecond):
		}
	}
	return k
}

// entryStays waits for keepChain to return, and reports whether the entry is still in the chain.
func (k *keptChain) entryStays(t *testing.T) (stays bool) {
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
	stays = strings.Contains(text, "istio-pod-network-cni")
	if !stays && text != conflist {
		t.Errorf("the configuration differs from the original:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(k.node.bin, "istio-pod-network-cni")); err != nil {
		t.Errorf("the binary that old sandboxes need: %v", err)
	}
	return stays
}

func testDaemonSet(t *testing.T, url string) *ownDaemonSet {
	t.Helper()
	h, err := newOwnDaemonSet(&rest.Config{Host: url}, "mesh", "agent")
	if err != nil {
		t.Fatal(err)
	}
	h.interval, h.timeout, h.rights = time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
	return h
}

func TestTheEntryGoesWithTheDaemonSet(t *testing.T) {
	exists, namespace := metadataOf("agent", ""), metadataOf("mesh", "")
	forbidden, unauthorized := refusal(http.StatusForbidden, "Forbidden"), refusal(http.StatusUnauthorized, "Unauthorized")
	gone, silent := refusal(http.StatusNotFound, "NotFound"), apiAnswer{}
	withMode := func(mode string) apiAnswer {
		return metadataOf("agent", `,"annotations":{"pod-network-controller.istio.io/cni":"`+mode+`"}`)
	}
	for name, c := range map[string]struct {
		namespace apiAnswer
		sets      []apiAnswer
		stays     bool
		log       string
	}{
		"the DaemonSet exists":                  {namespace, []apiAnswer{exists}, true, "for the next agent"},
		"it exists with cni=install":            {namespace, []apiAnswer{withMode("install")}, true, "for the next agent"},
		"it exists with cni=off":                {namespace, []apiAnswer{withMode("off")}, false, "cni=off"},
		"it exists with cni=uninstall":          {namespace, []apiAnswer{withMode("uninstall")}, false, "cni=uninstall"},
		"it exists, its namespace is forbidden": {forbidden, []apiAnswer{exists}, true, "for the next agent"},
		"it is being deleted":                   {namespace, []apiAnswer{metadataOf("agent", deleted)}, false, "being deleted"},
		"its namespace is being deleted":        {metadataOf("mesh", deleted), []apiAnswer{exists}, false, "namespace is being deleted"},
		"it is gone":                            {namespace, []apiAnswer{gone}, false, "DaemonSet is gone"},
		"its Role is gone":                      {namespace, []apiAnswer{forbidden}, false, "may no longer read"},
		"its account is gone":                   {namespace, []apiAnswer{unauthorized}, false, "may no longer read"},
		"its Role is gone, then its account":    {namespace, []apiAnswer{forbidden, unauthorized}, false, "may no longer read"},
		"an API server that has just started":   {namespace, []apiAnswer{forbidden, unauthorized, exists}, true, "for the next agent"},
		"refused, then it fails":                {namespace, []apiAnswer{forbidden, forbidden, refusal(500, "InternalError"), forbidden, exists}, true, "for the next agent"},
		"an API server that fails":              {namespace, []apiAnswer{refusal(500, "InternalError")}, true, "could not find out"},
		"one that fails at first":               {namespace, []apiAnswer{refusal(503, "ServiceUnavailable"), gone}, false, "DaemonSet is gone"},
		"a proxy without an API server":         {namespace, []apiAnswer{{404, "<html>no such page"}}, true, "could not find out"},
		"a proxy that refuses":                  {namespace, []apiAnswer{{403, "<html>keep out"}}, true, "could not find out"},
		"something else than an object":         {namespace, []apiAnswer{{200, "<html>welcome"}}, true, "could not find out"},
		"no answer":                             {namespace, []apiAnswer{silent}, true, "could not find out"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := apiServer(t, c.namespace, c.sets...)
			k := startChain(t, testDaemonSet(t, url))
			k.stopProcess()
			if stays := k.entryStays(t); stays != c.stays {
				t.Errorf("the entry is there: %v, want %v", stays, c.stays)
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
	k := startChain(t, testDaemonSet(t, s.URL))
	began := time.Now()
	k.stopProcess()
	if !k.entryStays(t) || time.Since(began) > 10*time.Second {
		t.Errorf("the entry was removed, or the end took %v", time.Since(began))
	}
}

// An agent whose manager ends by itself is started again, and one without a DaemonSet has nothing to read.
func TestTheAPIServerIsAskedOnlyIfTheAgentBelongsToADaemonSetAndIsStopped(t *testing.T) {
	url, asked := apiServer(t, metadataOf("mesh", ""), refusal(http.StatusNotFound, "NotFound"))
	k := startChain(t, testDaemonSet(t, url))
	k.stopManager()
	if !k.entryStays(t) {
		t.Error("the entry was removed by an agent that will be started again")
	}
	k.stopProcess()
	h, err := newOwnDaemonSet(&rest.Config{Host: url}, "mesh", "")
	if err != nil || h != nil {
		t.Fatalf("%v, %v", h, err)
	}
	k = startChain(t, h)
	k.stopProcess()
	if !k.entryStays(t) {
		t.Error("the entry was removed by an agent without a DaemonSet")
	}
	if asked.Load() != 0 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// An API server that starts refuses everybody for seconds. What is asked at the end has to leave time for the rest of the shutdown.
func TestNoSuccessor_rightsAreRefused_isGoneAfterTheLimitOnly(t *testing.T) {
	sets := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	forbidden, away := apierrors.NewForbidden(sets, "agent", errors.New("no")), apierrors.NewInternalError(errors.New("etcd"))
	for name, c := range map[string]struct {
		answers func(time.Duration) error // nil: it exists
		gone    bool
		fails   bool
		least   time.Duration
	}{
		"refused for less than the limit": {answers: func(at time.Duration) error {
			if at < outage.RightsLimit-2*time.Second {
				return forbidden
			}
			return nil
		}},
		"refused for ever": {answers: func(time.Duration) error { return forbidden }, gone: true, least: outage.RightsLimit},
		"it fails at first, then refuses": {answers: func(at time.Duration) error {
			if at < 4*time.Second {
				return away
			}
			return forbidden
		}, gone: true, least: outage.RightsLimit + 2*time.Second},
		"refused, then it fails": {answers: func(at time.Duration) error {
			if at < 20*time.Second {
				return forbidden
			}
			return away
		}, fails: true},
		"it fails": {answers: func(time.Duration) error { return away }, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, api := time.Now(), fake.NewSimpleMetadataClient(fake.NewTestScheme())
				api.PrependReactor("get", "*", func(clienttesting.Action) (bool, goruntime.Object, error) {
					return true, &metav1.PartialObjectMetadata{}, c.answers(time.Since(began))
				})
				d := &ownDaemonSet{api: api, namespace: "mesh", name: "agent", interval: time.Second, timeout: 5 * time.Second, rights: outage.RightsLimit}
				reason, err := d.noSuccessor(t.Context())
				if (reason != "") != c.gone || (err != nil) != c.fails {
					t.Errorf("says %q, %v", reason, err)
				}
				if took := time.Since(began); took < c.least || took > stopTimeout-time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
