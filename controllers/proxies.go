package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// withProxies returns the settings for all pods, with what the agent's proxies need of the pod of s. proxies is nil if the agent runs none.
func withProxies(ctx context.Context, c intent.Config, proxies Proxies, s podnet.Sandbox) intent.Config {
	if proxies != nil {
		c.Managed = func(profile string, pod *corev1.Pod, ns *corev1.Namespace) *intent.ManagedProxy {
			return proxies.Managed(ctx, s, profile, pod, ns)
		}
	}
	return c
}

// Intent returns what the pod of a sandbox asks for, with the proxies that the agent runs.
func (p *Programmer) Intent(ctx context.Context, s podnet.Sandbox, pod *corev1.Pod, ns *corev1.Namespace) (intent.Intent, error) {
	return intent.Of(pod, ns, withProxies(ctx, p.Config, p.Proxies, s))
}

// follow has the sandbox's proxy looked after. profile is the pod's choice, or "". A sandbox that was not found yet has no proxy.
func follow(proxies Proxies, v visit, profile string) {
	if proxies != nil && v.sandbox.ID != "" {
		proxies.Follow(v.sandbox, v.by, profile)
	}
}

// led notes that the rules now lead to a proxy of the agent's, or, with nil, were removed, or lead elsewhere. The former proxy may end from now on.
func led(proxies Proxies, s podnet.Sandbox, to *intent.ManagedProxy) {
	if proxies != nil {
		proxies.Led(s, to)
	}
}

// proxyReady reports whether the pod's proxy answers, or the agent runs none for it. While that is not known, what the pod says of the same
// sandbox counts: proxies run on while no agent does.
func proxyReady(proxies Proxies, v visit) bool {
	if !v.intent.Managed {
		return true
	}
	if ready, known := proxies.Ready(v.sandbox); known {
		return ready
	}
	c := findCondition(v.pod)
	said, ok := podreport.DetailsOn(v.pod)
	return ok && said.Sandbox == v.sandbox.ID && c != nil && c.Status == corev1.ConditionTrue
}
