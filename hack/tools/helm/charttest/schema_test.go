package charttest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/lint/support"
)

func TestSchemaRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"an unknown runtime":                                   {"containerRuntime: rkt", "value must be one of 'auto', 'containerd', 'crio', 'docker'"},
		"a backend that is not there":                          {"backend: ebpf", "value must be one of 'auto', 'nftables', 'iptables'"},
		"an unknown selection":                                 {"select: all", "value must be one of 'annotation', 'injected', 'either'"},
		"a mode that is not there yet":                         {"interceptionMode: SIDEWAYS", "at '/interceptionMode': value must be one of 'REDIRECT', 'TPROXY', 'NONE'"},
		"an unknown way with the CNI chain":                    {"cni: remove", "value must be one of 'off', 'install', 'uninstall'"},
		"a release upgraded with the values of an older chart": {"ipv6: null", "missing property 'ipv6'"},
		"the same further down":                                {"admission: {restrictAgent: null}", "at '/admission': missing property 'restrictAgent'"},
		"ranges that are reset to nothing":                     {"includeOutboundIPRanges: null", "missing property 'includeOutboundIPRanges'"},
		"NRI switched on":                                      {"nri: on", "value must be one of 'auto', 'required', 'off'"},
		"an unknown log level":                                 {"logLevel: warn", "value must be one of 'debug', 'info', 'error'"},
		"an unknown key":                                       {"privileged: true", "additional properties 'privileged' not allowed"},
		"an unknown key further down":                          {"image: {repo: x}", "additional properties 'repo' not allowed"},
		"a port that is too large":                             {"envoyPort: 65536", "at '/envoyPort': maximum: got 65,536, want 65,535"},
		"port 0 to listen on":                                  {"envoyInboundPort: 0", "at '/envoyInboundPort': minimum: got 0, want 1"},
		"a negative port in a list":                            {"excludeInboundPorts: [-1]", "at '/excludeInboundPorts/0': minimum: got -1, want 0"},
		"a range in a port list":                               {"excludeOutboundPorts: [8000-9000]", "at '/excludeOutboundPorts/0': got string, want integer"},
		"all ports where that has no meaning":                  {`includeOutboundPorts: ["*"]`, "at '/includeOutboundPorts/0': got string, want integer"},
		"all ports and one more":                               {`includeInboundPorts: ["*", 80]`, "at '/includeInboundPorts': 'anyOf' failed"},
		"ports as one string":                                  {`excludeInboundPorts: "80,443"`, "at '/excludeInboundPorts': got string, want array"},
		"an address without a prefix length":                   {"excludeOutboundIPRanges: [10.1.2.3]", "at '/excludeOutboundIPRanges/0': '10.1.2.3' does not match pattern"},
		"all addresses where it has no sense":                  {`excludeOutboundIPRanges: ["*"]`, "at '/excludeOutboundIPRanges/0': '*' does not match pattern"},
		"a TCP runtime endpoint":                               {"runtimeEndpoint: tcp://10.0.0.1:2375", "at '/runtimeEndpoint': 'tcp://10.0.0.1:2375' does not match pattern"},
		"an address without a port":                            {"metricsAddr: localhost", "at '/metricsAddr': 'localhost' does not match pattern"},
		"a port above all":                                     {"metricsAddr: ':65536'", "at '/metricsAddr': ':65536' does not match pattern"},
		"inspect that is on and nowhere":                       {"{inspect: {enabled: true}, inspectAddr: 0}", "at '/inspectAddr'"},
		"an interval below a second":                           {"verifyInterval: 500ms", "at '/verifyInterval': '500ms' does not match pattern"},
		"no address for the probes":                            {`healthAddr: "0"`, "at '/healthAddr': '0' does not match pattern"},
		"a socket outside of a directory":                      {"healthAddr: unix:///health.sock", "at '/healthAddr': 'unix:///health.sock' does not match pattern"},
		"a socket in a directory above":                        {"healthAddr: unix:///run/../s", "at '/healthAddr': 'unix:///run/../s' does not match pattern"},
		"an interval without a unit":                           {`verifyInterval: "60"`, "at '/verifyInterval': '60' does not match pattern"},
		"the name of verifyInterval in older charts":           {"sweepInterval: 1m", "additional properties 'sweepInterval' not allowed"},
		"a policy that is neither on nor off":                  {"admission: {enabled: maybe}", "at '/admission/enabled': value must be one of 'auto', true, false"},
		"an opting out that is left to the cluster":            {"admission: {allowOptOut: auto}", "at '/admission/allowOptOut': got string, want boolean"},
		"an unknown failure policy":                            {"admission: {failurePolicy: Warn}", "at '/admission/failurePolicy': value must be one of 'Fail', 'Ignore'"},
		"a wait without a unit":                                {`admission: {waitTimeout: "60"}`, "at '/admission/waitTimeout': '60' does not match pattern"},
		"an unknown part of the admission":                     {"admission: {gate: true}", "additional properties 'gate' not allowed"},
		"sidecars that are left to the cluster":                {"sidecars: {enabled: auto}", "at '/sidecars/enabled': got string, want boolean"},
		"an unknown part of the sidecars":                      {"sidecars: {root: /run}", "additional properties 'root' not allowed"},
		"a Secret that cannot be one":                          {"sidecars: {secrets: [a/b]}", "at '/sidecars/secrets/0': 'a/b' does not match pattern"},
		"an audience with a comma":                             {"sidecars: {tokenAudiences: ['a,b']}", "at '/sidecars/tokenAudiences/0': 'a,b' does not match pattern"},
		"an audience that would end a text":                    {"sidecars: {tokenAudiences: ['a\"b']}", "at '/sidecars/tokenAudiences/0'"},
		"a shared proxy without a command":                     {"sidecars: {enabled: true, shared: [{profile: a, image: b}]}", "at '/sidecars/shared/0': missing property 'command'"},
		"a shared proxy with an empty command":                 {"sidecars: {enabled: true, shared: [{profile: a, image: b, command: []}]}", "at '/sidecars/shared/0/command'"},
		"a shared proxy whose profile leaves its directory":    {"sidecars: {enabled: true, shared: [{profile: ../a, image: b, command: [c]}]}", "at '/sidecars/shared/0/profile': '../a' does not match pattern"},
		"a profile whose name is no label":                     {"sidecars: {enabled: true, shared: [{profile: " + strings.Repeat("a", 64) + ", image: b, command: [c]}]}", "at '/sidecars/shared/0/profile': maxLength"},
		"a shared proxy in the group of root":                  {"sidecars: {enabled: true, shared: [{profile: a, image: b, command: [c], runAsGroup: 0}]}", "at '/sidecars/shared/0/runAsGroup': minimum: got 0, want 1"},
		"a shared proxy with more rights":                      {"sidecars: {enabled: true, shared: [{profile: a, image: b, command: [c], securityContext: {}}]}", "additional properties 'securityContext' not allowed"},
		"sidecars with the values of an older chart":           {"sidecars: null", "missing property 'sidecars'"},
		"a startup taint of one's own":                         {"startupTaint: example.com/not-ready", "at '/startupTaint': got string, want boolean"},
		"a CNI socket in the root":                             {"cniSocket: /cni.sock", "at '/cniSocket'"},
		"a CNI socket in a shared directory":                   {"cniSocket: /run/cni.sock", "at '/cniSocket'"},
		"the same by its other name":                           {"cniSocket: /var/run/cni.sock", "at '/cniSocket'"},
		"a CNI socket by detours":                              {"cniSocket: /run/agent/../cni.sock", "at '/cniSocket'"},
		"an NRI socket in a shared place":                      {"nriSocket: /var/run/nri.sock", "at '/nriSocket'"},
		"an NRI socket in /tmp":                                {"nriSocket: /tmp/nri.sock", "at '/nriSocket'"},
		"the whole of /etc":                                    {"cniConfDir: /etc", "at '/cniConfDir'"},
		"the kubelet's configuration":                          {"cniConfDir: /etc/kubernetes", "at '/cniConfDir'"},
		"configurations by detours":                            {"cniConfDir: /etc/cni/net.d/../..", "at '/cniConfDir'"},
		"all programs":                                         {"cniBinDir: /opt", "at '/cniBinDir'"},
		"every namespace":                                      {"cniExcludeNamespaces: ['*']", "at '/cniExcludeNamespaces/0': '*' does not match pattern"},
		"a list inside a list item":                            {`excludeNamespaces: ["a,b"]`, "at '/excludeNamespaces/0': 'a,b' does not match pattern"},
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, tc.in, tc.want) })
	}
}

// What the values add to objects is bounded before the API server sees it.
func TestSchemaRefusesInObjects(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"a platform in capitals":                {"platform: OpenShift", "at '/platform': value must be one of 'kubernetes', 'openshift'"},
		"a platform of its own":                 {"platform: minishift", "at '/platform': value must be one of 'kubernetes', 'openshift'"},
		"the older value in lower case":         {"kubernetesDistribution: openshift", "value must be one of '', 'Kubernetes', 'OpenShift'"},
		"a digest without its kind":             {"image: {digest: " + strings.Repeat("0a", 32) + "}", "at '/image/digest'"},
		"a label that selectors use":            {"commonLabels: {app.kubernetes.io/name: a}", "at '/commonLabels/app.kubernetes.io~1name': false schema"},
		"the same of pods":                      {"podLabels: {app.kubernetes.io/instance: a}", "at '/podLabels/app.kubernetes.io~1instance': false schema"},
		"the label of shared proxies":           {"podLabels: {pod-network-controller.istio.io/shared-proxy: a}", "at '/podLabels/pod-network-controller.istio.io~1shared-proxy': false schema"},
		"a label of a wrong name":               {"commonLabels: {'a b': c}", "at '/commonLabels': additional properties 'a b' not allowed"},
		"a label that is none":                  {"commonLabels: {a: 'b c'}", "at '/commonLabels/a'"},
		"a variable that the pod answers":       {"extraEnv: [{name: NODE_NAME, value: a}]", "at '/extraEnv/0/name'"},
		"the variable of the pod's name":        {"extraEnv: [{name: POD_NAME, value: a}]", "at '/extraEnv/0/name'"},
		"a volume of two kinds":                 {"extraVolumes: [{name: a, emptyDir: {}, secret: {secretName: b}}]", "at '/extraVolumes/0'"},
		"a mount without a path":                {"extraVolumeMounts: [{name: a}]", "missing property 'mountPath'"},
		"less time to end than the agent needs": {"terminationGracePeriodSeconds: 30", "minimum: got 30, want 45"},
		"Kubernetes' own taint":                 {"startupTaintKey: node.kubernetes.io/not-ready", "at '/startupTaintKey'"},
		"a taint with its effect":               {"startupTaintKey: 'a.b/c=d:NoSchedule'", "at '/startupTaintKey'"},
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, tc.in, tc.want) })
	}
}

// wantRefused wants an error of the chart that has these words.
func wantRefused(t *testing.T, values, words string) {
	t.Helper()
	_, err := install(t, values)
	if err == nil {
		t.Fatalf("values %q were accepted, want an error that says %q", values, words)
	}
	if !strings.Contains(err.Error(), words) {
		t.Errorf("error says\n%v\nwant %q in it", err, words)
	}
}

// YAML reads off without quotes as false.
func TestOffNeedsNoQuotes(t *testing.T) {
	quoted, err := install(t, "{nri: 'off', cni: 'off'}")
	if err != nil {
		t.Fatal(err)
	}
	bare, err := install(t, "{nri: off, cni: off}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quoted.Manifest+quoted.Info.Notes, bare.Manifest+bare.Info.Notes); diff != "" {
		t.Errorf("off without quotes renders something else (-quoted +bare):\n%s", diff)
	}
}

func TestLintIsStrictlyClean(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			lint := action.NewLint()
			lint.Strict, lint.Namespace = true, "lint"
			for _, message := range lint.Run([]string{chartDir}, valuesMap(t, values)).Messages {
				if message.Severity >= support.WarningSev {
					t.Error(message)
				}
			}
		})
	}
}
