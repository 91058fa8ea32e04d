package istio

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// objects are two versions of a service, one pod each, and two clients.
const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: default}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000, targetPort: 9000}, {name: grpc, port: 9001, targetPort: 8081}]
---
apiVersion: v1
kind: Pod
metadata: {name: echo-1, namespace: default, labels: {app: echo, version: v1, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: echo-1, nodeName: node, containers: [{name: app, image: app}]}
status: {podIP: 10.244.1.11, podIPs: [{ip: 10.244.1.11}], phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: echo-2, namespace: default, labels: {app: echo, version: v2, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: echo-2, nodeName: node, containers: [{name: app, image: app}]}
status: {podIP: 10.244.1.12, podIPs: [{ip: 10.244.1.12}], phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default, labels: {app: client, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: client, nodeName: node, containers: [{name: app, image: app}]}
status: {podIP: 10.244.1.13, podIPs: [{ip: 10.244.1.13}], phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-a, namespace: default, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: tcp, port: 9000, protocol: TCP}, {name: grpc, port: 8081, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.11], conditions: {ready: true}, targetRef: {kind: Pod, name: echo-1, namespace: default}}
- {addresses: [10.244.1.12], conditions: {ready: true}, targetRef: {kind: Pod, name: echo-2, namespace: default}}
`

const (
	echoHost = "echo.default.svc.cluster.local"
	echoAt   = "10.96.0.10:80"
)

// echoes is a world with two servers and a client, all with proxies.
type echoes struct {
	*world
	client  *meshPod
	servers []*meshPod
	proxies map[string]*proxy
}

func newEchoes(t *testing.T) *echoes {
	t.Helper()
	w := newWorld(t, objects, "")
	e := &echoes{world: w, client: w.addPod(t, "client", "10.244.1.13", map[string]string{"app": "client"}), proxies: map[string]*proxy{}}
	e.servers = []*meshPod{
		w.addPod(t, "echo-1", "10.244.1.11", map[string]string{"app": "echo", "version": "v1"}),
		w.addPod(t, "echo-2", "10.244.1.12", map[string]string{"app": "echo", "version": "v2"}),
	}
	for _, pod := range append(e.servers, e.client) {
		pod.serve(t, 8080)
		pod.serve(t, 8081)
		pod.serveBytes(t, 9000)
		var env []string
		if pod.name == "echo-2" {
			env = []string{"ISTIO_DELTA_XDS=false"} // the protocol's other variant, in which every response lists all
		}
		e.proxies[pod.name] = pod.start(t, env...)
	}
	for _, p := range e.proxies {
		p.awaitReady(t)
	}
	return e
}

// count asks the service some times, and counts the answers by pod, or by status where there was another than 200.
func (e *echoes) count(t *testing.T, times int, path string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range times {
		got, err := e.client.get(t, echoHost, echoAt, path)
		switch {
		case err != nil:
			t.Fatal(err)
		case got.status != http.StatusOK:
			seen[http.StatusText(got.status)+": "+got.body]++
		default:
			seen[got.Pod]++
		}
	}
	return seen
}

// awaitAnswers waits until all of ten answers are wanted ones.
func (e *echoes) awaitAnswers(t *testing.T, path string, want ...string) {
	t.Helper()
	eventually(t, "answers of "+strings.Join(want, " and "), 20*time.Second, func() error {
		seen := e.count(t, 10, path)
		for _, w := range want {
			if seen[w] == 0 {
				return fmt.Errorf("answers are %v", seen)
			}
		}
		if len(seen) != len(want) {
			return fmt.Errorf("answers are %v", seen)
		}
		return nil
	})
}
