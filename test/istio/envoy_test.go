package istio

import (
	"net/http"
	"strings"
	"testing"
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
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000, targetPort: 9000}]
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
ports: [{name: http, port: 8080, protocol: TCP}, {name: tcp, port: 9000, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.11], conditions: {ready: true}, targetRef: {kind: Pod, name: echo-1, namespace: default}}
- {addresses: [10.244.1.12], conditions: {ready: true}, targetRef: {kind: Pod, name: echo-2, namespace: default}}
`

const (
	echoHost = "echo.default.svc.cluster.local"
	echoAt   = "10.96.0.10:80"
)

func TestEnvoyStandIn_besideRealIstio(t *testing.T) {
	w := newWorld(t, objects, "")
	client := w.addPod(t, "client", "10.244.1.13", map[string]string{"app": "client"})
	servers := []*meshPod{
		w.addPod(t, "echo-1", "10.244.1.11", map[string]string{"app": "echo", "version": "v1"}),
		w.addPod(t, "echo-2", "10.244.1.12", map[string]string{"app": "echo", "version": "v2"}),
	}
	var proxies []*proxy
	for _, pod := range append(servers, client) {
		pod.serve(t, 8080)
		proxies = append(proxies, pod.start(t))
	}
	for _, p := range proxies {
		p.awaitReady(t)
	}
	t.Run("both ends know each other", func(t *testing.T) {
		seen := map[string]int{}
		for range 10 {
			got, err := client.get(t, echoHost, echoAt, "/")
			if err != nil || got.status != http.StatusOK {
				t.Fatalf("answered %+v, %v", got, err)
			}
			seen[got.Pod]++
			cert := got.Headers.Get("X-Forwarded-Client-Cert")
			if !strings.Contains(cert, "By="+spiffe(got.Pod)+";") || !strings.Contains(cert, "URI="+spiffe("client")) {
				t.Errorf("%s was shown %q", got.Pod, cert)
			}
		}
		if seen["echo-1"] == 0 || seen["echo-2"] == 0 {
			t.Errorf("answered by %v", seen)
		}
	})
}
