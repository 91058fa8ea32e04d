package commands

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// agentsHome is the namespace in which the documentation installs the agents.
const agentsHome = "istio-pod-network-controller"

// inspectWorld is an API server with one pod and one agent, and that agent.
type inspectWorld struct {
	namespace  map[string]string // annotations
	pod, agent corev1.Pod
	// status refuses requests whose path has the key in it.
	status map[string]int
	// refusal is the agent's answer, if it is no document.
	refusal *inspect.Refusal
	// tokens are what the agent was shown.
	tokens []string
	// document is the agent's answer, and answer what its program prints for `inspect --local`, with exit code code.
	document inspect.Document
	answer   func() (out, errOut string, code int)
	// execs counts commands in the agent's container, by protocol. noSockets is an API server that knows SPDY alone.
	execs     map[string]int
	noSockets bool
	// meanwhile happens when the agent is asked over the network.
	meanwhile func(*inspectWorld)
	// ran is the last of these commands.
	ran []string
}

// exitCode is the code of inspect for a document.
func exitCode(d inspect.Document) int { return map[bool]int{true: cmdline.ExitDrift}[d.Failing()] }

func newInspectWorld(t *testing.T) *inspectWorld {
	t.Helper()
	w := &inspectWorld{
		pod:    corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid-1"}, Spec: corev1.PodSpec{NodeName: "node1"}},
		status: map[string]int{}, execs: map[string]int{},
		document: inspect.Document{
			Pod: "shop/cart", Node: "node1", Agent: inspect.Agent{Version: cmdline.Release, Backend: "nftables"}, Asked: inspect.Asked{Redirect: true},
			Agreement: inspect.Agreement{Verdict: inspect.Agree}, Next: []string{"nothing"},
		},
	}
	w.answer = func() (out, errOut string, code int) {
		text, err := json.Marshal(w.document)
		return string(text), fmt.Sprintf("%v", err), exitCode(w.document)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.tokens = append(w.tokens, r.Header.Get("Authorization"))
		if w.meanwhile != nil {
			w.meanwhile(w)
		}
		if w.refusal != nil {
			out.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(out).Encode(w.refusal)
			return
		}
		w.answerAbout(out, r)
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	at := server.Listener.Addr().(*net.TCPAddr)
	w.agent = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: agentsHome, Name: "agent-1", Labels: map[string]string{"app.kubernetes.io/name": "istio-pod-network-controller"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}},
			Annotations: map[string]string{agentstatus.Annotation: agentstatus.Status{
				Version: cmdline.Release, Inspect: &agentstatus.Inspect{Port: at.Port, Certificate: hex.EncodeToString(sum[:])},
			}.String()},
		},
		Spec:   corev1.PodSpec{NodeName: "node1", HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1"},
	}
	return w
}

// ServeHTTP is the API server.
func (w *inspectWorld) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	for path, status := range w.status {
		if strings.Contains(r.URL.Path, path) {
			w.fail(out, status)
			return
		}
	}
	var answer any
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1"); {
	case strings.HasSuffix(path, "/exec"):
		w.exec(out, r)
		return
	case strings.HasSuffix(path, inspect.TunnelPath):
		w.tunnel(out)
		return
	case path == "/namespaces/shop/pods/cart":
		answer = w.pod
	case path == "/namespaces/"+w.agent.Namespace+"/pods" || path == "/pods":
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		if r.URL.Query().Get("fieldSelector") == "spec.nodeName="+w.agent.Spec.NodeName {
			list.Items = append(list.Items, w.agent)
		}
		answer = list
	case path == "/namespaces/shop":
		answer = corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: w.namespace}}
	case strings.HasSuffix(path, "/pods"):
		answer = corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	case path == "/namespaces/shop/events":
		answer = corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}, Items: []corev1.Event{
			{Reason: "Old", LastTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
			{Reason: "RulesRepaired", Message: "repaired", EventTime: metav1.NewMicroTime(time.Now().Add(-time.Minute))},
		}}
	default:
		w.fail(out, http.StatusNotFound)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(answer)
}

func (*inspectWorld) fail(out http.ResponseWriter, status int) {
	reason := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 401: metav1.StatusReasonUnauthorized, 404: metav1.StatusReasonNotFound}[status]
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(status)
	_ = json.NewEncoder(out).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(status), Reason: reason, Message: "this is forbidden",
	})
}

// kubeconfig writes one for the world's API server. user is YAML of its credentials.
func (w *inspectWorld) kubeconfig(t *testing.T, user string) string {
	t.Helper()
	server := httptest.NewTLSServer(w)
	t.Cleanup(server.Close)
	return writeKubeconfig(t, server.URL, user)
}

func writeKubeconfig(t *testing.T, server, user string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], users: [{name: u, user: %s}],
contexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]}`, server, user)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestInspectAsksTheAgentOfThePodsNode(t *testing.T) {
	w := newInspectWorld(t).ofDeveloper()
	config := w.kubeconfig(t, "{token: dev}")
	for _, args := range [][]string{{"cart"}, {"shop/cart", "-o", "yaml"}, {"cart", "-n", "shop", "-o", "json", "--via", "direct"}, {"cart", "--agent-namespace", agentsHome}} {
		code, out, errOut := call(t, "", append([]string{"inspect", "--kubeconfig", config}, args...)...)
		if code != 0 || !strings.Contains(out, "shop/cart") || strings.Index(out, "RulesRepaired") > strings.Index(out, "Old") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errOut)
		}
	}
	if _, _, errOut := call(t, "", "inspect", "--kubeconfig", config, "cart", "--agent-token", "other"); errOut != "" || w.tokens[len(w.tokens)-1] != "Bearer other" || w.tokens[0] != "Bearer dev" {
		t.Errorf("the agent was shown %q; %s", w.tokens, errOut)
	}
	w.status["/events"] = 403
	if code, out, _ := call(t, "", "inspect", "--kubeconfig", config, "cart"); code != 0 || !strings.Contains(out, "right to list events") {
		t.Errorf("without a right to events: exit code %d\n%s", code, out)
	}
}

func TestInspectSaysWhyItCannot(t *testing.T) {
	annotate := func(w *inspectWorld, s agentstatus.Status) { w.agent.Annotations[agentstatus.Annotation] = s.String() }
	for name, tc := range map[string]struct {
		prepare func(w *inspectWorld)
		user    string
		args    []string
		want    []string
	}{
		"there is no such pod":          {prepare: func(w *inspectWorld) { w.status["/pods/cart"] = 404 }, want: []string{"no pod shop/cart", "-n"}},
		"no right to get it":            {prepare: func(w *inspectWorld) { w.status["/pods/cart"] = 403 }, want: []string{"right to get pods in namespace shop"}},
		"credentials that have expired": {prepare: func(w *inspectWorld) { w.status["/pods/cart"] = 401 }, want: []string{"expired", "log in again"}},
		"it has no node yet":            {prepare: func(w *inspectWorld) { w.pod.Spec.NodeName = "" }, want: []string{"no node yet", "describe pod cart"}},
		"it has finished":               {prepare: func(w *inspectWorld) { w.pod.Status.Phase = corev1.PodSucceeded }, want: []string{"has finished"}},
		"it is on its node's network":   {prepare: func(w *inspectWorld) { w.pod.Spec.HostNetwork = true }, want: []string{"hostNetwork"}},
		"its node has no agent":         {prepare: func(w *inspectWorld) { w.agent.Spec.NodeName = "node2" }, want: []string{"no agent runs on node node1", "tolerations"}},
		"its node's agent does not run": {prepare: func(w *inspectWorld) { w.agent.Status.Phase = corev1.PodPending }, want: []string{"no agent runs on node node1"}},
		"no right to find the agent": {prepare: func(w *inspectWorld) {
			w.status["/namespaces/istio-pod-network-controller"], w.status["v1/pods"] = 403, 403
		}, want: []string{"list pods in the agents' namespace", "--agent-namespace"}},
		"the agents are somewhere else": {prepare: func(w *inspectWorld) { w.status["v1/pods"], w.agent.Namespace = 403, "mesh" }, want: []string{"give --agent-namespace"}},
		"agents in a closed namespace":  {prepare: func(w *inspectWorld) { w.status["/mesh"] = 403 }, args: []string{"--agent-namespace", "mesh"}, want: []string{"list pods there"}},
		"an agent of an old release":    {prepare: func(w *inspectWorld) { w.agent.Annotations = nil }, args: []string{"--via", "direct"}, want: []string{"release before inspect"}},
		"an agent that says something":  {prepare: func(w *inspectWorld) { w.agent.Annotations[agentstatus.Annotation] = "[" }, args: []string{"--via", "tunnel"}, want: []string{"another release"}},
		"an agent without inspect":      {prepare: func(w *inspectWorld) { annotate(w, agentstatus.Status{Version: "9"}) }, args: []string{"--via", "direct"}, want: []string{"inspect.enabled"}},
		"an agent that cannot be reached": {prepare: func(w *inspectWorld) {
			annotate(w, agentstatus.Status{Version: "9", Inspect: &agentstatus.Inspect{Port: 1, Certificate: "x"}})
		}, args: []string{"--via", "direct"}, want: []string{"cannot be reached from here"}},
		"another agent at its address": {prepare: func(w *inspectWorld) {
			annotate(w, agentstatus.Status{Version: "9", Inspect: &agentstatus.Inspect{Port: portOf(w), Certificate: "x"}})
		}, args: []string{"--via", "direct"}, want: []string{"the agent was restarted just now"}},
		"no right to the tunnel":   {prepare: func(w *inspectWorld) { w.status["/proxy"] = 403 }, args: []string{"--via", "tunnel"}, want: []string{"get pods/proxy in namespace " + agentsHome, "-inspect-tunnel"}},
		"no right to run commands": {prepare: func(w *inspectWorld) { w.status["/exec"] = 403 }, args: []string{"--via", "exec"}, want: []string{"create pods/exec in namespace " + agentsHome}},
		"a certificate instead of a token": {prepare: func(w *inspectWorld) { w.status["/exec"] = 403 }, user: "{}", want: []string{
			"kubectl create token", "exec: this takes the right",
		}},
		"no way that is switched on": {prepare: func(w *inspectWorld) { annotate(w.ofDeveloper(), agentstatus.Status{Version: "9"}) }, want: []string{"create pods/exec in namespace " + agentsHome, "set the chart's inspect.enabled=true"}},
		"the agent refuses": {prepare: func(w *inspectWorld) {
			w.ofDeveloper().refusal = &inspect.Refusal{Code: http.StatusForbidden, Message: "not allowed: x"}
		}, want: []string{"not allowed: x"}},
		"a name that is none":           {prepare: func(*inspectWorld) {}, args: []string{"--", "../cart"}, want: []string{"want a pod's name"}},
		"an unknown way":                {prepare: func(*inspectWorld) {}, args: []string{"--via", "pigeon"}, want: []string{`--via: value "pigeon"`}},
		"an unknown output":             {prepare: func(*inspectWorld) {}, args: []string{"-o", "xml"}, want: []string{`--output: value "xml"`}},
		"no agent in this container":    {prepare: func(*inspectWorld) {}, args: []string{"--local", "--socket", "/nowhere/inspect.sock"}, want: []string{"--local", "NAMESPACE/POD"}},
		"no agent on the socket":        {prepare: func(*inspectWorld) {}, args: []string{"--local", "--socket", "/nowhere/inspect.sock", "shop/cart"}, want: []string{"/nowhere/inspect.sock", "no such file"}},
		"several pods":                  {prepare: func(*inspectWorld) {}, args: []string{"other"}, want: []string{"want one pod and not 2: istio-pod-network-controller inspect [NAMESPACE/]POD"}},
		"the API server does not serve": {prepare: func(w *inspectWorld) { w.status["/api"] = 500 }, want: []string{"get pod shop/cart"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newInspectWorld(t)
			tc.prepare(w)
			user := tc.user
			if user == "" {
				user = "{token: dev}"
			}
			args := []string{"inspect", "--kubeconfig", w.kubeconfig(t, user)}
			if !strings.Contains(strings.Join(tc.args, " "), "/cart") {
				args = append(args, "cart")
			}
			code, out, errOut := call(t, "", append(args, tc.args...)...)
			if code != 1 || out != "" {
				t.Errorf("exit code %d, output %q", code, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(errOut, want) {
					t.Errorf("error %q, want %q in it", errOut, want)
				}
			}
		})
	}
}

// Whoever may make pods can give one the agents' label, their annotation and a node without an agent. It gets no token.
func TestInspectTrustsNoPodOfATenant(t *testing.T) {
	for name, tc := range map[string]struct {
		forge func(*corev1.Pod)
		args  []string
		want  string
	}{
		"a pod of another namespace":              {forge: func(p *corev1.Pod) { p.Namespace = "mallory" }, want: "give --agent-namespace"},
		"a pod on a network of its own":           {forge: func(p *corev1.Pod) { p.Spec.HostNetwork = false }, want: "no agent runs on node"},
		"a pod of no DaemonSet":                   {forge: func(p *corev1.Pod) { p.OwnerReferences = nil }, want: "no agent runs on node"},
		"such a pod of a namespace that is named": {forge: func(p *corev1.Pod) { p.Namespace, p.Spec.HostNetwork = "mallory", false }, args: []string{"--agent-namespace", "mallory"}, want: "no agent runs on node"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newInspectWorld(t)
			tc.forge(&w.agent)
			code, _, errOut := call(t, "", append([]string{"inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart"}, tc.args...)...)
			if code != 1 || !strings.Contains(errOut, tc.want) || len(w.tokens) > 0 {
				t.Errorf("exit code %d, error %q; it was shown %q", code, errOut, w.tokens)
			}
		})
	}
}

func portOf(w *inspectWorld) int {
	s, err := agentstatus.Parse(w.agent.Annotations[agentstatus.Annotation])
	if err != nil {
		return 0
	}
	return s.Inspect.Port
}

// A refusal by an agent is its answer: nobody is asked in another way.
func TestInspectStopsAtARefusal(t *testing.T) {
	w := newInspectWorld(t).ofDeveloper()
	w.refusal = &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "busy: try again"}
	_, _, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart")
	if strings.TrimSpace(errOut) != "error: busy: try again" || len(w.tokens) != 1 {
		t.Errorf("error %q, asked %d times", errOut, len(w.tokens))
	}
}

// An agent whose node was taken over writes what it likes.
func TestErrorsDoNotMoveATerminalsCursor(t *testing.T) {
	w := newInspectWorld(t).ofDeveloper()
	w.refusal = &inspect.Refusal{Code: http.StatusServiceUnavailable, Message: "a\x1b[2J\u009b2J\u202eb\rc\nd"}
	_, _, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart")
	if want := "error: a?[2J?2J?b c\nd\n"; errOut != want {
		t.Errorf("%q, want %q", errOut, want)
	}
}

func TestInspectCompletesItsFlags(t *testing.T) {
	w := newInspectWorld(t)
	for flag, want := range map[string]string{"--via": "tunnel", "--output": "wide", "--namespace": "", "--agent-namespace": ""} {
		code, out, errOut := call(t, "", "__complete", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), flag, "")
		if code != 0 || !strings.Contains(out, want) || !strings.Contains(errOut, "NoFileComp") {
			t.Errorf("%s: exit code %d, %q, %q", flag, code, out, errOut)
		}
	}
}

func TestInspectWithoutACluster(t *testing.T) {
	for name, tc := range map[string]struct{ config, want string }{
		"no such kubeconfig":            {filepath.Join(t.TempDir(), "none"), "no such file"},
		"an API server that is not up":  {writeKubeconfig(t, "http://127.0.0.1:1", "{token: dev}"), "cannot be reached"},
		"a kubeconfig that is none":     {"inspect_test.go", "kubeconfig"},
		"a kubeconfig without contexts": {writeFile(t, "{apiVersion: v1, kind: Config}"), "no cluster to ask"},
	} {
		code, _, errOut := call(t, "", "inspect", "--kubeconfig", tc.config, "cart")
		if code != 1 || !strings.Contains(errOut, tc.want) {
			t.Errorf("%s: exit code %d, error %q", name, code, errOut)
		}
	}
}
