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

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/hack/tools/helm/pairs"
)

// notInValues are the flags that the pod itself answers, through the downward API.
func notInValues() map[string]string {
	return map[string]string{
		"node-name": "$(NODE_NAME)", "agent-namespace": "$(POD_NAMESPACE)", "pod-name": "$(POD_NAME)",
		"keep-dir": "/run/istio-pod-network-controller/kept", "kubelet-socket": "/var/lib/kubelet/pods-api/pods-api.sock",
	}
}

// notByDefault are the flags that the chart leaves out, with their defaults, unless sidecars are on. It never sets the
// directories, which it mounts.
func notByDefault() map[string]string {
	return map[string]string{
		"sidecars": "", "sidecars-required": "", "sidecar-root": sidecarRoot,
		"shared-root": sharedRoot, "sidecar-secrets": sidecarSecrets, "sidecar-profiles": sidecarProfiles, "sidecar-token-audiences": "",
	}
}

// The flags of `run` and the chart's arguments are the same set, and an untouched values.yaml says what an untouched flag says.
func TestArgumentsAreTheFlagsOfRun(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), *binary, "run", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("ask the agent for its flags (`make build` builds it): %v\n%s", err, help)
	}
	args, flags := rendering(t, "{}").arguments(t), map[string]string{}
	line := regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z][a-z0-9-]*)(?:[^\n]*\(default (.*)\)$)?`)
	for _, match := range line.FindAllStringSubmatch(string(help), -1) {
		if match[1] != "help" {
			flags[match[1]] = strings.Trim(match[2], `"[]`)
		}
	}
	for name, value := range notInValues() {
		if _, ok := flags[name]; !ok || args[name] != value {
			t.Errorf("--%s=%s, want %s; run has the flag: %t", name, args[name], value, ok)
		}
		delete(args, name)
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

// Each value whose description in README.md begins with a flag moves that flag alone, whatever it is set to. Numbers need no quotes.
func TestValuesMapOneToOne(t *testing.T) {
	const plain, rich = "{}", "{inspect: {enabled: true}, sidecars: {enabled: true}, admission: {restrictAgent: true}, updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}}"
	without := map[string]map[string]string{plain: rendering(t, plain).arguments(t), rich: rendering(t, rich).arguments(t)}
	parameters := map[string]pairs.Parameter{}
	for _, p := range newCover(t).Parameters() {
		parameters[p.Path] = p
	}
	unmoved := maps.Clone(without[rich])
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| \\w+ \\| `(.*?)` \\| --([a-z0-9-]+): ").FindAllStringSubmatch(read(t, chartDir+"/README.md"), -1) {
		path, flag, on := row[1], row[3], plain
		if slices.Contains([]string{"inspectAddr", "healthAddr"}, path) || strings.HasPrefix(path, "sidecars.") {
			on = rich
		}
		for _, alternative := range parameters[path].Alternatives {
			if text, err := json.Marshal(alternative); path == "metrics.tlsSecret" || err != nil || string(text) == row[2] {
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
