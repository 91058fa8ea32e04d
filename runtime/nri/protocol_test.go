package nri

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"istio-pod-network-controller/internal/podnet"
)

// timeHandler reports the time until its deadline, and waits for the deadline if wait is set.
type timeHandler struct {
	given chan time.Duration
	wait  bool
}

func (h *timeHandler) Ensure(ctx context.Context, _ podnet.Sandbox) (bool, error) {
	end, _ := ctx.Deadline()
	h.given <- time.Until(end)
	if h.wait {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return true, nil
}

// What runtimes have sent since NRI 0.6. Older ones do not send limits; NRIVersion is the newest field.
func TestEveryRuntimesConfigureGivesTimeForACall(t *testing.T) {
	byDefault := time.Duration(handlerShare * float64(api.DefaultPluginRequestTimeout))
	for name, c := range map[string]struct {
		req  *api.ConfigureRequest
		want time.Duration
	}{
		"CRI-O 1.30 with NRI 0.6 knows no limits": {&api.ConfigureRequest{RuntimeName: "cri-o", RuntimeVersion: "1.30.14"}, byDefault},
		"containerd 1.7 with NRI 0.6, and a file": {&api.ConfigureRequest{Config: "x: y", RuntimeName: "containerd", RuntimeVersion: "v1.7.28"}, byDefault},
		"NRI 0.8 has limits":                      {&api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "v2.1.0", RegistrationTimeout: 5000, RequestTimeout: 1000}, 700 * time.Millisecond},
		"NRI 0.12 has its version, too":           {&api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RegistrationTimeout: 5000, RequestTimeout: 4000, NRIVersion: "0.12.3"}, 2800 * time.Millisecond},
		"a limit for the registration alone":      {&api.ConfigureRequest{RuntimeName: "cri-o", RegistrationTimeout: 5000}, byDefault},
		"a negative limit":                        {&api.ConfigureRequest{RuntimeName: "cri-o", RequestTimeout: -1}, byDefault},
		"nothing at all":                          {&api.ConfigureRequest{}, byDefault},
	} {
		t.Run(name, func(t *testing.T) {
			h := &timeHandler{given: make(chan time.Duration, 1)}
			e := start(t, Config{Handler: h})
			r := accept(t, listen(t, e.socket))
			r.configure(t, c.req)
			within(t, "connected", e.Connected)
			if err := r.ask(t, event(nil)); err != nil {
				t.Fatal(err)
			}
			if given := <-h.given; given > c.want || given < c.want-c.want/4 {
				t.Errorf("the handler has %s, want %s", given, c.want)
			}
		})
	}
}

// The runtime treats a late answer as consent.
func TestARefusalIsSentWithinTheRuntimesLimit(t *testing.T) {
	h := &timeHandler{given: make(chan time.Duration, 1), wait: true}
	e := start(t, Config{Handler: h})
	r := accept(t, listen(t, e.socket))
	r.configure(t, &api.ConfigureRequest{RequestTimeout: 3000})
	began := time.Now()
	if err := r.ask(t, event(nil)); err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("error %v after %s", err, time.Since(began))
	}
}

// A runtime that knows failure policies is asked to refuse pods if the plugin does not answer, unless the agent fails open.
func TestTheFailurePolicyFollowsFailOpen(t *testing.T) {
	for _, open := range []bool{false, true} {
		e := start(t, Config{FailOpen: open})
		said := accept(t, listen(t, e.socket)).configure(t, &api.ConfigureRequest{})
		if p := said.GetFailurePolicy(); p.GetFailRequest() == open || !p.GetKeepConnected() {
			t.Errorf("fail open %v: %v", open, p)
		}
	}
}
