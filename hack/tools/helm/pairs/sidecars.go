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

// sharedOf are the profiles of shared proxies.
func sharedOf(v At) (profiles []any) {
	list, _ := v("proxies.shared").([]any)
	for _, one := range list {
		proxy, _ := one.(map[string]any)
		profiles = append(profiles, proxy["profile"])
	}
	return profiles
}

// narrowed reports whether a policy bounds the agent.
func narrowed(v At) bool {
	return v(ClusterPath) != "old" && v("admission.restrictAgent") != false
}

// sidecarRules are what the templates refuse of the proxies that the agent runs.
func sidecarRules() []Rule {
	docker := func(v At) bool { return v("runtime.name") == "docker" }
	enabled := func(v At) bool { return v("proxies.enabled") == true }
	required := func(v At) bool { return enabled(v) && v("proxies.required") == true }
	istio := func(v At) bool { return v("proxies.istio.enabled") == true }
	return []Rule{
		{"Docker has no CRI", func(v At) bool { return enabled(v) && docker(v) }},
		{"the agent finds these proxies by CRI", func(v At) bool { return len(sharedOf(v)) > 0 && docker(v) }},
		{"no agent would tell the proxy", func(v At) bool { return !enabled(v) && len(sharedOf(v)) > 0 }},
		{"a node runs one proxy for a profile", func(v At) bool {
			names := map[any]bool{}
			for _, profile := range sharedOf(v) {
				names[profile] = true
			}
			return len(names) < len(sharedOf(v))
		}},
		{"hooks.failOpen lets start what proxies.required refuses", func(v At) bool { return required(v) && v("hooks.failOpen") == true }},
		{"is asked before a pod starts", func(v At) bool { return required(v) && off(v("hooks.nri.mode")) && v("hooks.cni.mode") != "install" }},
		{"could create tokens of every account", func(v At) bool {
			audiences, _ := v("proxies.tokenAudiences").([]any)
			return enabled(v) && len(audiences) > 0 && !narrowed(v)
		}},
		{"an agent that runs proxies", func(v At) bool { return istio(v) && !enabled(v) }},
		{"the image of Istio's proxy", func(v At) bool { return istio(v) && v("proxies.istio.image") == "" }},
		{"nodes with containerd or CRI-O (runtime.name)", func(v At) bool { return istio(v) && docker(v) }},
		{"bound the agent's tokens (admission.restrictAgent=false", func(v At) bool { return istio(v) && v("admission.restrictAgent") == false }},
		{"bound the agent's tokens (admission.restrictAgent=auto", func(v At) bool { return istio(v) && v(ClusterPath) == "old" }},
	}
}
