package cni

import (
	"encoding/json"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

// Whatever a runtime passes, the plugin either refuses it or gets values that the agent accepts.
func FuzzCall(f *testing.F) {
	for _, c := range wrongCalls() {
		call := newCall("ADD", c.stdin).with(c.env)
		f.Add([]byte(c.stdin), call.env["CNI_CONTAINERID"], call.env["CNI_NETNS"], call.env["CNI_ARGS"])
	}
	f.Add([]byte(conf(DefaultSocket, "")), "8f5e", "/run/netns/x", podArgs)
	f.Fuzz(func(t *testing.T, stdin []byte, id, netns, args string) {
		if c, err := parseConf(stdin); err == nil {
			if err := c.Validate(); err != nil {
				t.Errorf("accepted, and not valid: %v", err)
			}
			if c.PrevResult != nil && !json.Valid(c.PrevResult) {
				t.Errorf("previous result %q", c.PrevResult)
			}
		}
		if s, err := sandboxOf(id, netns, args); err == nil && s != (podnet.Sandbox{}) {
			if err := validate(s); err != nil || s.Pod() == "/" {
				t.Errorf("accepted, and not valid: %+v: %v", s, err)
			}
		}
	})
}

// Whatever a peer sends, the handler gets a valid sandbox, or is not called.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(goodRequest))
	f.Add([]byte(`{"command":"STATUS"}`))
	f.Add([]byte(`{"command":"DEL","sandbox":{"namespace":"a","name":"b","id":"c","runtimeHandler":"kata"}}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		agent := &fakeAgent{}
		s := &Server{config: Config{Handler: agent, Ready: agent.ready}}
		var r request
		if json.Unmarshal(packet, &r) != nil {
			return
		}
		err := s.dispatch(t.Context(), r)
		if asked := agent.requests(); (err == nil) != (len(asked) == 1) {
			t.Errorf("answered %v, asked %q", err, asked)
		}
		if agent.last == (podnet.Sandbox{}) {
			return
		}
		if err := validate(agent.last); err != nil || agent.last.RuntimeHandler != "" || agent.last.Nameservers != "" {
			t.Errorf("handled %+v: %v", agent.last, err)
		}
	})
}
