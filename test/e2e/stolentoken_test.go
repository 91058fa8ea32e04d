package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// attempt is a request with the agent's token, which changes nothing, and whether it is granted.
type attempt struct {
	verb, path, body string
	granted          bool
	as               string // whom it impersonates
}

// What docs/security.md says about a stolen token of the agent, row by row, with the token of the agent that runs.
//
//e2e:rounds core nri
func TestStolenTokenOfTheAgent(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	pod := s.startMesh(t, meshPod("here", asked()))
	s.createOnAnotherNode(t, meshPod("elsewhere", nil))
	api := s.as(t, s.agentToken(t))
	for name, a := range s.attempts(t, pod) {
		t.Run(name, func(t *testing.T) {
			err := a.try(t, api)
			refused := apierrors.IsForbidden(err) || err != nil && strings.Contains(err.Error(), "denied request")
			known := err == nil || refused || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
			if refused == a.granted || !known {
				t.Errorf("%s %s: error %v; want it granted: %t", a.verb, a.path, err, a.granted)
			}
		})
	}
}

func (a attempt) try(t *testing.T, api kubernetes.Interface) error {
	t.Helper()
	path, query, _ := strings.Cut(a.path, "?")
	request := api.Discovery().RESTClient().Verb(a.verb).AbsPath(path)
	if key, value, ok := strings.Cut(query, "="); ok {
		request.Param(key, value)
	}
	if a.as != "" {
		request.SetHeader("Impersonate-User", a.as)
	}
	if a.verb != "GET" {
		request.Param("dryRun", metav1.DryRunAll).Body([]byte(a.body)).SetHeader("Content-Type", "application/json")
	}
	if a.verb == "PATCH" {
		request.SetHeader("Content-Type", string(types.StrategicMergePatchType))
	}
	return request.Do(t.Context()).Error()
}

// attempts are those of the page. pod is on the agent's node, and beside it stands one that is on another.
func (s *space) attempts(t *testing.T, pod *corev1.Pod) map[string]attempt {
	t.Helper()
	agent := s.agent(t)
	has := func(arg string) bool { return slices.Contains(agent.Spec.Containers[0].Args, arg) }
	atAPI, asNode := !has("--pods-from=kubelet"), has("--read-as-node=true")
	pods, proxies := atAPI && !asNode, has("--sidecars=true")
	taint := has("--startup-taint=true")
	asks := slices.ContainsFunc(agent.Spec.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "--inspect-addr=:") })
	const (
		kinds  = "/apis/pod-network-controller.istio.io/v1alpha1/"
		report = `{"metadata":{"annotations":{"` + keyStatus + `":"initialized"}},"status":{"conditions":[{"type":"` + condition + `","status":"True"}]}}`
		ready  = `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`
		label  = `{"metadata":{"labels":{"a":"b"}}}`
	)
	ours, own := "/api/v1/namespaces/"+s.name+"/", "/api/v1/namespaces/"+agentName+"/pods/"+agent.Name
	here, there, node := ours+"pods/"+pod.Name, ours+"pods/elsewhere", "/api/v1/nodes/"+pod.Spec.NodeName
	const nodeUser, ofNode = "system:node:", "?fieldSelector=spec.nodeName="
	self := nodeUser + pod.Spec.NodeName
	return map[string]attempt{
		"as its node: read its pods":          {"GET", "/api/v1/pods" + ofNode + pod.Spec.NodeName, "", atAPI && asNode, self},
		"as its node: read its Node":          {"GET", "/api/v1/nodes?fieldSelector=metadata.name=" + pod.Spec.NodeName, "", taint && asNode, self},
		"as its node: read every pod":         {"GET", "/api/v1/pods?limit=1", "", false, self},
		"as its node: read another's pods":    {"GET", "/api/v1/pods" + ofNode + "another-node", "", false, self},
		"as its node: read every Node":        {"GET", "/api/v1/nodes?limit=1", "", false, self},
		"as its node: read secrets":           {"GET", "/api/v1/secrets?limit=1", "", false, self},
		"as its node: readiness of a pod":     {"PATCH", here + "/status", ready, false, self},
		"as another node: read its pods":      {"GET", "/api/v1/pods" + ofNode + "another-node", "", false, nodeUser + "another-node"},
		"as an administrator: read every pod": {"GET", "/api/v1/pods?limit=1", "", false, "kubernetes-admin"},
		"read every pod":                      {"GET", "/api/v1/pods?limit=1", "", pods, ""},
		"read a pod":                          {"GET", here, "", pods, ""},
		"read its own pod":                    {"GET", own, "", pods, ""},
		"read every namespace":                {"GET", "/api/v1/namespaces?limit=1", "", true, ""},
		"read every node":                     {"GET", "/api/v1/nodes?limit=1", "", taint && !asNode, ""},
		"read every ProxyProfile":             {"GET", kinds + "proxyprofiles?limit=1", "", proxies, ""},
		"read every ManagedProxy":             {"GET", kinds + "managedproxies?limit=1", "", proxies, ""},
		"write an event": {"POST", "/apis/events.k8s.io/v1/namespaces/default/events", fmt.Sprintf(`{"metadata":{"generateName":"a-"},
			"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"a.b/c","reportingInstance":"a","action":"A","reason":"A","type":"Normal",
			"regarding":{"kind":"Pod","namespace":"default","name":%q}}`, pod.Name), true, ""},
		"report on a pod of its node":         {"PATCH", here + "/status", report, true, ""},
		"report about itself":                 {"PATCH", own + "/status", `{"metadata":{"annotations":{"pod-network-controller.istio.io/agent":"{}"}}}`, true, ""},
		"take the startup taint off its node": {"PATCH", node, `{"spec":{"taints":null}}`, taint, ""},
		"ask whose a token is":                {"POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"a"}}`, asks, ""},
		"make a Lease":                        {"POST", "/apis/coordination.k8s.io/v1/namespaces/" + agentName + "/leases", `{"metadata":{"name":"a"}}`, proxies, ""},
		"report on a pod of another node":     {"PATCH", there + "/status", report, false, ""},
		"a label":                             {"PATCH", here + "/status", label, false, ""},
		"readiness":                           {"PATCH", here + "/status", ready, false, ""},
		"the phase":                           {"PATCH", here + "/status", `{"status":{"phase":"Failed"}}`, false, ""},
		"an address":                          {"PATCH", here + "/status", `{"status":{"podIP":"192.0.2.1"}}`, false, ""},
		"a foreign annotation":                {"PATCH", here + "/status", `{"metadata":{"annotations":{"a":"b"}}}`, false, ""},
		"a specification":                     {"PATCH", here, `{"spec":{"activeDeadlineSeconds":1}}`, false, ""},
		"delete a pod":                        {"DELETE", here, "", false, ""},
		"evict a pod":                         {"POST", here + "/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + pod.Name + `"}}`, false, ""},
		"run a command in a pod":              {"POST", here + "/exec?command=true", "", false, ""},
		"read a pod's log":                    {"GET", here + "/log", "", false, ""},
		"read secrets":                        {"GET", "/api/v1/secrets?limit=1", "", false, ""},
		"read ConfigMaps":                     {"GET", "/api/v1/configmaps?limit=1", "", false, ""},
		"a token of another account":          {"POST", ours + "serviceaccounts/default/token", `{"spec":{}}`, false, ""},
		"change a namespace":                  {"PATCH", strings.TrimSuffix(ours, "/"), label, false, ""},
		"change its node otherwise":           {"PATCH", node, label, false, ""},
		"change the policies":                 {"DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/" + agentName, "", false, ""},
		"give itself rights":                  {"PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/" + agentName, label, false, ""},
		"write a ProxyProfile":                {"POST", kinds + "proxyprofiles", `{"apiVersion":"pod-network-controller.istio.io/v1alpha1","kind":"ProxyProfile","metadata":{"name":"a"}}`, false, ""},
		"end itself":                          {"DELETE", own, "", false, ""},
	}
}
