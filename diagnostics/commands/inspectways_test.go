package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"
	criremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// The protocols of commands in containers.
const (
	protocolWebSocket = "v5.channel.k8s.io"
	protocolSPDY      = "v4.channel.k8s.io"
)

// exec is the API server's pods/exec: the program in the agent's container answers.
func (w *inspectWorld) exec(out http.ResponseWriter, r *http.Request) {
	w.ran = r.URL.Query()["command"]
	if !wsstream.IsWebSocketRequest(r) {
		w.execs[protocolSPDY]++
		criremote.ServeExec(out, r, w, "", "", "", nil, &criremote.Options{Stdout: true, Stderr: true}, time.Minute, time.Minute, []string{protocolSPDY})
		return
	}
	if w.noSockets {
		http.Error(out, "no web sockets", http.StatusBadRequest)
		return
	}
	w.execs[protocolWebSocket]++
	none, write := wsstream.IgnoreChannel, wsstream.WriteChannel
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{protocolWebSocket: {Binary: true, Channels: []wsstream.ChannelType{none, write, write, write, none}}})
	_, streams, err := conn.Open(out, r)
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // the answer was given
	text, errText, code := w.answer()
	_, _ = streams[1].Write([]byte(text))
	_, _ = streams[2].Write([]byte(errText))
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}},
		}}
	}
	said, _ := json.Marshal(status)
	_, _ = streams[3].Write(said)
}

// ExecInContainer is exec's, by SPDY.
func (w *inspectWorld) ExecInContainer(_ context.Context, _, _, _ string, _ []string, _ io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan criremote.TerminalSize, _ time.Duration) error {
	text, errText, code := w.answer()
	_, _ = io.WriteString(out, text)
	_, _ = io.WriteString(errOut, errText)
	if code != 0 {
		return exec.CodeExitError{Err: errors.New("it ended"), Code: code}
	}
	return nil
}

// ofDeveloper takes the right to run commands in the agent's container away, so that the agent is asked over the network.
func (w *inspectWorld) ofDeveloper() *inspectWorld {
	w.status["/exec"] = 403
	return w
}

// tunnel is the API server's pods/proxy: bytes to and from the agent.
func (w *inspectWorld) tunnel(out http.ResponseWriter) {
	agent, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", portOf(w)))
	if err != nil {
		w.fail(out, http.StatusServiceUnavailable)
		return
	}
	defer agent.Close() //nolint:errcheck // the caller has gone
	caller, _, err := http.NewResponseController(out).Hijack()
	if err != nil {
		return
	}
	defer caller.Close() //nolint:errcheck // the agent has gone
	_, _ = io.WriteString(caller, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+inspect.UpgradeProtocol+"\r\n\r\n")
	go func() { _, _ = io.Copy(agent, caller) }()
	_, _ = io.Copy(caller, agent)
}

// verdicts are documents with each verdict of the agent.
func verdicts() map[string]inspect.Document {
	of := func(change func(*inspect.Document)) inspect.Document {
		d := inspect.Document{Pod: "shop/cart", Node: "node1", Agent: inspect.Agent{Version: cmdline.Release}, Asked: inspect.Asked{Redirect: true}, Agreement: inspect.Agreement{Verdict: inspect.Agree}}
		change(&d)
		return d
	}
	return map[string]inspect.Document{
		"in order":         of(func(*inspect.Document) {}),
		"DIFFERS":          of(func(d *inspect.Document) { d.Agreement.Verdict = inspect.Differ }),
		"unknown: no time": of(func(d *inspect.Document) { d.Agreement = inspect.Agreement{Verdict: inspect.Unknown, Error: "no time"} }),
		"preempted":        of(func(d *inspect.Document) { d.Others.Preempting = []string{"a chain"} }),
		"failed":           of(func(d *inspect.Document) { d.Asked = inspect.Asked{Invalid: "wrong"} }),
		"kept":             of(func(d *inspect.Document) { d.Asked, d.Agreement.Kept = inspect.Asked{}, true }),
		"no proxy": of(func(d *inspect.Document) {
			d.Asked.Profile, d.Agent.RunsProxies, d.Reported.Reason = "edge", true, "ProxyNotReady"
		}),
		"left to Istio": of(func(d *inspect.Document) { d.Others.Owner = "Istio" }),
	}
}

// Each verdict comes as one document by each way, with its exit code. The command in the agent's container runs once.
func TestInspect_everyVerdictByEveryWay_isOneDocument(t *testing.T) {
	for verdict, document := range verdicts() {
		for way, tc := range map[string]struct {
			via, user string
			noSockets bool
			wantExecs map[string]int
		}{
			"directly":                          {via: "direct", user: "{token: dev}", wantExecs: map[string]int{}},
			"by the tunnel":                     {via: "tunnel", user: "{token: dev}", wantExecs: map[string]int{}},
			"by a command":                      {via: "exec", user: "{token: dev}", wantExecs: map[string]int{protocolWebSocket: 1}},
			"by the way that is tried first":    {via: "auto", user: "{token: dev}", wantExecs: map[string]int{protocolWebSocket: 1}},
			"by a command, without a token":     {via: "auto", user: "{}", wantExecs: map[string]int{protocolWebSocket: 1}},
			"by a command, without web sockets": {via: "exec", user: "{}", noSockets: true, wantExecs: map[string]int{protocolSPDY: 1}},
		} {
			t.Run(verdict+" "+way, func(t *testing.T) {
				w := newInspectWorld(t)
				w.document, w.noSockets = document, tc.noSockets
				code, out, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, tc.user), "cart", "--via", tc.via)
				if want := exitCode(document); code != want || errOut != "" || !strings.Contains(out, verdict) {
					t.Errorf("exit code %d, want %d\n%s%s", code, want, out, errOut)
				}
				if !maps.Equal(w.execs, tc.wantExecs) {
					t.Errorf("commands %v, want %v", w.execs, tc.wantExecs)
				}
			})
		}
	}
}

// An agent that was asked by a command, and refuses, is not asked again over the network. A command that finds no agent on its socket has not asked.
func TestInspect_refusalByACommand_isTheAnswer(t *testing.T) {
	for said, tc := range map[string]struct {
		code      int
		want      string
		wantAsked bool
	}{
		"error: no pod shop/cart on this node":                         {code: 1, want: "error: no pod shop/cart on this node\n"},
		"error: " + unansweredLocally + "/run/x: no such file":         {wantAsked: true},
		"error: unknown command \"inspect\"":                           {wantAsked: true},
		"error: " + unansweredLocally + "/run/x: pods are never shown": {wantAsked: true},
	} {
		w := newInspectWorld(t)
		w.answer = func() (out, errOut string, code int) { return "", said, 1 }
		code, _, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart")
		if code != tc.code || errOut != tc.want || (len(w.tokens) > 0) != tc.wantAsked {
			t.Errorf("%s: exit code %d, %q, asked over the network with %q", said, code, errOut, w.tokens)
		}
	}
}

// A command that fails has run: it is not run again another way.
func TestInspect_failedCommand_isNotRunAgain(t *testing.T) {
	w := newInspectWorld(t)
	w.answer = func() (out, errOut string, code int) { return "", "error: no agent answers", 1 }
	code, _, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{}"), "cart", "--via", "exec")
	if code != 1 || !strings.Contains(errOut, "no agent answers") || !maps.Equal(w.execs, map[string]int{protocolWebSocket: 1}) {
		t.Errorf("exit code %d, %q, commands %v", code, errOut, w.execs)
	}
}

// What to do next names the agent, so that it can be typed as it is.
func TestInspectNamesTheAgentInWhatToDo(t *testing.T) {
	w := newInspectWorld(t)
	w.document.Agreement.Verdict = inspect.Differ
	w.document.Next = inspect.Advise(w.document)
	code, out, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart")
	if want := "kubectl -n " + agentsHome + " logs agent-1 | grep shop/cart"; code != cmdline.ExitDrift || !strings.Contains(out, want) {
		t.Errorf("exit code %d, want %q in\n%s%s", code, want, out, errOut)
	}
}

// kubectl takes and prints pod/NAME. A namespace that is named twice in two ways is a mistake, and not one of them.
func TestPodNamed_asKubectlDoes(t *testing.T) {
	for args, want := range map[string]string{
		"cart": "", "-n shop cart": "", "shop/cart": "", "-n shop shop/cart": "", "pod/cart": "", "pods/cart": "", "-n shop pod/cart": "",
		"-n other shop/cart": `error: "shop/cart" names another namespace than --namespace other: leave one of them out`,
		"shop/cart/x":        `error: "shop/cart/x": want a pod's name, or NAMESPACE/NAME`,
		"pod/":               `error: "pod/": want a pod's name, or NAMESPACE/NAME`,
	} {
		for _, command := range []string{"inspect", "logs", "exec"} {
			w := newInspectWorld(t)
			line := append([]string{command, "--kubeconfig", w.kubeconfig(t, "{token: dev}")}, strings.Fields(args)...)
			if command == "exec" {
				line = append(line, "--", "ls")
			}
			_, _, errOut := call(t, "", line...)
			if strings.Contains(errOut, "error: ") != (want != "") || !strings.HasPrefix(errOut, want) {
				t.Errorf("%s %s: %q, want %q", command, args, errOut, want)
			}
		}
	}
}

// Keys that nearly are the agent's are named, with what was meant: the agent does not know them.
func TestInspect_mistypedKeys_areNamed(t *testing.T) {
	w := newInspectWorld(t)
	w.pod.Annotations = map[string]string{"traffic.sidecar.istio.io/excludeInboundPort": "80"}
	w.namespace = map[string]string{"istio-pod-network-controler/initialize": "true"}
	config := w.kubeconfig(t, "{token: dev}")
	_, out, _ := call(t, "", "inspect", "--kubeconfig", config, "cart")
	for _, want := range []string{
		`note: annotation "traffic.sidecar.istio.io/excludeInboundPort" is not known: did you mean traffic.sidecar.istio.io/excludeInboundPorts?`,
		`note: namespace shop: annotation "istio-pod-network-controler/initialize" is not known: did you mean istio-pod-network-controller/initialize?`,
		"not understood: a setting of the pod has a key that nobody reads",
		`- correct the key, which nobody reads: namespace shop: annotation "istio-pod-network-controler/initialize" is not known: did you mean istio-pod-network-controller/initialize?`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %s in\n%s", want, out)
		}
	}
}

func TestInspectSaysThatTheAgentIsOfAnotherRelease(t *testing.T) {
	for versions, want := range map[[2]string]bool{{"0.1.0", "9.9.9"}: true, {"0.1.0", "0.1.0"}: false, {"", "9.9.9"}: false, {"0.1.0", ""}: false} {
		out := strings.Join(otherRelease(versions[0], versions[1]), "; ")
		if strings.Contains(out, "this command is release 0.1.0 and the agent 9.9.9") != want || !want && out != "" {
			t.Errorf("%q: %q", versions, out)
		}
	}
}

// A program that nobody has stamped, as this test is, knows no release of its own.
func TestInspect_unstampedProgram_comparesNoRelease(t *testing.T) {
	w := newInspectWorld(t)
	config := w.kubeconfig(t, "{token: dev}")
	status, err := agentstatus.Parse(w.agent.Annotations[agentstatus.Annotation])
	if err != nil {
		t.Fatal(err)
	}
	status.Version = "9.9.9"
	w.agent.Annotations[agentstatus.Annotation] = status.String()
	for _, args := range [][]string{{"inspect", "cart"}, {"status"}} {
		if _, out, _ := call(t, "", append(args, "--kubeconfig", config)...); strings.Contains(out, "release") {
			t.Errorf("%v:\n%s", args, out)
		}
	}
}
