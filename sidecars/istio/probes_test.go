package istio

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const refuses = "mTLS mode STRICT refuses probes unless the chart's policy leads them to pilot-agent as the pod is created: "

// probedPod is a pod as its author wrote it ("pod"), or as the chart's policy made it ("admitted"): by a test of the policy in a real API server.
func probedPod(t *testing.T, state string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile("testdata/probed-" + state + ".yaml")
	pod := &corev1.Pod{}
	if err == nil {
		err = yaml.UnmarshalStrict(text, pod)
	}
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = aPod(nil).Pod.Status
	return pod
}

func rewriting(t *testing.T, mesh string) *Mesh {
	t.Helper()
	return parsed(t, mesh, `{"global": {"pilotCertProvider": "istiod"}, "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true, "defaultTemplates": ["sidecar"]}}`)
}

// What the policy has made of a pod becomes the variable that Istio's injector would write: ports by number, and the probes' timeouts.
func TestProbers_ofWhatThePolicyMade_areAsInjected(t *testing.T) {
	_, env := computed(t, rewriting(t, aMesh), Pod{Pod: probedPod(t, "admitted")})
	want := `{"/app-health/cache/startupz":{"tcpSocket":{"port":6379},"timeoutSeconds":1},` +
		`"/app-health/cart/livez":{"tcpSocket":{"port":8081},"timeoutSeconds":1},` +
		`"/app-health/cart/readyz":{"httpGet":{"path":"/ready?\"deep\"=\\1","port":8080,"scheme":"HTTPS"},"timeoutSeconds":3},` +
		`"/app-health/cart/startupz":{"httpGet":{"path":"/started","port":8081,"scheme":"HTTP"},"timeoutSeconds":1},` +
		`"/app-health/worker/readyz":{"grpc":{"port":9000,"service":"jobs.\"v1\""},"timeoutSeconds":2},` +
		`"/app-health/worker/startupz":{"grpc":{"port":9000,"service":""},"timeoutSeconds":1},` +
		`"/app-lifecycle/cart/prestopz":{"httpGet":{"path":"/stop","port":8081,"scheme":"HTTP"}}}`
	if got := env[appProbers]; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if _, env := computed(t, rewriting(t, aMesh), Pod{Pod: probedPod(t, "pod")}); env[appProbers] != "" {
		t.Errorf("of a pod that the policy has not seen: %s", env[appProbers])
	}
}

// A mesh whose proxies send inbound connections to localhost has pilot-agent probe there.
func TestProbers_meshSendsToLocalhost_probesGoThere(t *testing.T) {
	_, env := computed(t, rewriting(t, aMesh+"inboundTrafficPolicy: {mode: LOCALHOST}\n"), aPod(nil))
	if got := env["REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"]; got != "true" {
		t.Errorf("got %q", got)
	}
}

// Every probe that mTLS refuses is named. A pod may have several.
func TestFailing_probes_areNamed(t *testing.T) {
	const kept = "startupProbe of container kept, postStart of container kept (which no policy leads there)"
	for name, tc := range map[string]struct {
		state  string
		change func(*corev1.Pod)
		want   string
	}{
		"as its author wrote it": {
			state: "pod", want: "startupProbe of container cache, readinessProbe of container cart, livenessProbe of container cart, startupProbe of container cart, " +
				"preStop of container cart, readinessProbe of container worker, startupProbe of container worker, " + kept,
		},
		"as the policy made it":              {state: "admitted", want: kept},
		"its ports are left out":             {state: "admitted", change: annotated("traffic.sidecar.istio.io/excludeInboundPorts", "1, 80"), want: ""},
		"the status port is another":         {state: "admitted", change: annotated(keyStatusPort, "15029"), want: "startupProbe of container cache (it leads to port 15020, and pilot-agent's status port is 15029), "},
		"its author wants no rewritten ones": {state: "pod", change: annotated("sidecar.istio.io/rewriteAppHTTPProbers", "false"), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := probedPod(t, tc.state)
			if tc.change != nil {
				tc.change(pod)
			}
			proxy, _ := computed(t, rewriting(t, aMesh), Pod{Pod: pod})
			at := slices.IndexFunc(proxy.NotHonoured, func(said string) bool { return strings.HasPrefix(said, refuses) })
			switch {
			case tc.want == "" && at >= 0, tc.want != "" && at < 0:
				t.Errorf("%q, want %q", proxy.NotHonoured, tc.want)
			case at >= 0 && !strings.HasPrefix(proxy.NotHonoured[at], refuses+tc.want):
				t.Errorf("%q, want %q", proxy.NotHonoured[at], refuses+tc.want)
			}
		})
	}
}

// pilot-agent would not start with what it does not understand, and the pod's owner may have written the annotation.
func TestProbers_annotationIsWrong_isRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "EOF",
		"{":                                 "unexpected EOF",
		`[]`:                                "cannot unmarshal array",
		`{} {}`:                             "it goes on",
		`{"": {"grpc": {"port": 1}}}`:       `"" is none of the pod's probes`,
		`{"/etc": {}}`:                      `"/etc" is none of the pod's probes`,
		`{"/app-health/x/readyz": {}}`:      `"/app-health/x/readyz" is none of the pod's probes`,
		`{"/app-health/cart/readyz": null}`: "has not one of httpGet",
		`{"/app-health/cart/readyz": {}}`:   "has not one of httpGet",
		`{"/app-health/cart/readyz": {"grpc": {"port": 1}, "tcpSocket": {"port": 1}}}`:              "has not one of httpGet",
		`{"/app-health/cart/readyz": {"exec": {"command": ["true"]}}}`:                              `unknown field "exec"`,
		`{"/app-health/cart/readyz": {"tcpSocket": {"port": "wen"}}}`:                               "no port of the container is wen",
		`{"/app-health/cart/readyz": {"tcpSocket": {}}}`:                                            "no port of the container is 0",
		`{"/app-health/cart/readyz": {"tcpSocket": {"port": 70000}}}`:                               "no port of the container is 70000",
		`{"/app-health/cart/readyz": {"grpc": {"port": -1}}}`:                                       "no port of the container is -1",
		"{\"/app-health/cart/readyz\": {\"tcpSocket\": {\"port\": 1}}}\n--proxyLogLevel=debug":      "it goes on",
		`{"/app-health/cart/readyz": {"httpGet": {"path": "/` + strings.Repeat("x", 1<<18) + `"}}}`: "no port of the container is 0",
	} {
		t.Run(text[:min(len(text), 60)], func(t *testing.T) {
			pod := probedPod(t, "admitted")
			pod.Annotations[KeyProbers] = text
			_, err := rewriting(t, aMesh).Proxy(Pod{Pod: pod})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), KeyProbers) || len(err.Error()) > 700 {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}
