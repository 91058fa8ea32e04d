package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// answerAbout is the agent's answer about a pod or its proxy.
func (w *inspectWorld) answerAbout(out http.ResponseWriter, r *http.Request) {
	switch path.Base(r.URL.Path) {
	case "log":
		_, _ = fmt.Fprintf(out, "log of %q\n", r.URL.RequestURI()) //nolint:gosec // no browser reads it
	case "exec":
		var command inspect.Command
		_ = json.NewDecoder(r.Body).Decode(&command)
		_ = json.NewEncoder(out).Encode(inspect.Output{Out: []byte(strings.Join(command.Args, " ")), Err: []byte("warned\n"), Code: 7, Cut: true})
	default:
		_ = json.NewEncoder(out).Encode(w.document)
	}
}

// unreachable has the agent say that it answers where nobody does.
func unreachable(w *inspectWorld) {
	w.agent.Annotations[agentstatus.Annotation] = agentstatus.Status{Version: cmdline.Release, Inspect: &agentstatus.Inspect{Port: 1, Certificate: "x"}}.String()
}

func TestProxyAccess_agentOfThePodsNode_isAsked(t *testing.T) {
	w := newInspectWorld(t).ofDeveloper()
	config := w.kubeconfig(t, "{token: dev}")
	for _, via := range []string{"auto", "direct", "tunnel"} {
		code, out, errOut := call(t, "", "logs", "--kubeconfig", config, "--via", via, "cart", "--tail", "3", "--timestamps")
		if want := "log of \"/v1/pods/shop/cart/log?follow=false&previous=false&tail=3&times=true\"\n"; code != 0 || out != want || errOut != "" {
			t.Errorf("%s: logs: exit code %d, %q, %q", via, code, out, errOut)
		}
		code, out, errOut = call(t, "", "exec", "--kubeconfig", config, "--via", via, "shop/cart", "--", "ls", "-l", "/run")
		if code != 7 || out != "ls -l /run" || errOut != "warned\nerror: the rest of what it printed was left out\n" {
			t.Errorf("%s: exec: exit code %d, %q, %q", via, code, out, errOut)
		}
	}
	for _, token := range w.tokens {
		if token != "Bearer dev" {
			t.Errorf("the agent was shown %q", token)
		}
	}
}

// The default way shows nobody a token, and takes no port of the node.
func TestProxyAccess_byDefault_runsACommandInTheAgentsContainer(t *testing.T) {
	said := func(out, errOut string, code int) func() (string, string, int) {
		return func() (string, string, int) { return out, errOut, code }
	}
	program := "/istio-pod-network-controller"
	for name, c := range map[string]struct {
		args       []string
		answer     func() (out, errOut string, code int)
		ran        []string
		out, error string
		code       int
	}{
		"a log": {
			args: []string{"logs", "cart", "-p", "--timestamps", "--tail", "3"}, answer: said("one\n", "", 0), out: "one\n",
			ran: []string{program, "sidecar", "logs", "shop/cart", "--tail=3", "--previous", "--timestamps"},
		},
		"a log that is followed has an end": {
			args: []string{"logs", "cart", "-f"}, answer: said("one\n", "", 0), out: "one\n",
			ran: []string{program, "sidecar", "logs", "shop/cart", "--tail=-1", "--follow", "--timeout=1h"},
		},
		"no log": {
			args: []string{"logs", "cart"}, answer: said("", "error: pod shop/cart has no proxy\n", 1), error: "error: pod shop/cart has no proxy\n", code: 1,
			ran: []string{program, "sidecar", "logs", "shop/cart", "--tail=-1"},
		},
		"a command": {
			args: []string{"exec", "cart", "--", "ls", "-l"}, answer: said("a\n", "warned\n", 7), out: "a\n", error: "warned\n", code: 7,
			ran: []string{program, "sidecar", "exec", "--runtime=crio", "shop/cart", "--", "ls", "-l"},
		},
	} {
		w := newInspectWorld(t)
		w.agent.Annotations[agentstatus.Annotation] = agentstatus.Status{Version: cmdline.Release}.String() // as with inspect.enabled=false
		w.agent.Spec.Containers = []corev1.Container{{Name: "agent", Args: []string{"run", "--runtime=crio", "--runtime-endpoint="}}}
		w.answer = c.answer
		code, out, errOut := call(t, "", append([]string{c.args[0], "--kubeconfig", w.kubeconfig(t, "{token: dev}")}, c.args[1:]...)...)
		if code != c.code || out != c.out || errOut != c.error || !slices.Equal(w.ran, c.ran) || len(w.tokens) > 0 {
			t.Errorf("%s: exit code %d, %q, %q; ran %q, the agent was shown %q", name, code, out, errOut, w.ran, w.tokens)
		}
	}
}

func TestProxyLogs_interrupted_isNoErrorOfAFollowedLog(t *testing.T) {
	w := newInspectWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.answer = func() (out, errOut string, code int) { cancel(); return "one\n", "", 1 }
	for follow, want := range map[bool]bool{true: true, false: false} {
		cmd := newProxyLogs(Program{})
		cmd.SetArgs([]string{"--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart", fmt.Sprintf("--follow=%t", follow)})
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(ctx); (err == nil) != want {
			t.Errorf("followed %t: %v", follow, err)
		}
	}
}

// A node that hangs does not hold who types Ctrl-C.
func TestProxyAccess_interruptedBeforeAnAnswer_ends(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel(); <-release }))
	defer api.Close()
	defer close(release)
	flags := kubeFlags{Kubeconfig: &fewFlags{kubeconfig: kubeconfigTo(t, api.URL)}}
	client, err := flags.connect()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		w := &inspectWays{client: client, agent: cluster.Agent{Namespace: "mesh", Name: "agent"}}
		_, err := w.run(ctx, []string{"sidecar", "logs"}, remotecommand.StreamOptions{Stdout: io.Discard})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}

// A pod that goes while its agent is asked: the message says so, and the exit code is an error's. Of a command that has run it is the command's.
func TestAsked_podDeletedMeanwhile_isSaid(t *testing.T) {
	const notHere = "the agent of node node1 knows no pod shop/cart"
	for name, c := range map[string]struct {
		after func(w *inspectWorld) // what becomes of the pod once it was read
		want  string
	}{
		"it is gone":               {func(w *inspectWorld) { w.status["/pods/cart"] = 404 }, "error: pod shop/cart was deleted while its agent was asked"},
		"it goes":                  {func(w *inspectWorld) { w.pod.DeletionTimestamp = new(metav1.Now()) }, "error: pod shop/cart is being deleted"},
		"another one has its name": {func(w *inspectWorld) { w.pod.UID = "uid-2" }, "error: pod shop/cart was deleted while its agent was asked, and another pod has its name now: ask again"},
	} {
		for command, code := range map[string]int{"inspect cart": 1, "logs cart": 1, "exec cart -- ls": 7} {
			words := func(w *inspectWorld) []string {
				args := strings.Fields(command)
				return slices.Concat(args[:1], []string{"--kubeconfig", w.kubeconfig(t, "{token: dev}")}, args[1:])
			}
			w := newInspectWorld(t)
			w.answer = func() (out, errOut string, code int) {
				c.after(w)
				if command == "exec cart -- ls" {
					return "", "", 7
				}
				return "", "error: " + notHere, 1
			}
			got, _, errOut := call(t, "", words(w)...)
			if got != code || !strings.HasPrefix(errOut, c.want) || code == 1 && !strings.Contains(errOut, ": "+notHere) {
				t.Errorf("%s, %s: exit code %d, %q", command, name, got, errOut)
			}
			w = newInspectWorld(t).ofDeveloper()
			w.refusal = &inspect.Refusal{Code: http.StatusNotFound, Message: notHere}
			w.meanwhile = c.after
			got, _, errOut = call(t, "", words(w)...)
			if got != 1 || !strings.HasPrefix(errOut, c.want+": "+notHere) {
				t.Errorf("%s over the network, %s: exit code %d, %q", command, name, got, errOut)
			}
		}
	}
}

// The sandbox goes before the pod: then the agent knows the pod, and has nothing to look at.
func TestInspect_podWithoutSandboxGoes_isSaid(t *testing.T) {
	for name, c := range map[string]struct {
		going bool
		want  int
	}{"it is being deleted": {true, 1}, "it starts": {false, cmdline.ExitDrift}} {
		w := newInspectWorld(t)
		w.document.Programmed.Absent, w.document.Agreement.Verdict = "no sandbox", inspect.Unknown
		if c.going {
			w.pod.DeletionTimestamp = new(metav1.Now())
		}
		code, _, errOut := call(t, "", "inspect", "--kubeconfig", w.kubeconfig(t, "{token: dev}"), "cart")
		if code != c.want || c.going != strings.Contains(errOut, "pod shop/cart is being deleted") {
			t.Errorf("%s: exit code %d, %q", name, code, errOut)
		}
	}
}

func TestProxyAccess_impossible_saysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *inspectWorld)
		user    string
		args    []string
		want    []string
	}{
		"the agent refuses": {prepare: func(w *inspectWorld) {
			w.ofDeveloper().refusal = &inspect.Refusal{Code: http.StatusForbidden, Message: "not allowed: x"}
		}, want: []string{"error: not allowed: x"}},
		"a certificate instead of a token": {prepare: func(w *inspectWorld) { w.ofDeveloper() }, user: "{}", want: []string{"kubectl create token", "create pods/exec"}},
		"no way":                           {prepare: func(w *inspectWorld) { unreachable(w.ofDeveloper()); w.status["/proxy"] = 403 }, want: []string{"cannot be reached from here", "-inspect-tunnel"}},
		"a way that is none":               {prepare: func(*inspectWorld) {}, args: []string{"--via", "pigeon"}, want: []string{`--via: value "pigeon"`}},
		"only the way by exec is switched on": {prepare: func(w *inspectWorld) {
			w.ofDeveloper().agent.Annotations[agentstatus.Annotation] = agentstatus.Status{Version: cmdline.Release}.String()
		}, want: []string{"create pods/exec in namespace " + agentsHome, "set the chart's inspect.enabled=true"}},
		"there is no such pod": {prepare: func(w *inspectWorld) { w.status["/pods/cart"] = 404 }, want: []string{"no pod shop/cart"}},
	} {
		user := c.user
		if user == "" {
			user = "{token: dev}"
		}
		for _, command := range [][]string{{"logs"}, {"exec"}} {
			w := newInspectWorld(t)
			c.prepare(w)
			args := append(append(command, "--kubeconfig", w.kubeconfig(t, user), "cart"), c.args...)
			if command[0] == "exec" {
				args = append(args, "--", "ls")
			}
			code, out, errOut := call(t, "", args...)
			if code != 1 || out != "" {
				t.Errorf("%s, %s: exit code %d, %q", name, command[0], code, out)
			}
			for _, want := range c.want {
				if !strings.Contains(errOut, want) {
					t.Errorf("%s, %s: error %q, want %q in it", name, command[0], errOut, want)
				}
			}
		}
	}
}
