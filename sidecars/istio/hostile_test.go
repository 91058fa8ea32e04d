package istio

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the owner of a pod may write costs the agent no more memory than it has bytes, and changes only what the annotation may change.
func TestProxy_hostileOwner_isRefusedWithTheReason(t *testing.T) {
	growing := func(first string) string { // each variable names its predecessor ten times
		out := "proxyMetadata:\n  A00: " + first + "\n"
		for i := range 30 {
			out += fmt.Sprintf("  A%02d: %q\n", i+1, strings.Repeat(fmt.Sprintf("$(A%02d)", i), 10))
		}
		return out
	}
	many := "proxyMetadata:\n"
	for i := range 1000 {
		many += fmt.Sprintf("  V%d: \"\"\n", i)
	}
	aliases := "a: &a " + strings.Repeat("x", 1000) + "\nb: [" + strings.Repeat("*a,", 1000) + "*a]\n"
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"variables that grow":             {annotated(keyConfig, growing("x")), "proxyMetadata is too long"},
		"a configuration that grows":      {annotated(keyConfig, "proxyMetadata: {A: "+strings.Repeat("y", 1<<15)+"}\nproxyHeaders: {a: '"+strings.Repeat("$(A)", 5)+"'}"), "PROXY_CONFIG is too long"},
		"more variables than there are":   {annotated(keyConfig, many), "proxyMetadata has 1000 variables"},
		"aliases":                         {annotated(keyConfig, aliases), "aliases (*a)"},
		"a merge of aliases":              {annotated(keyConfig, "base: &b-1 {statusPort: 1}\nproxyHeaders: {<<: *b-1}"), "aliases (*b-1)"},
		"a variable of the profile again": {annotated(keyConfig, `proxyMetadata: {"TRUST_DOMAIN=evil": x}`), `"TRUST_DOMAIN=evil" is no name of a variable`},
		"a variable without a name":       {annotated(keyConfig, `proxyMetadata: {"": x}`), `"" is no name of a variable`},
		"NUL in a variable":               {annotated(keyConfig, `proxyMetadata: {A: "x\0TRUST_DOMAIN=evil"}`), "variable A has a NUL character"},
		"ports that no program can take": {
			func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = make([]corev1.ContainerPort, 10000) }, "variable ISTIO_META_POD_PORTS is too long",
		},
		"another program": {annotated(keyConfig, "binaryPath: /bin/sh"), "annotation proxy.istio.io/config: binaryPath"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPod(c.change)
			p.Env = []Variable{{"TRUST_DOMAIN", "the profile's"}}
			_, err := parsed(t, aMesh, someMap).Proxy(p)
			wantError(t, err, c.want)
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// The text that a variable stands for stays text: no field of PROXY_CONFIG begins in it.
func TestProxy_variableLikeJSON_staysText(t *testing.T) {
	const hostile = `x","binaryPath":"/bin/sh","y":"`
	out, err := parsed(t, aMesh, someMap).Proxy(aPod(annotated(keyConfig,
		`{proxyMetadata: {A: 'x","binaryPath":"/bin/sh","y":"', B: binaryPath}, serviceCluster: $(A), proxyHeaders: {list: [{a: $(A)}], $(B): /bin/sh}, $(B): /bin/sh}`)))
	if err != nil {
		t.Fatal(err)
	}
	env, config := environment(out.Env), map[string]any{}
	if err := json.Unmarshal([]byte(env.get("PROXY_CONFIG")), &config); err != nil {
		t.Fatal(err)
	}
	inner := cloned(cloned(config["proxyHeaders"])["list"].([]any)[0])
	if program, isSet := config[binaryPath]; isSet || config["serviceCluster"] != hostile || inner["a"] != hostile {
		t.Errorf("program %v (%v) in %v", program, isSet, config)
	}
}

func TestProxy_signsOfYAMLInText_areNoAliases(t *testing.T) {
	for _, text := range []string{`proxyStatsMatcher: {inclusionRegexps: ["*a", ".*"]}`, `proxyHeaders: {a: "x &a"}`, `proxyHeaders: {a: "&a", b: "*b"}`} {
		if _, err := parsed(t, aMesh, someMap).Proxy(aPod(annotated(keyConfig, text))); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
