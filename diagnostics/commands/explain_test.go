package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
)

// templateOf returns a manifest of a kind whose pods ask.
func templateOf(apiVersion, kind, path string) string {
	template := `{metadata: {annotations: {istio-pod-network-controller/initialize: "true"}}, spec: {containers: [{name: app}, {name: istio-proxy}]}}`
	for _, field := range reversed(strings.Split(path, ".")) {
		template = "{" + field + ": " + template + "}"
	}
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: x, namespace: shop}\nspec: " + template + "\n"
}

func reversed(words []string) (out []string) {
	for _, w := range words {
		out = append([]string{w}, out...)
	}
	return out
}

// answers calls explain with manifests on standard input.
func answers(t *testing.T, manifests string, args ...string) (code int, all []explained, errOut string) {
	t.Helper()
	code, out, errOut := call(t, manifests, append([]string{"explain", "-f", "-", "-o", "json"}, args...)...)
	var parsed explanations
	if err := json.Unmarshal([]byte(out), &parsed); err != nil && out != "" {
		t.Fatalf("%v in %q", err, out)
	}
	return code, parsed.Objects, errOut
}

func TestExplainReadsEveryKindWithPods(t *testing.T) {
	for kind, at := range map[string][2]string{
		"ReplicationController": {"v1", "template"}, "Deployment": {"apps/v1", "template"}, "ReplicaSet": {"apps/v1", "template"},
		"StatefulSet": {"apps/v1", "template"}, "DaemonSet": {"apps/v1", "template"}, "Job": {"batch/v1", "template"},
		"CronJob": {"batch/v1", "jobTemplate.spec.template"},
	} {
		t.Run(kind, func(t *testing.T) {
			code, all, errOut := answers(t, templateOf(at[0], kind, at[1]))
			if code != 0 || len(all) != 1 {
				t.Fatalf("code %d, %d answers, %s", code, len(all), errOut)
			}
			got := all[0]
			if !got.Redirected || got.Kind != kind || got.Namespace != "shop" || got.Name != "x" || len(got.Warnings) > 0 || len(got.Rules) == 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	for kind := range kinds() {
		if ofKind("example.com/v1", kind) != nil {
			t.Errorf("a %s of somebody else is taken for Kubernetes' own", kind)
		}
	}
}

func TestExplainAnswersInTurn(t *testing.T) {
	quiet := strings.Replace(podYAML, `"true"`, `"false"`, 1)
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: cart}\n"
	wrong := strings.Replace(podYAML, `initialize: "true"`, `initialize: "yes"`, 1)
	code, out, errOut := call(t, "---\n"+podYAML+"---\n"+service+"---\n---\n"+quiet+"---"+wrong, "explain", "-f", "-")
	if code != cmdline.ExitError || !strings.Contains(errOut, "1 of 3 objects are invalid") {
		t.Errorf("code %d, %q", code, errOut)
	}
	rest := out
	for _, want := range []string{
		"Pod shop/cart: redirected\n  asked for by: annotation of the pod: istio-pod-network-controller/initialize\n",
		"  inbound: tcp to any port but 15008, 15020, 15021, 15090 -> proxy's 15006\n",
		"envoy-port                  15001              default\n",
		"outbound: connections that the pod opens\n", "  tcp -> proxy's 15001  # included destinations go to the proxy\n",
		"\n\nPod shop/cart: not redirected\n  the pod opts out by its annotation",
		"\n\nPod shop/cart: invalid\n  istio-pod-network-controller/initialize: value \"yes\": want \"true\" or \"false\"\n",
	} {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("no %q in its turn in\n%s", want, out)
		}
		rest = after
	}
}

func TestExplainTakesTheNamespace(t *testing.T) {
	ns := write(t, "ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {istio-pod-network-controller/initialize: 'true'}}\n")
	silent := strings.NewReplacer("annotations:", "labels:", "  namespace: shop\n", "", "istio-pod-network-controller/initialize", "app").Replace(podYAML)
	code, all, errOut := answers(t, silent, "-f", ns)
	if code != 0 || len(all) != 1 || !all[0].Redirected || all[0].Namespace != "shop" || all[0].AskedBy != "annotation of the namespace: istio-pod-network-controller/initialize" {
		t.Errorf("code %d, %+v, %s", code, all, errOut)
	}
	if code, all, _ := answers(t, silent, "-n", "bank"); code != 0 || all[0].Namespace != "bank" {
		t.Errorf("code %d, %+v", code, all)
	}
	if code, all, _ := answers(t, silent); code != 0 || all[0].Redirected || all[0].Namespace != "default" || !strings.Contains(all[0].Reason, "neither the pod nor its namespace") {
		t.Errorf("code %d, %+v", code, all)
	}
	if code, all, _ := answers(t, silent, "-f", ns, "--exclude-namespaces", "shop"); code != 0 || all[0].Redirected {
		t.Errorf("code %d, %+v", code, all)
	}
	defaults := write(t, "defaults.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {istio-pod-network-controller/initialize: 'true', pod-network-controller.istio.io/ipv6: direct}}\n")
	want := intent.Setting{Name: "ipv6", Value: "direct", Source: "annotation of the namespace: pod-network-controller.istio.io/ipv6"}
	if code, all, _ := answers(t, silent, "-f", defaults); code != 0 || !slices.Contains(all[0].Settings, want) {
		t.Errorf("code %d, %+v", code, all)
	}
	wrong := write(t, "wrong.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {istio-pod-network-controller/initialize: 'true', pod-network-controller.istio.io/ipv6: 'off'}}\n")
	if code, all, _ := answers(t, silent, "-f", wrong); code != 1 || !strings.HasPrefix(all[0].Error, "annotation pod-network-controller.istio.io/ipv6 of namespace shop: ") {
		t.Errorf("code %d, %+v", code, all)
	}
}

func TestExplainTakesFlagsOfRun(t *testing.T) {
	code, all, errOut := answers(t, podYAML, "--envoy-port", "16001", "--interception-mode=TPROXY")
	if code != 0 {
		t.Fatal(errOut)
	}
	var got []string
	for _, s := range all[0].Settings {
		if s.Source != "default" {
			got = append(got, s.Name+"="+s.Value+" from "+s.Source)
		}
	}
	want := []string{"interception-mode=TPROXY from flag of the agent: --interception-mode", "envoy-port=16001 from flag of the agent: --envoy-port"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if code, all, _ := answers(t, podYAML, "--agent-namespace", "shop"); code != 0 || all[0].Redirected {
		t.Errorf("code %d, %+v", code, all)
	}
}

func TestExplainWarns(t *testing.T) {
	annotated := func(pairs string) string {
		return strings.Replace(podYAML, `annotations: {`, `annotations: {`+pairs+`, `, 1)
	}
	cases := map[string]struct{ in, want string }{
		"a mistyped annotation":     {annotated(`traffic.sidecar.istio.io/excludeInboundPort: "80"`), "did you mean traffic.sidecar.istio.io/excludeInboundPorts?"},
		"an annotation of the set":  {strings.Replace(templateOf("apps/v1", "Deployment", "template"), "namespace: shop}", `namespace: shop, annotations: {sidecar.istio.io/interceptionMode: TPROXY}}`, 1), "is on the Deployment itself"},
		"a field that nobody knows": {strings.Replace(podYAML, "spec:", "spec:\n  hostNetwrk: true", 1), `unknown field "hostNetwrk"`},
		"a key that is there twice": {strings.Replace(podYAML, "  annotations:", "  annotations: {sidecar.istio.io/interceptionMode: NONE}\n  annotations:", 1), `key "annotations" already set`},
		"no containers":             {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "it has no containers"},
		"a profile":                 {annotated(`pod-network-controller.istio.io/sidecar: envoy`), `chooses ProxyProfile "envoy"`},
		"a runtime class":           {strings.Replace(podYAML, "spec:", "spec:\n  runtimeClassName: kata-qemu", 1), `runtimeClassName is "kata-qemu"`},
		"resolvers on the node":     {annotated(`pod-network-controller.istio.io/dns-capture: resolv.conf`), "the pod's resolvers are known on the node only"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, all, errOut := answers(t, c.in)
			if code != 0 || len(all) != 1 || !strings.Contains(strings.Join(slices.Concat(all[0].Warnings, all[0].Notes), "\n"), c.want) {
				t.Errorf("code %d, %+v, %s", code, all, errOut)
			}
		})
	}
}

func TestExplainWarnsOfTheNamespace(t *testing.T) {
	ns := write(t, "ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {istio-pod-network-controller/initialize: 'yes'}, labels: {pod-network-controller.istio.io/ipv6: direct}}\n")
	_, all, errOut := answers(t, podYAML, "-f", ns)
	if errOut != "" || len(all) != 1 {
		t.Fatal(errOut)
	}
	want := []string{
		`namespace shop: annotation istio-pod-network-controller/initialize, value "yes", asks for nothing: want "true"`,
		"namespace shop: pod-network-controller.istio.io/ipv6 is a label: make it an annotation",
	}
	if d := cmp.Diff(want, all[0].Warnings); d != "" {
		t.Error(d)
	}
}

func TestExplainOfWhatIstioHasNotInjected(t *testing.T) {
	bare := strings.Replace(podYAML, ", {name: istio-proxy}", "", 1)
	for _, args := range [][]string{{"--select=injected"}} {
		code, all, errOut := answers(t, bare, args...)
		if code != 0 || all[0].Redirected || !strings.Contains(strings.Join(all[0].Notes, "\n"), "istioctl kube-inject") || len(all[0].Warnings) > 0 {
			t.Errorf("%q: code %d, %+v, %s", args, code, all, errOut)
		}
	}
}

func TestExplainSaysWhatIsInvalid(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"a bool without quotes": {
			strings.Replace(podYAML, `"true"`, "true", 1),
			"metadata.annotations[istio-pod-network-controller/initialize]: value true is a bool: want a string, so quote it",
		},
		"a number in a template": {
			strings.Replace(templateOf("apps/v1", "Deployment", "template"), `"true"`, "1", 1),
			"spec.template.metadata.annotations[istio-pod-network-controller/initialize]: value 1 is a number: want a string, so quote it",
		},
		"a list for an object": {strings.Replace(podYAML, "spec:", "spec: []\nstatus:", 1), "cannot unmarshal array into Go struct field Pod.spec"},
		"settings that do not fit together": {
			strings.Replace(podYAML, "annotations: {", `annotations: {pod-network-controller.istio.io/envoy-port: "15006", `, 1), "give it two",
		},
		"all wrong values at once": {
			strings.Replace(podYAML, "annotations: {", `annotations: {sidecar.istio.io/interceptionMode: X, traffic.sidecar.istio.io/includeInboundPorts: http, `, 1),
			"sidecar.istio.io/interceptionMode: value \"X\": want REDIRECT, TPROXY or NONE\ntraffic.sidecar.istio.io/includeInboundPorts: value \"http\"",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, all, errOut := answers(t, c.in)
			if code != cmdline.ExitError || len(all) != 1 || !strings.Contains(all[0].Error, c.want) || !strings.Contains(errOut, "1 of 1 objects are invalid") {
				t.Errorf("code %d, %+v, %s", code, all, errOut)
			}
		})
	}
}

func TestExplainRefuses(t *testing.T) {
	cases := map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no file":               {"", nil, "--filename: required"},
		"a missing file":        {"", []string{"-f", "/nonexistent.yaml"}, "/nonexistent.yaml"},
		"nothing":               {"", []string{"-f", "-"}, "none of the manifests has pods: want one of CronJob, DaemonSet"},
		"other kinds":           {"apiVersion: v1\nkind: Service\n", []string{"-f", "-"}, "has pods (found: Service)"},
		"another project's Job": {"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n", []string{"-f", "-"}, "has pods (found: Job)"},
		"no YAML":               {"\t{", []string{"-f", "-"}, "read -: document 1"},
		"a list":                {"- a\n", []string{"-f", "-"}, "it is no object of Kubernetes"},
		"no kind":               {"a: b\n", []string{"-f", "-"}, "it has no kind"},
		"the second document":   {podYAML + "---\na: b\n", []string{"-f", "-"}, "document 2, from line 11: it has no kind"},
		"an unknown output":     {podYAML, []string{"-f", "-", "-o", "xml"}, `"xml": want words, json or yaml`},
		"a wrong flag":          {podYAML, []string{"-f", "-", "--envoy-port", "x"}, "--envoy-port"},
		"a wrong namespace":     {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {a: true}}\n", []string{"-f", "-"}, `namespace "shop": metadata.annotations[a]: value true is a bool`},
		"a deep document":       {strings.Repeat("[", 20000), []string{"-f", "-"}, "document 1"},
		"too much":              {"a: " + strings.Repeat("x", maxManifests), []string{"-f", "-"}, "larger than"},
		"an unknown argument":   {podYAML, []string{"-f", "-", "pod.yaml"}, `"pod.yaml"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := call(t, c.stdin, append([]string{"explain"}, c.args...)...)
			if code != cmdline.ExitUnasked || !strings.Contains(errOut, c.want) || out != "" {
				t.Errorf("code %d, said %.300q %.300q; want %q", code, out, errOut, c.want)
			}
		})
	}
}

func TestExplainInBothLanguagesOfMachines(t *testing.T) {
	_, inJSON, _ := call(t, podYAML, "explain", "-f", "-", "-o", "json")
	code, inYAML, errOut := call(t, podYAML, "explain", "-f", "-", "-o", "yaml")
	if code != 0 {
		t.Fatal(errOut)
	}
	var a, b any
	if err := json.Unmarshal([]byte(inJSON), &a); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(inYAML), &b); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Error(d)
	}
}

func TestExplainReadsLists(t *testing.T) {
	item, err := yaml.YAMLToJSON([]byte(podYAML))
	if err != nil {
		t.Fatal(err)
	}
	code, all, errOut := answers(t, `{"apiVersion":"v1","kind":"List","items":[`+string(item)+`,`+string(item)+`]}`)
	if code != 0 || len(all) != 2 || !all[1].Redirected {
		t.Errorf("code %d, %+v, %s", code, all, errOut)
	}
}

func TestExplainObeysNoNameOfAManifest(t *testing.T) {
	code, out, errOut := call(t, strings.Replace(podYAML, "name: cart", `name: "cart\e[31m"`, 1), "explain", "-f", "-")
	if code != 0 || !strings.HasPrefix(out, "Pod shop/cart?[31m: redirected\n") {
		t.Errorf("code %d, %.100q, %s", code, out, errOut)
	}
}

// The page's example is what the command prints.
func TestThePageOfExplainIsTrue(t *testing.T) {
	page := text(t, root+"/docs/explain.md")
	_, after, _ := strings.Cut(page, "```\n")
	want, _, ok := strings.Cut(after, "```\n")
	samples := root + "/config/samples/"
	code, out, errOut := call(t, "", "explain", "-f", samples+"pod.yaml", "-f", samples+"namespace.yaml")
	if code != 0 || !ok || !strings.HasPrefix(out, want) {
		t.Errorf("code %d, %s: %s", code, errOut, cmp.Diff(want, out[:min(len(out), len(want))]))
	}
	for _, printed := range []string{
		"value true is a bool: want a string, so quote it\n", "error: 1 of 1 objects are invalid\n",
	} {
		code, out, errOut := call(t, strings.Replace(podYAML, `"true"`, "true", 1), "explain", "-f", "-")
		if code != cmdline.ExitError || !strings.Contains(out+errOut, printed) || !strings.Contains(page, printed) {
			t.Errorf("code %d: %q is not in %q, or not in the page", code, printed, out+errOut)
		}
	}
	for _, field := range every(`json:"([a-zA-Z]+)`, text(t, "explain.go")) {
		if !strings.Contains(page, "`"+field+"`") && field != "chain" && field != "words" && field != "why" {
			t.Errorf("the page does not have field %s", field)
		}
	}
}

// What people copy from the repository is explained without a warning.
func TestExplainOfTheSamples(t *testing.T) {
	const dir = root + "/config/samples"
	files, err := filepath.Glob(dir + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code, out, errOut := call(t, string(raw), "explain", "-f", "-")
		if strings.Contains(errOut, "none of the manifests has pods") || strings.HasSuffix(file, "values.yaml") || strings.Contains(file, "values-") {
			continue
		}
		if code != 0 || strings.Contains(out, "is not known") || strings.Contains(out, "nobody knows") {
			t.Errorf("%s: code %d\n%s%s", file, code, out, errOut)
		}
	}
}
