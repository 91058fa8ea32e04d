package charttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/hack/tools/helm/pairs"
	"istio-pod-network-controller/hack/tools/helm/render"
)

// notInValues are the flags that the pod itself answers, through the downward API.
func notInValues() map[string]string {
	return map[string]string{
		"node-name": "$(NODE_NAME)", "agent-namespace": "$(POD_NAMESPACE)", "pod-name": "$(POD_NAME)",
		"keep-dir": "/run/istio-pod-network-controller/kept", "kubelet-socket": "/var/lib/kubelet/pods-api/pods-api.sock",
	}
}

// notByDefault are the flags that the chart leaves out: its templates stand on these defaults. It refuses them in agent.extraArgs, with the value to set,
// or "" for what it sets itself.
func notByDefault() map[string][2]string {
	return map[string][2]string{
		"health-addr": {"unix:///run/istio-pod-network-health/health.sock"}, "nri-name": {name},
		"cni-socket": {"/var/run/istio-pod-network-controller/cni.sock"}, "cni-plugin-source": {"/istio-pod-network-cni"},
		"sidecar-root": {sidecarRoot}, "shared-root": {sharedRoot}, "sidecar-secrets": {sidecarSecrets}, "sidecar-profiles": {sidecarProfiles},
		"sidecars": {"", "proxies.enabled"}, "sidecars-required": {"", "proxies.required"}, "sidecar-token-audiences": {"", "proxies.tokenAudiences"},
		"inspect-addr": {"0", "inspect.enabled"}, "envoy-inbound-port": {"15006", "redirection.defaults.envoyInboundPort"},
		"interception-mode": {"REDIRECT", "redirection.defaults.interceptionMode"}, "ipv6": {"capture", "redirection.defaults.ipv6"},
	}
}

// inExtraArgs are the flags that are no values.
func inExtraArgs() []string {
	return []string{"cluster-dns", "cni-status-needs-agent", "nri-index", "pprof-addr", "verify-interval"}
}

// The flags of `run` are the chart's arguments, with the same defaults, and those that it leaves out: agent.extraArgs takes what has no value, and nothing else.
func TestArgumentsAreTheFlagsOfRun(t *testing.T) {
	flags, args := flagsOfRun(t), rendering(t, "{}").arguments(t)
	for flag, value := range notInValues() {
		if _, ok := flags[flag]; !ok || args[flag] != value {
			t.Errorf("--%s=%s, want %s; run has the flag: %t", flag, args[flag], value, ok)
		}
	}
	for flag, want := range notByDefault() {
		if got, ok := flags[flag]; !ok || got != want[0] || args[flag] != "" {
			t.Errorf("--%s of run: there: %t, with the default %q, want %q; in the chart's arguments: %q", flag, ok, got, want[0], args[flag])
		}
	}
	var free []string
	for flag, value := range flags {
		given, ok := args[flag]
		_, downward := notInValues()[flag]
		if ok && !downward && !sameDefault(given, value) {
			t.Errorf("--%s: the chart says %q, run %q", flag, given, value)
		}
		delete(args, flag)
		if _, err := render.Engines()["Helm 4"].Render(t.Context(), render.Request{Chart: chartDir, Values: parse(t, "agent.extraArgs: ['--"+flag+"=x']")}); err == nil {
			free = append(free, flag)
		} else if _, last, _ := strings.Cut(err.Error(), "agent.extraArgs: --"+flag+": "); !strings.HasPrefix(last, "set "+notByDefault()[flag][1]) && !strings.HasPrefix(last, "the chart sets it itself") {
			t.Errorf("--%s: %v", flag, err)
		}
	}
	slices.Sort(free)
	same(t, inExtraArgs(), free, "flags that agent.extraArgs takes")
	same(t, map[string]string{}, args, "arguments that are no flags of run")
}

// flagsOfRun are the flags of `run --help`, with their defaults.
func flagsOfRun(t *testing.T) map[string]string {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), *binary, "run", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("ask the agent for its flags (`make build` builds it): %v\n%s", err, help)
	}
	flags := map[string]string{}
	line := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z][a-z0-9-]*)(?:[^\n]*\(default (.*)\)$)?`)
	for _, match := range line.FindAllStringSubmatch(string(help), -1) {
		if match[1] != "help" {
			flags[match[1]] = strings.Trim(match[2], `"[]`)
		}
	}
	return flags
}

// What they refuse: testdata/refused.yaml.
func TestExtraArgs_takeThePlaceOfADefault(t *testing.T) {
	args := rendering(t, "{inspect.enabled: true, agent.extraArgs: ['--verify-interval=1m', '--inspect-addr=127.0.0.1:25078']}").arguments(t)
	if args["verify-interval"] != "1m" || args["inspect-addr"] != "127.0.0.1:25078" || rendering(t, "inspect.enabled: true").arguments(t)["inspect-addr"] != ":15078" {
		t.Errorf("arguments are %v", args)
	}
}

// Each key of redirection.defaults is the flag of its name, and no other.
func TestRedirectionDefaults(t *testing.T) {
	plain, flags := rendering(t, "{}").arguments(t), flagsOfRun(t)
	keys, _ := at(parse(t, read(t, chartDir+"/values.schema.json")), "properties", "redirection", "properties", "defaults", "properties").(map[string]any)
	for key, value := range map[string]any{
		"interceptionMode": "TPROXY", "includeOutboundIPRanges": []any{"10.0.0.0/8", "fd00::/8"}, "excludeOutboundIPRanges": []any{"10.96.0.0/12"}, "includeInboundPorts": []any{"*"},
		"inboundPorts": "listening", "excludeInboundPorts": []any{15020, 22}, "includeOutboundPorts": []any{1}, "excludeOutboundPorts": []any{65535}, "envoyPort": 25001,
		"envoyInboundPort": 25006, "envoyTunnelPort": 25008, "foreignRules": "warn", "holdSeconds": 0, "ipv6": "direct",
	} {
		args := rendering(t, yamlOf(t, map[string]any{"redirection": map[string]any{"defaults": map[string]any{key: value}}})).arguments(t)
		maps.DeleteFunc(args, func(flag, value string) bool { return plain[flag] == value && flag != "ipv6" })
		flag, _, _ := strings.Cut(strings.Join(slices.Collect(maps.Keys(args)), " "), " ")
		if _, ok := flags[flag]; !ok || strings.ReplaceAll(flag, "-", "") != strings.ToLower(key) || len(args) != 1 || args[flag] != textOf(value) {
			t.Errorf("%s: %v: arguments %v", key, value, args)
		}
		delete(keys, key)
	}
	same(t, map[string]any{}, keys, "keys of the schema that are not tried")
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

// Each value whose description in README.md begins with a flag moves that flag alone, whatever it is set to. Numbers need no quotes.
func TestValuesMapOneToOne(t *testing.T) {
	const plain, rich = "{}", "{proxies: {enabled: true}}"
	without := map[string]map[string]string{plain: rendering(t, plain).arguments(t), rich: rendering(t, rich).arguments(t)}
	parameters := map[string]pairs.Parameter{}
	for _, p := range newCover(t).Parameters() {
		parameters[p.Path] = p
	}
	unmoved := maps.Clone(without[plain])
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| \\w+ \\| `(.*?)` \\| --([a-z0-9-]+): ").FindAllStringSubmatch(read(t, chartDir+"/README.md"), -1) {
		path, flag, on := row[1], row[3], plain
		if strings.HasPrefix(path, "proxies.") {
			on = rich
		}
		for _, alternative := range parameters[path].Alternatives {
			if text, err := json.Marshal(alternative); path == "monitoring.tlsSecret" || err != nil || string(text) == row[2] {
				continue // a Secret's name: TestGolden; or the default
			}
			values, want := parse(t, on), maps.Clone(without[on])
			pairs.Set(values, path, alternative)
			if want[flag] = textOf(alternative); alternative == false {
				want[flag] = "off" // as YAML reads it without quotes; what is false by default is not here
			}
			if flag == "cni" && alternative == "install" {
				want["daemonset"] = name // without the CNI chain there is nothing to ask for
			}
			same(t, want, rendering(t, yamlOf(t, values)).arguments(t), "%s=%v: arguments", path, alternative)
			delete(unmoved, flag)
		}
	}
	want := notInValues()
	want["daemonset"], want["metrics-cert-dir"] = "", ""
	same(t, want, unmoved, "arguments that no value moves")
}

// textOf is a value as flags have it.
func textOf(value any) string {
	return strings.NewReplacer("[", "", "]", "", " ", ",").Replace(fmt.Sprint(value))
}
