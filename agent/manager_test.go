package agent

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// awayServer is the way to an API server that is away. It notes when it is asked.
type awayServer struct {
	mu sync.Mutex
	at []time.Time
}

// RoundTrip fails.
func (a *awayServer) RoundTrip(*http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = append(a.at, time.Now())
	return nil, syscall.ECONNREFUSED
}

// An agent can start while the API server is away, and has all that it asks for then: nothing is to be looked up first.
func TestNewManager_serverIsAway_isMadeWithoutAQuestion(t *testing.T) {
	away := &awayServer{}
	config := &rest.Config{Host: "http://192.0.2.1", Transport: away}
	mgr, err := newManager(config, Options{NodeName: "node", Sidecars: true}, newCoreHolder(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for kind, scope := range map[string]meta.RESTScopeName{
		"Pod": meta.RESTScopeNameNamespace, "ConfigMap": meta.RESTScopeNameNamespace, "ServiceAccount": meta.RESTScopeNameNamespace,
		"Namespace": meta.RESTScopeNameRoot, "Node": meta.RESTScopeNameRoot,
	} {
		got, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Kind: kind}, "v1")
		if err != nil || got.Scope.Name() != scope || got.Resource.Resource != strings.ToLower(kind)+"s" {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
	for kind, resource := range map[string]string{"ProxyProfile": "proxyprofiles", "ManagedProxy": "managedproxies"} {
		got, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: "pod-network-controller.istio.io", Kind: kind}, "v1alpha1")
		if err != nil || got.Resource.Resource != resource {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
	if len(away.at) > 0 {
		t.Errorf("%d questions", len(away.at))
	}
	if _, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: "other", Kind: "Thing"}, "v1"); err == nil || len(away.at) == 0 {
		t.Errorf("an unknown kind: %v after %d questions", err, len(away.at))
	}
}
