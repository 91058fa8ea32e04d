package istio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/test/kerneltest"
)

func TestEnvoyStandIn_besideRealIstio(t *testing.T) {
	e := newEchoes(t)
	t.Run("both ends know each other", e.testIdentities)
	t.Run("HTTP 2 stays HTTP 2", e.testHTTP2)
	t.Run("bytes are passed on by mutual TLS", e.testBytes)
	t.Run("readiness and counters are served at the proxy's ports", e.testOwnPorts)
	t.Run("a client outside the mesh is served until mutual TLS is required", e.testStrict)
	t.Run("a policy denies", e.testDenied)
	t.Run("a policy allows named clients", e.testAllowed)
	t.Run("a filter that is not understood lets nobody through", e.testUnknownFilter)
	t.Run("requests are split by weight", e.testWeights)
	t.Run("a destination that nobody has registered is reached", e.testPassthrough)
	t.Run("endpoints come and go", e.testEndpoints)
}

func (e *echoes) testIdentities(t *testing.T) {
	e.awaitAnswers(t, "/", "echo-1", "echo-2")
	for range 4 {
		got, err := e.client.get(t, echoHost, echoAt, "/")
		if err != nil || got.status != http.StatusOK {
			t.Fatalf("answered %+v, %v", got, err)
		}
		cert := got.Headers.Get("X-Forwarded-Client-Cert")
		if !strings.Contains(cert, "By="+spiffe(got.Pod)+";") || !strings.Contains(cert, "URI="+spiffe("client")) {
			t.Errorf("%s was shown %q", got.Pod, cert)
		}
	}
}

func (e *echoes) testHTTP2(t *testing.T) {
	client := e.client.overHTTP2()
	defer client.transport.CloseIdleConnections()
	for range 4 {
		got, err := client.get(t, echoHost+":9001", "10.96.0.10:9001", "/")
		if err != nil || got.status != http.StatusOK || got.Protocol != "HTTP/2.0" {
			t.Fatalf("answered %+v, %v", got, err)
		}
		if cert := got.Headers.Get("X-Forwarded-Client-Cert"); !strings.Contains(cert, "URI="+spiffe("client")) {
			t.Errorf("%s was shown %q", got.Pod, cert)
		}
	}
}

func (e *echoes) testOwnPorts(t *testing.T) {
	node := &http.Client{Transport: e.outside().transport, Timeout: 5 * time.Second}
	for path, want := range map[string]string{
		":15021/healthz/ready":    "",
		":15090/stats/prometheus": `istio_requests_total{reporter="destination",cluster="inbound|8080||",response_code="200",connection_security_policy="mutual_tls",source_principal="cluster.local/ns/default/sa/client"}`,
	} {
		response, err := node.Get("http://" + e.servers[0].ip + path) //nolint:noctx // it has a timeout
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s says %s: %s", path, response.Status, text)
		}
	}
}

func (e *echoes) testBytes(t *testing.T) {
	seen := map[string]bool{}
	for range 4 {
		got, err := e.client.exchange(t.Context(), "10.96.0.10:9000", "hello")
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if !seen["echo-1 hello"] || !seen["echo-2 hello"] || len(seen) != 2 {
		t.Errorf("answered %v", seen)
	}
}

// outside is the node, which is outside the mesh.
func (e *echoes) outside() *meshPod {
	node := &meshPod{world: e.world, ns: e.node}
	node.transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return node.dial(ctx, address) }}
	return node
}

// direct asks a server from the node.
func (e *echoes) direct(t *testing.T) (answered, error) {
	t.Helper()
	return e.outside().get(t, echoHost, e.servers[0].ip+":8080", "/")
}

func (e *echoes) testStrict(t *testing.T) {
	got, err := e.direct(t)
	if err != nil || got.Pod != "echo-1" || got.Headers.Get("X-Forwarded-Client-Cert") != "" {
		t.Fatalf("before, a client without an identity is answered %+v, %v", got, err)
	}
	e.configure(t, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: STRICT}}
`)
	eventually(t, "no answer to a client outside the mesh", 20*time.Second, func() error {
		got, err := e.direct(t)
		if err == nil {
			return fmt.Errorf("answered %+v", got)
		}
		return nil
	})
	e.awaitAnswers(t, "/", "echo-1", "echo-2")
}

func (e *echoes) testDenied(t *testing.T) {
	e.configure(t, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied, namespace: default}
spec:
  selector: {matchLabels: {app: echo}}
  action: DENY
  rules:
  - from: [{source: {principals: [cluster.local/ns/default/sa/client]}}]
    to: [{operation: {paths: ["/admin*"], methods: [GET]}}]
`)
	e.awaitAnswers(t, "/admin/x", "Forbidden: RBAC: access denied")
	e.awaitAnswers(t, "/", "echo-1", "echo-2")
}

func (e *echoes) testAllowed(t *testing.T) {
	const policy = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allowed, namespace: default}
spec:
  selector: {matchLabels: {app: echo}}
  rules:
  - from: [{source: {principals: [cluster.local/ns/default/sa/%s]}}]
`
	remove := e.configure(t, fmt.Sprintf(policy, "somebody"))
	e.awaitAnswers(t, "/", "Forbidden: RBAC: access denied")
	eventually(t, "bytes are refused", 20*time.Second, func() error {
		if got, err := e.client.exchange(t.Context(), "10.96.0.10:9000", "hello"); err == nil && got != "" {
			return fmt.Errorf("answered %q", got)
		}
		return nil
	})
	remove()
	e.configure(t, fmt.Sprintf(policy, "client"))
	e.awaitAnswers(t, "/", "echo-1", "echo-2")
}

func (e *echoes) testUnknownFilter(t *testing.T) {
	e.configure(t, `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: unknown, namespace: default}
spec:
  workloadSelector: {labels: {app: echo}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch: {operation: INSERT_BEFORE, value: {name: example.authorizer, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer}}}
`)
	e.awaitAnswers(t, "/", "Service Unavailable: upstream connect error or disconnect/reset before headers")
}

func (e *echoes) testWeights(t *testing.T) {
	e.configure(t, `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: default}
spec:
  host: echo
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: default}
spec:
  hosts: [echo]
  http:
  - match: [{uri: {prefix: /broken}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: echo}}]
  - match: [{uri: {prefix: /new}}]
    rewrite: {uri: /}
    route: [{destination: {host: echo, subset: v2}}]
  - route:
    - {destination: {host: echo, subset: v1}, weight: 90}
    - {destination: {host: echo, subset: v2}, weight: 10}
`)
	e.awaitAnswers(t, "/broken", "I'm a teapot: fault filter abort")
	e.awaitAnswers(t, "/new/x", "echo-2")
	seen := e.count(t, 300, "/")
	if n := seen["echo-2"]; n < 8 || n > 75 || seen["echo-1"]+n != 300 { // 30 are expected; the chance of a false alarm is below one in a million
		t.Errorf("of 300 requests, 90 to 10: %v", seen)
	}
}

func (e *echoes) testPassthrough(t *testing.T) {
	l := kerneltest.ListenTCP(t, e.node, kerneltest.Owner{}, false, nodeIP+":7777")
	go answerBytes(l, "outside")
	got, err := e.client.exchange(t.Context(), nodeIP+":7777", "hello")
	if err != nil || got != "outside hello" {
		t.Errorf("answered %q, %v", got, err)
	}
}

func (e *echoes) testEndpoints(t *testing.T) {
	slices := e.istiod.KubeClient().Kube().DiscoveryV1().EndpointSlices("default")
	slice, err := slices.Get(t.Context(), "echo-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := slice.Endpoints
	for _, step := range []struct {
		endpoints []discoveryv1.Endpoint
		want      []string
	}{
		{all[1:], []string{"echo-2"}},
		{nil, []string{"Service Unavailable: no healthy upstream"}},
		{all, []string{"echo-1", "echo-2"}},
	} {
		slice = slice.DeepCopy()
		slice.Endpoints = step.endpoints
		if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.awaitAnswers(t, "/", step.want...)
	}
}
