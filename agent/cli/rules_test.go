package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

const podYAML = `
apiVersion: v1
kind: Pod
metadata:
  name: cart
  namespace: shop
  annotations: {istio-pod-network-controller/initialize: "true"}
spec:
  containers: [{name: app}, {name: istio-proxy}]
`

// call runs the command line and gives its exit code and what it wrote.
func call(t *testing.T, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(args, strings.NewReader(stdin), &o, &e)
	return code, o.String(), e.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRulesFromManifestToKernelAndBack(t *testing.T) {
	ns := kerneltest.New(t)
	file := write(t, "pod.yaml", podYAML)
	steps := []struct {
		name     string
		args     []string
		wantCode int
		want     string // in standard output, or in standard error where the code is 1
	}{
		{"nothing is there", []string{"show"}, cmdline.ExitError, "holds no rules of ours"},
		{"verify finds that", []string{"verify", "--pod", file}, cmdline.ExitDrift, "- table inet"},
		{"a dry run writes nothing", []string{"apply", "--dry-run", "--pod", file}, 0, "delete table inet"},
		{"still nothing", []string{"verify", "--pod", file}, cmdline.ExitDrift, "- table inet"},
		{"apply", []string{"apply", "--pod", file}, 0, "rules applied"},
		{"apply again", []string{"apply", "--pod", file}, 0, "nothing to do"},
		{"verify", []string{"verify", "--pod", file}, 0, "the rules are there"},
		{"show", []string{"show"}, 0, "  tcp -> proxy's 15001  # included destinations go to the proxy"},
		{"show in nft's language", []string{"show", "-o", "nft"}, 0, "counter packets 0 bytes 0 redirect to :15001"},
		{"show in the backend's language", []string{"show", "-o", "text"}, 0, "counter packets 0 bytes 0 redirect to :15001"},
		{"verify for other ports", []string{"verify", "--pod", file, "--envoy-port", "16001"}, cmdline.ExitDrift, "redirect to :16001"},
		{"show what is asked for", []string{"show", "--pod", file, "--envoy-port", "16001"}, 0, "tcp -> proxy's 16001"},
		{"the same in nft's language", []string{"show", "--pod", file, "--envoy-port", "16001", "-o", "nft"}, 0, "counter redirect to :16001"},
		{"remove", []string{"remove"}, 0, "rules removed"},
		{"remove again", []string{"remove"}, 0, "nothing to do"},
	}
	for _, s := range steps {
		code, out, errOut := call(t, "", append(append([]string{"rules"}, s.args...), "--netns", ns.Path())...)
		if s.wantCode == cmdline.ExitError {
			out = errOut
		}
		if code != s.wantCode || !strings.Contains(out, s.want) {
			t.Fatalf("%s: code %d, said %q %q; want code %d and %q", s.name, code, out, errOut, s.wantCode, s.want)
		}
	}
}

func TestRulesAsJSONFromStandardInput(t *testing.T) {
	code, out, errOut := call(t, podYAML, "rules", "show", "--pod", "-", "-o", "json")
	if code != 0 {
		t.Fatal(errOut)
	}
	var v iptables.View
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	hooks := 0
	for _, c := range v.Chains {
		asked := strings.Contains(out, "jump "+c.Name+" ") || strings.Contains(out, "goto "+c.Name+" ")
		if asked != (c.Hook == "") || asked != (c.Type == "") || asked != (c.Priority == 0) {
			t.Errorf("chain %s: type %q, hook %q, priority %d", c.Name, c.Type, c.Hook, c.Priority)
		}
		if c.Hook != "" {
			hooks++
		}
	}
	if v.Table != iptables.TableName || hooks != 4 || v.Chains[0].Priority != -105 || len(v.Sets) != 2 {
		t.Errorf("%+v", v)
	}
}

func TestRulesRefuseWrongFlags(t *testing.T) {
	quiet := strings.Replace(podYAML, `"true"`, `"false"`, 1)
	wrong := strings.Replace(podYAML, `initialize: "true"`, `initialize: "yes"`, 1)
	unasked := strings.Replace(podYAML, "annotations:", "labels:", 1)
	nsFile := write(t, "ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank}\n")
	cases := map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"a pod that opts out":     {quiet, []string{"show", "--pod", "-"}, "opts out"},
		"a pod that did not ask":  {unasked, []string{"show", "--pod", "-"}, "neither the pod nor its namespace"},
		"a wrong annotation":      {wrong, []string{"show", "--pod", "-"}, `value "yes"`},
		"another kind":            {strings.Replace(podYAML, "kind: Pod", "kind: Job", 1), []string{"show", "--pod", "-"}, `"Job"`},
		"no YAML":                 {"\t{", []string{"show", "--pod", "-"}, "read -"},
		"nothing":                 {"", []string{"show", "--pod", "-"}, `want one Pod`},
		"two pods":                {podYAML + "---" + podYAML, []string{"show", "--pod", "-"}, "several documents"},
		"a missing file":          {"", []string{"show", "--pod", "/nonexistent.yaml"}, "/nonexistent.yaml"},
		"another namespace's pod": {podYAML, []string{"show", "--pod", "-", "--namespace", nsFile}, `namespace "bank"`},
		"no pod":                  {"", []string{"apply", "--netns", "/x"}, "--pod: required"},
		"no netns":                {podYAML, []string{"apply", "--pod", "-"}, "--netns: required"},
		"neither":                 {"", []string{"verify"}, "--netns: required\n--pod: required"},
		"a name for a path":       {podYAML, []string{"apply", "--pod", "-", "--netns", "demo"}, "such as /run/netns/NAME"},
		"a missing netns":         {podYAML, []string{"apply", "--pod", "-", "--netns", "/nonexistent"}, "/nonexistent"},
		"an unknown backend":      {podYAML, []string{"apply", "--pod", "-", "--netns", "/x", "--backend", "ebpf"}, `"ebpf"`},
		"an unknown output":       {podYAML, []string{"show", "--pod", "-", "-o", "xml"}, `"xml"`},
		"a wrong default":         {podYAML, []string{"show", "--pod", "-", "--envoy-port", "http"}, "--envoy-port"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := call(t, c.stdin, append([]string{"rules"}, c.args...)...)
			if code != cmdline.ExitError || !strings.Contains(errOut, c.want) {
				t.Errorf("code %d, said %q %q; want %q", code, out, errOut, c.want)
			}
		})
	}
}

// No backend is chosen on a machine that cannot make a namespace to try one in, so the refusal needs root.
func TestRulesRefuseTheHostsNamespace(t *testing.T) {
	kerneltest.New(t)
	code, out, errOut := call(t, podYAML, "rules", "apply", "--pod", "-", "--netns", "/proc/self/ns/net")
	if code != cmdline.ExitError || !strings.Contains(errOut, "host's own") {
		t.Errorf("code %d, said %q %q", code, out, errOut)
	}
}

func TestTheNamespacesAnnotationCounts(t *testing.T) {
	ns := write(t, "ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {istio-pod-network-controller/initialize: 'true'}}\n")
	unasked := strings.Replace(podYAML, "annotations:", "labels:", 1)
	if code, _, errOut := call(t, unasked, "rules", "show", "--pod", "-", "--namespace", ns); code != 0 {
		t.Error(errOut)
	}
}

func TestRulesByTheOtherBackend(t *testing.T) {
	ns := kerneltest.New(t)
	file := write(t, "pod.yaml", podYAML)
	steps := []struct {
		name     string
		args     []string
		wantCode int
		want     string
	}{
		{"what would be loaded", []string{"apply", "--dry-run", "--pod", file, "--backend", "iptables"}, 0, "# ip6tables-restore --noflush"},
		{"what is asked for", []string{"show", "--pod", file, "-o", "iptables"}, 0, "-A PODNET_OUTBOUND"},
		{"in the other language", []string{"show", "--pod", file, "--backend", "iptables", "-o", "nft"}, 0, "table inet"},
		{"nothing is there", []string{"verify", "--pod", file, "--backend", "iptables"}, cmdline.ExitDrift, "- :PODNET_OUTBOUND"},
		{"apply", []string{"apply", "--pod", file, "--backend", "iptables"}, 0, "rules applied"},
		{"apply again", []string{"apply", "--pod", file, "--backend", "iptables"}, 0, "nothing to do"},
		{"show finds them", []string{"show"}, 0, "PODNET_OUTBOUND: connections that the pod opens"},
		{"in their language", []string{"show", "-o", "text"}, 0, "[0:0] -A PODNET_OUTBOUND"},
		{"as JSON", []string{"show", "-o", "json"}, 0, `"name": "PODNET_OUTBOUND"`},
		{"not as what they are not", []string{"show", "-o", "nft"}, cmdline.ExitError, "want words, text, iptables or json"},
		{"they are drift for nftables", []string{"verify", "--pod", file}, cmdline.ExitDrift, "+ rules of the iptables backend"},
		{"nftables takes over", []string{"apply", "--pod", file, "--backend", "nftables"}, 0, "rules applied"},
		{"show finds that", []string{"show"}, 0, "outbound: connections that the pod opens"},
		{"iptables takes over", []string{"apply", "--pod", file, "--backend", "iptables"}, 0, "rules applied"},
		{"verify", []string{"verify", "--pod", file, "--backend", "iptables"}, 0, "the rules are there"},
		{"remove needs no name", []string{"remove"}, 0, "rules removed"},
		{"remove again", []string{"remove", "--backend", "iptables"}, 0, "nothing to do"},
	}
	for _, s := range steps {
		code, out, errOut := call(t, "", append(append([]string{"rules"}, s.args...), "--netns", ns.Path())...)
		if s.wantCode == cmdline.ExitError {
			out = errOut
		}
		if code != s.wantCode || !strings.Contains(out, s.want) {
			t.Fatalf("%s: code %d, said %q %q; want code %d and %q", s.name, code, out, errOut, s.wantCode, s.want)
		}
	}
}

// Rules that are all there decide nothing if foreign chains come first.
func TestRules_foreignChainsComeFirst_areTold(t *testing.T) {
	file := write(t, "pod.yaml", podYAML)
	const told = "foreign, before our rules: nftables, table inet x, chain c (output, priority -310) switches connection tracking off"
	for _, backend := range []string{"nftables", "iptables"} {
		ns := kerneltest.New(t)
		run := func(verb string, more ...string) (int, string) {
			code, out, errOut := call(t, "", append([]string{"rules", verb, "--netns", ns.Path(), "--pod", file, "--backend", backend}, more...)...)
			return code, out + errOut
		}
		if code, out := run("apply"); code != 0 || strings.Contains(out, "foreign") {
			t.Fatalf("%s: code %d, said %q", backend, code, out)
		}
		kerneltest.Shell(t, ns, "nft 'table inet x {\nchain c { type filter hook output priority -310; tcp dport 80 notrack; }\n}'", "")
		if code, out := run("apply"); code != 0 || !strings.Contains(out, told) {
			t.Errorf("%s, apply: code %d, said %q", backend, code, out)
		}
		if code, out := run("verify"); code != cmdline.ExitDrift || !strings.Contains(out, "the rules are there") || !strings.Contains(out, told) {
			t.Errorf("%s, verify: code %d, said %q", backend, code, out)
		}
		if code, out := run("verify", "--foreign-rules=warn"); code != 0 || !strings.Contains(out, told) {
			t.Errorf("%s, verify where they are accepted: code %d, said %q", backend, code, out)
		}
		kerneltest.Shell(t, ns, "nft delete table inet x", "")
		if code, out := run("verify"); code != 0 || strings.Contains(out, "foreign") {
			t.Errorf("%s, without them: code %d, said %q", backend, code, out)
		}
	}
}
