package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/istio"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// Istio's proxy is asked, and told to close its listeners, at the ports that were computed for its epoch.
func TestIstio_portsOfTheEpoch_areUsed(t *testing.T) {
	ns := kerneltest.New(t)
	asked := make(chan string, 10)
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
	})}
	t.Cleanup(func() { _ = server.Close() })
	listener := kerneltest.ListenTCP(t, ns, kerneltest.Owner{}, false, "127.0.0.1:15320")
	go func() { _ = server.Serve(listener) }()
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1", NetNS: ns.Path()}
	homes := home.Homes{Root: t.TempDir()}
	h := homes.Of(s.Key())
	if err := errors.Join(h.Prepare(home.Owner{}), h.Epoch(1).WriteFacts(home.Facts{StatusPort: 15320, AdminPort: 15320})); err != nil {
		t.Fatal(err)
	}
	p := &profile.Version{Spec: profile.Spec{Istio: &istio.ControlPlane{}}}
	a := asker{namespaces: namespaces(t), homes: homes}
	if err := a.Ask(t.Context(), s, p, 1, probe.Ready); err != nil {
		t.Error(err)
	}
	if err := a.Close(t.Context(), s, 15320); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"GET /healthz/ready", "POST /drain_listeners?graceful", "POST /drain_listeners"} {
		if got := <-asked; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
	}
	if err := a.Ask(t.Context(), s, p, 3, probe.Ready); err == nil || !strings.Contains(err.Error(), "facts-3.json") {
		t.Errorf("its ports are not known: %v", err)
	}
	a.homes.Root = t.TempDir() // the server is another user's
	h = a.homes.Of(s.Key())
	if err := errors.Join(h.Prepare(home.Owner{UID: 7000, GID: 7000}), h.Epoch(1).WriteFacts(home.Facts{StatusPort: 15320, AdminPort: 15320})); err != nil {
		t.Fatal(err)
	}
	if err := a.Ask(t.Context(), s, p, 1, probe.Ready); err == nil || !strings.Contains(err.Error(), "listens on port 15320") {
		t.Errorf("its port is taken: %v", err)
	}
}

func TestConfigMapOf_revision_namesItsConfigMaps(t *testing.T) {
	const values = `{"global": {"pilotCertProvider": "istiod"}}`
	named := func(name, key, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: name}, Data: map[string]string{key: text}}
	}
	live := fake.NewClientBuilder().WithObjects(
		named("istio", "mesh", ""), named("istio-sidecar-injector", "values", values), named("istio-1-31", "mesh", ""), named("istio-sidecar-injector-1-31", "values", values),
		named("istio-half", "mesh", ""), named("istio-old", "config", ""), named("istio-sidecar-injector-old", "values", values),
	).Build()
	c := sidecarCluster{pods: controllers.Reader{Live: live}}
	for revision, want := range map[string]string{
		"": "", "1-31": "", "half": `there is no ConfigMap mesh/istio-sidecar-injector-half: Istio's control plane with revision "half" is missing (a tag of a revision has none), see spec.istio of the profile`,
		"1-30": `there is no ConfigMap mesh/istio-1-30: Istio's control plane with revision "1-30" is missing (a tag of a revision has none), see spec.istio of the profile`,
		"old":  `ConfigMap mesh/istio-old has no key mesh`,
	} {
		_, err := istio.ReadMesh(istio.ControlPlane{Namespace: "mesh", Revision: revision}, func(namespace, name string) (*corev1.ConfigMap, error) {
			return c.ConfigMapOf(t.Context(), namespace, name)
		})
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("revision %q: %q, want %q", revision, got, want)
		}
	}
}

// An API server without Istio's kinds has none of its objects. One that refuses to list them leaves no proxy without the mesh's settings.
func TestProxyConfigs_ofTheCluster_areRead(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "shop", "name": "all", "creationTimestamp": "2026-01-01T12:00:00Z", "labels": map[string]any{"a": "b"}},
		"spec":     map[string]any{"concurrency": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": "cart"}}, "environmentVariables": map[string]any{"A": "b"}},
	}}
	object.SetGroupVersionKind(istio.ProxyConfigKind)
	got, err := sidecarCluster{pods: controllers.Reader{Live: fake.NewClientBuilder().WithObjects(object).Build()}}.ProxyConfigs(t.Context())
	if err != nil || len(got) != 1 || got[0].Metadata.Name != "all" || *got[0].Spec.Concurrency != 2 || got[0].Spec.Selector.MatchLabels["app"] != "cart" ||
		got[0].Spec.EnvironmentVariables["A"] != "b" || got[0].Metadata.CreationTimestamp.Year() != 2026 {
		t.Errorf("%+v, %v", got, err)
	}
	for answer, want := range map[error]string{
		&meta.NoKindMatchError{}: "<nil>", apierrors.NewNotFound(schema.GroupResource{}, ""): "<nil>", errors.New("away"): "list Istio's ProxyConfigs: away",
		apierrors.NewForbidden(schema.GroupResource{Resource: "proxyconfigs"}, "", nil): "the chart's value proxies.istio gives the agent this right",
	} {
		live := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return answer },
		})
		got, err := sidecarCluster{pods: controllers.Reader{Live: live}}.ProxyConfigs(t.Context())
		if len(got) > 0 || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v: %v, %v, want %q", answer, got, err, want)
		}
	}
}
