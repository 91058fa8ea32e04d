package controllers

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
)

// config returns the settings for all pods, with what the agent's proxies need.
func (v *visit) config(ctx context.Context) intent.Config {
	out := v.Config
	if v.Proxies != nil {
		out.Managed = func(profile string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy {
			return v.Proxies.Managed(ctx, v.sandbox, profile, pod, ns)
		}
	}
	return out
}

// follow has the sandbox's proxy looked after. profile is the one that the pod has chosen, or "" if it has chosen none. A sandbox that was
// not found yet has no proxy.
func (v *visit) follow(profile string) {
	if v.Proxies != nil && v.sandbox.ID != "" {
		v.Proxies.Follow(v.sandbox, v.by, profile)
	}
}

// led notes that the rules now lead to the proxy of profile, or, with "", that they were removed. The proxy to which they led before may end
// from now on.
func (v *visit) led(profile string) {
	if v.Proxies != nil {
		v.Proxies.Led(v.sandbox, profile)
	}
}

// refuseProxy reports a pod that has chosen a profile and cannot have a proxy. The pod starts all the same, and is not ready. Existing
// rules stay, and are repaired. A pod whose proxy runs already stays ready: a profile that is taken away takes no pod out of its Services.
func (v *visit) refuseProxy(ctx context.Context) (Result, error) {
	if err := v.find(ctx); err != nil && !absent(err) {
		return v.skipUnseen(ctx, err)
	}
	kept, err := v.keepRules(ctx)
	if errors.Is(err, errOvertaken) {
		return Failed, err
	}
	v.record(func() {
		v.follow(v.intent.Profile) // a profile that becomes usable is used at once
		if kept && v.proxyReady() {
			known, _ := v.Ledger.Of(v.sandbox.UID) // with what was found just now
			v.Ledger.Put(Entry{Sandbox: v.sandbox, State: Programmed, compiled: known.compiled, Findings: known.Findings})
			v.reportProgrammed(known.Findings, "traffic is redirected to the proxy, which runs on as it is: "+v.intent.Refused)
			return
		}
		v.Ledger.Fail(v.sandbox, err != nil)
		v.report(StatusFailed, ReasonProxyRefused, v.intent.Refused)
	})
	return Skipped, nil
}

// proxyReady reports whether the pod's proxy answers, or the agent runs none for it. While that is not known, what the pod says of the same
// sandbox counts: proxies run on while no agent does.
func (v *visit) proxyReady() bool {
	if !v.intent.Managed {
		return true
	}
	ready, known := v.Proxies.Ready(v.sandbox)
	if known {
		return ready
	}
	c := findCondition(v.pod)
	said, ok := detailsOn(v.pod)
	return ok && said.Sandbox == v.sandbox.ID && c != nil && c.Status == corev1.ConditionTrue
}
