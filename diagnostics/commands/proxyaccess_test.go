package commands

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

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
	w := newInspectWorld(t)
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

func TestProxyAccess_impossible_saysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *inspectWorld)
		user    string
		args    []string
		want    []string
	}{
		"the agent refuses": {prepare: func(w *inspectWorld) {
			w.refusal = &inspect.Refusal{Code: inspect.CodeForbidden, Message: "not allowed: x"}
		}, want: []string{"error: not allowed: x"}},
		"a certificate instead of a token": {prepare: func(*inspectWorld) {}, user: "{}", want: []string{"kubectl create token", "sidecar logs"}},
		"no way":                           {prepare: func(w *inspectWorld) { unreachable(w); w.status["/proxy"] = 403 }, want: []string{"cannot be reached from here", "-inspect-tunnel"}},
		"a way that is none":               {prepare: func(*inspectWorld) {}, args: []string{"--via", "exec"}, want: []string{`--via: value "exec"`}},
		"there is no such pod":             {prepare: func(w *inspectWorld) { w.status["/pods/cart"] = 404 }, want: []string{"no pod shop/cart"}},
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
