package charttest

import (
	"flag"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var binary = flag.String("binary", "../../../../build/istio-pod-network-controller", "the agent, whose flags are compared with the chart")

// notInValues are the flags that the pod itself answers, through the downward API.
func notInValues() map[string]string {
	return map[string]string{"node-name": "$(NODE_NAME)", "agent-namespace": "$(POD_NAMESPACE)", "pod-name": "$(POD_NAME)"}
}

// notByDefault are the flags that the chart leaves out, with their defaults, unless sidecars are on. It never sets the directories, which it mounts.
func notByDefault() map[string]string {
	return map[string]string{"sidecars": "", "sidecars-required": "", "sidecar-root": sidecarRoot, "shared-root": sharedRoot, "sidecar-secrets": sidecarSecrets, "sidecar-token-audiences": ""}
}

// The flags of `run` and the chart's arguments are the same set, and an untouched values.yaml says what an untouched flag says.
func TestArgumentsAreTheFlagsOfRun(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), *binary, "run", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("ask the agent for its flags (`make build` builds it): %v\n%s", err, help)
	}
	args := arguments(t, "{}")
	flags := map[string]string{}
	line := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z][a-z0-9-]*)(?:[^\n]*\(default (.*)\)$)?`)
	for _, match := range line.FindAllStringSubmatch(string(help), -1) {
		if match[1] != "help" {
			flags[match[1]] = strings.Trim(match[2], `"[]`)
		}
	}
	for name, value := range notInValues() {
		if args[name] != value {
			t.Errorf("--%s=%s, want %s", name, args[name], value)
		}
		delete(args, name)
		if _, ok := flags[name]; !ok {
			t.Errorf("run has no flag --%s", name)
		}
		delete(flags, name)
	}
	for name, value := range notByDefault() {
		if got, ok := flags[name]; !ok || got != value || args[name] != "" {
			t.Errorf("--%s of run: there: %t, with the default %q, want %q; in the chart's arguments: %q", name, ok, got, value, args[name])
		}
		delete(flags, name)
	}
	if diff := cmp.Diff(flags, args, cmp.Comparer(sameDefault)); diff != "" {
		t.Errorf("flags of run and their defaults against the chart's arguments (-run +chart):\n%s", diff)
	}
}

// sameDefault compares as flags do: 1m is 1m0s, and help does not print a default of false.
func sameDefault(a, b string) bool {
	if a+b == "false" {
		return true
	}
	first, errFirst := time.ParseDuration(a)
	second, errSecond := time.ParseDuration(b)
	return a == b || errFirst == nil && errSecond == nil && first == second
}

// What the schema lets through, the agent takes, too: with no node named it must have nothing else to say.
func TestAgentTakesTheArguments(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			args := daemonSet(t, values).Spec.Template.Spec.Containers[0].Args
			output, err := exec.CommandContext(t.Context(), *binary, append(args, "--pod-name=agent-1", "--node-name=")...).CombinedOutput()
			if err == nil {
				t.Fatalf("the agent ran without a node's name:\n%s", output)
			}
			faults := strings.Split(strings.TrimSpace(string(output)), "\n")
			if len(faults) != 1 || !strings.Contains(faults[0], "--node-name") {
				t.Errorf("the agent refuses the chart's arguments (want the missing node's name alone):\n%s", output)
			}
		})
	}
}

// Each value with a flag moves that flag alone.
func TestValuesMapOneToOne(t *testing.T) {
	defaults := arguments(t, "{}")
	for flag, tc := range map[string]struct{ in, want string }{
		"runtime":                      {"containerRuntime: crio", "crio"},
		"runtime-endpoint":             {"runtimeEndpoint: unix:///run/k3s/containerd/containerd.sock", "unix:///run/k3s/containerd/containerd.sock"},
		"backend":                      {"backend: nftables", "nftables"},
		"select":                       {"select: either", "either"},
		"exclude-namespaces":           {"excludeNamespaces: [a, b]", "a,b"},
		"unsupported-runtime-handlers": {"unsupportedRuntimeHandlers: []", ""},
		"nri":                          {"nri: required", "required"},
		"nri-socket":                   {"nriSocket: /run/other/nri.sock", "/run/other/nri.sock"},
		"nri-name":                     {"nriName: mesh", "mesh"},
		"nri-index":                    {"nriIndex: '05'", "05"},
		"fail-open":                    {"failOpen: true", "true"},
		"startup-taint":                {"startupTaint: true", "true"},
		"startup-taint-key":            {"startupTaintKey: a.b/c", "a.b/c"},
		"cni":                          {"cni: install", "install"},
		"cni-bin-dir":                  {"cniBinDir: /usr/libexec/cni", "/usr/libexec/cni"},
		"cni-conf-dir":                 {"cniConfDir: /etc/kubernetes/cni/net.d", "/etc/kubernetes/cni/net.d"},
		"cni-socket":                   {"cniSocket: /run/agent/cni.sock", "/run/agent/cni.sock"},
		"cni-plugin-source":            {"cniPluginSource: /plugin", "/plugin"},
		"cni-fail-open":                {"cniFailOpen: true", "true"},
		"cni-status-needs-agent":       {"cniStatusNeedsAgent: true", "true"},
		"cni-exclude-namespaces":       {"cniExcludeNamespaces: [a, b]", "a,b"},
		"include-outbound-ip-ranges":   {"includeOutboundIPRanges: [10.0.0.0/8, 'fd00::/8']", "10.0.0.0/8,fd00::/8"},
		"exclude-outbound-ip-ranges":   {"excludeOutboundIPRanges: [192.168.0.0/16]", "192.168.0.0/16"},
		"include-inbound-ports":        {"includeInboundPorts: [80, 8080]", "80,8080"},
		"inbound-ports":                {"inboundPorts: listening", "listening"},
		"exclude-inbound-ports":        {"excludeInboundPorts: [22]", "22"},
		"include-outbound-ports":       {"includeOutboundPorts: [3306]", "3306"},
		"exclude-outbound-ports":       {"excludeOutboundPorts: []", ""},
		"envoy-port":                   {"envoyPort: 65535", "65535"},
		"envoy-inbound-port":           {"envoyInboundPort: 25006", "25006"},
		"envoy-tunnel-port":            {"envoyTunnelPort: 25008", "25008"},
		"interception-mode":            {"interceptionMode: TPROXY", "TPROXY"},
		"ipv6":                         {"ipv6: direct", "direct"},
		"cluster-dns":                  {"clusterDNS: [10.96.0.10, 'fd00::10']", "10.96.0.10,fd00::10"},
		"health-addr":                  {"healthAddr: unix:///run/agent/health.sock", "unix:///run/agent/health.sock"},
		"metrics-addr":                 {"metricsAddr: 127.0.0.1:25079", "127.0.0.1:25079"},
		"metrics-secure":               {"metrics: {secure: true}", "true"},
		"inspect-addr":                 {"{inspect: {enabled: true}, inspectAddr: 127.0.0.1:25078}", "127.0.0.1:25078"},
		"pprof-addr":                   {"pprofAddr: 127.0.0.1:25080", "127.0.0.1:25080"},
		"log-level":                    {"logLevel: debug", "debug"},
		"verify-interval":              {"verifyInterval: 1h30m", "1h30m"},
		"sidecars":                     {"sidecars: {enabled: true}", "true"},
	} {
		t.Run(flag, func(t *testing.T) {
			want := arguments(t, "{}")
			want[flag] = tc.want
			if flag == "cni" {
				want["daemonset"] = name // without the CNI chain there is nothing to ask for
			}
			if diff := cmp.Diff(want, arguments(t, tc.in)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			delete(defaults, flag)
		})
	}
	delete(defaults, "daemonset")
	delete(defaults, "metrics-cert-dir") // which needs metrics-secure: TestSecureMetrics
	if diff := cmp.Diff(notInValues(), defaults); diff != "" {
		t.Errorf("arguments that this test does not move (-want +got):\n%s", diff)
	}
}

// arguments are the container's flags by name; a flag that is given twice is a failure.
func arguments(t *testing.T, values string) map[string]string {
	t.Helper()
	args := daemonSet(t, values).Spec.Template.Spec.Containers[0].Args
	if len(args) == 0 || args[0] != "run" {
		t.Fatalf("arguments are %q, want `run` first", args)
	}
	byName := make(map[string]string, len(args))
	for _, arg := range args[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if _, double := byName[name]; double || !ok || !strings.HasPrefix(arg, "--") {
			t.Fatalf("argument %q: given twice, or not of the form --flag=value", arg)
		}
		byName[name] = value
	}
	return byName
}
