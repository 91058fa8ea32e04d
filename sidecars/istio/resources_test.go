package istio

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/api/v1alpha1"
)

// What a pod's annotations say of the proxy's resources counts instead of what the profile says, each by itself, also for Envoy's workers.
func TestProxy_resources_annotationsWin(t *testing.T) {
	one, two := resource.MustParse("1"), resource.MustParse("64Mi")
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string // request, limit, memory; workers
		err         string
	}{
		"none":         {want: "<nil> 1 64Mi; 1"},
		"a limit":      {annotations: map[string]string{keyCPULimit: "2500m"}, want: "<nil> 2500m 64Mi; 3"},
		"each":         {annotations: map[string]string{keyCPU: "100m", keyCPULimit: "2", keyMemoryLimit: "1Gi"}, want: "100m 2 1Gi; 2"},
		"a request":    {annotations: map[string]string{keyCPU: "1"}, want: "1 1 64Mi; 1"},
		"too much":     {annotations: map[string]string{keyCPU: "2"}, err: "a CPU request of 2 is more than the limit 1"},
		"nothing":      {annotations: map[string]string{keyMemoryLimit: ""}, err: `annotation sidecar.istio.io/proxyMemoryLimit is "", want an amount`},
		"zero":         {annotations: map[string]string{keyCPULimit: "0"}, err: `proxyCPULimit is "0"`},
		"negative":     {annotations: map[string]string{keyCPU: "-1"}, err: `proxyCPU is "-1"`},
		"a word":       {annotations: map[string]string{keyCPU: "one\nCPU"}, err: `proxyCPU is "one\nCPU"`},
		"a long value": {annotations: map[string]string{keyCPU: strings.Repeat("9", 1<<16)}, err: "proxyCPU is"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPod(func(pod *corev1.Pod) { pod.Annotations = tc.annotations })
			p.Resources = v1alpha1.Resources{CPULimit: &one, MemoryLimit: &two}
			m := parsed(t, aMesh, someMap)
			proxy, err := m.Proxy(p)
			if tc.err != "" {
				wantError(t, err, tc.err)
				if len(err.Error()) > 300 {
					t.Errorf("an error of %d bytes", len(err.Error()))
				}
				return
			}
			_, env := computed(t, m, p)
			r := proxy.Resources
			if got := written(r.CPURequest) + " " + written(r.CPULimit) + " " + written(r.MemoryLimit) + "; " + env["ISTIO_CPU_LIMIT"]; got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func written(q *resource.Quantity) string {
	if q == nil {
		return "<nil>"
	}
	return q.String()
}

// A value of an annotation stays one argument, one variable or one line, whatever stands in it.
func TestProxy_hostileValues_stayOneArgument(t *testing.T) {
	usual, _ := computed(t, parsed(t, aMesh, someMap), aPod(nil))
	for _, value := range []string{
		"debug\n--serviceCluster=evil", `debug" "--serviceCluster=evil`, "debug --serviceCluster=evil", "a: {b: c}\n- d", "'; rm -rf /", "$(POD_NAME)", "${HOME}", "`id`", "--", "\u2028x", "\r\n",
	} {
		for key, flag := range map[string]string{
			"sidecar.istio.io/logLevel": "--proxyLogLevel=", "sidecar.istio.io/componentLogLevel": "--proxyComponentLogLevel=", "sidecar.istio.io/agentLogLevel": "--log_output_level=",
		} {
			proxy, _ := computed(t, parsed(t, aMesh, someMap), aPod(annotated(key, value)))
			want := slices.Clone(usual.Args)
			want[slices.IndexFunc(want, func(arg string) bool { return strings.HasPrefix(arg, flag) })] = flag + value
			if !slices.Equal(proxy.Args, want) || len(proxy.Env) != len(usual.Env) {
				t.Errorf("%s: %q makes %q", key, value, proxy.Args)
			}
		}
		for _, key := range []string{"sidecar.istio.io/statsInclusionPrefixes", "sidecar.istio.io/discoveryAddress", "sidecar.istio.io/anything"} {
			proxy, _ := computed(t, parsed(t, aMesh, someMap), aPod(annotated(key, value)))
			if lines, want := strings.Count(proxy.Files["annotations"], "\n"), strings.Count(usual.Files["annotations"], "\n")+1; lines != want || len(proxy.Env) != len(usual.Env) {
				t.Errorf("%s: %q makes the lines %q", key, value, proxy.Files["annotations"])
			}
		}
	}
}
