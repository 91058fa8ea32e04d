package pairs

import "strings"

// sharedProxies are two: one that says what it must, and one that says all.
func sharedProxies() []any {
	return []any{
		map[string]any{"profile": "a", "image": "localhost/haproxy:1", "command": []any{"/usr/sbin/haproxy", "-W"}},
		map[string]any{
			"profile": "b.c", "image": "registry.example.com/envoy@sha256:" + strings.Repeat("0a", 32), "imagePullPolicy": "Always",
			"imagePullSecrets": []any{map[string]any{"name": "registry"}}, "command": []any{"envoy"}, "args": []any{"-c", "{{ x }}: 'y'"},
			"env": []any{map[string]any{"name": "A", "value": "b"}}, "runAsGroup": 2000,
			"resources":         map[string]any{"limits": map[string]any{"memory": "1Gi"}},
			"readinessProbe":    map[string]any{"exec": map[string]any{"command": []any{"true"}}},
			"nodeSelector":      map[string]any{},
			"tolerations":       []any{},
			"priorityClassName": "mesh", "terminationGracePeriodSeconds": 0,
		},
	}
}

// sharedOf are the shared proxies of a row.
func sharedOf(v func(string) any) []any {
	list, _ := v("sidecars.shared").([]any)
	return list
}

func requiresProxies(v func(string) any) bool {
	return v("sidecars.enabled") == true && v("sidecars.required") == true
}

// sidecarRules are what the templates refuse of the proxies that the agent runs.
func sidecarRules() []Rule {
	type at = func(string) any
	rules := []Rule{
		{
			Paths: []string{"sidecars.enabled", "containerRuntime"}, Says: "Docker has no CRI",
			Refuses: func(v at) bool { return v("sidecars.enabled") == true && v("containerRuntime") == "docker" },
		},
		{
			Paths: []string{"sidecars.enabled", "sidecars.untestedPlatform", "platform", "kubernetesDistribution"}, Says: "where SELinux is enforcing",
			Refuses: func(v at) bool {
				is := v("platform") == "openshift" || v("kubernetesDistribution") == "OpenShift"
				return v("sidecars.enabled") == true && v("sidecars.untestedPlatform") != true && is
			},
		},
		{
			Paths: []string{"sidecars.shared", "containerRuntime"}, Says: "the agent finds these proxies by CRI",
			Refuses: func(v at) bool { return len(sharedOf(v)) > 0 && v("containerRuntime") == "docker" },
		},
		{
			Paths: []string{"sidecars.enabled", "sidecars.shared"}, Says: "no agent would tell the proxy",
			Refuses: func(v at) bool { return v("sidecars.enabled") != true && len(sharedOf(v)) > 0 },
		},
		{
			Paths: []string{"sidecars.shared"}, Says: "a node runs one proxy for a profile",
			Refuses: func(v at) bool {
				names := map[any]bool{}
				for _, one := range sharedOf(v) {
					proxy, _ := one.(map[string]any)
					names[proxy["profile"]] = true
				}
				return len(names) < len(sharedOf(v))
			},
		},
		{
			Paths: []string{"sidecars.enabled", "sidecars.required", "failOpen"}, Says: "failOpen lets start what sidecars.required refuses",
			Refuses: func(v at) bool { return requiresProxies(v) && v("failOpen") == true },
		},
		{
			Paths: []string{"sidecars.enabled", "sidecars.required", "nri", "cni"}, Says: "is asked before a pod starts",
			Refuses: func(v at) bool {
				return requiresProxies(v) && (v("nri") == "off" || v("nri") == false) && v("cni") != "install"
			},
		},
		{
			Paths: []string{"sidecars.enabled", "sidecars.tokenAudiences", "admission.restrictAgent", ClusterPath}, Says: "could create tokens of every account",
			Refuses: func(v at) bool {
				audiences, _ := v("sidecars.tokenAudiences").([]any)
				return v("sidecars.enabled") == true && len(audiences) > 0 && !narrowed(v)
			},
		},
	}
	return append(rules, istioRules()...)
}

// istioRules are what the templates refuse of Istio's proxies.
func istioRules() []Rule {
	type at = func(string) any
	on := func(v at) bool { return v("sidecars.istio.enabled") == true }
	return []Rule{
		{
			Paths: []string{"sidecars.istio.enabled", "sidecars.enabled"}, Says: "an agent that runs proxies",
			Refuses: func(v at) bool { return on(v) && v("sidecars.enabled") != true },
		},
		{
			Paths: []string{"sidecars.istio.enabled", "sidecars.istio.image"}, Says: "the image of Istio's proxy",
			Refuses: func(v at) bool { return on(v) && v("sidecars.istio.image") == "" },
		},
		{
			Paths: []string{"sidecars.istio.enabled", "containerRuntime"}, Says: "nodes with containerd or CRI-O (containerRuntime)",
			Refuses: func(v at) bool { return on(v) && v("containerRuntime") == "docker" },
		},
		{
			Paths: []string{"sidecars.istio.enabled", "admission.restrictAgent"}, Says: "the policy that bounds the agent's tokens",
			Refuses: func(v at) bool { return on(v) && v("admission.restrictAgent") == false },
		},
		{
			Paths: []string{"sidecars.istio.enabled", "admission.restrictAgent", ClusterPath}, Says: "policies that bound the agent's tokens",
			Refuses: func(v at) bool { return on(v) && !narrowed(v) },
		},
	}
}

// narrowed reports whether a policy bounds the agent.
func narrowed(v func(string) any) bool {
	return v("admission.restrictAgent") == true || v("admission.restrictAgent") == "auto" && v(ClusterPath) != "old"
}
