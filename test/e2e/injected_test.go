package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// validation is the container that Istio's injector puts in front of all others, to see whether redirection works.
const validation = "istio-validation"

// A pod that says nothing to us, and is all that Istio's injector makes of it: it starts when its traffic is redirected.
//
//e2e:rounds nftables iptables
func TestPodsAsIstioInjectsThem(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pod := s.startMesh(t, injectedPod(strings.ToLower(mode), mode))
			wantReport(t, s, pod, isReporter)
			for _, f := range families() {
				switch mode {
				case "REDIRECT":
					wantInbound(t, pod, f, appPort, true)
				case "TPROXY":
					var a answer
					must(t, request(t.Context(), at(pod, f, appPort), "/", &a))
					if a.peer() != f.client {
						t.Errorf("%s: the application saw %s, want %s", f.name, a.Peer, f.client)
					}
					s.wantTaken(t, pod, inbound, f, f.client)
				}
				s.wantOutbound(t, pod, f.at(1, worldPort), true)
			}
			s.wantValidated(t, pod)
		})
	}
}

// wantValidated wants both families' probes to have arrived.
func (s *space) wantValidated(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	text, err := s.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: validation}).DoRaw(t.Context())
	must(t, err)
	for _, line := range []string{"127.0.0.1 -> 127.0.0.6:15002 arrives at the proxy\n", "::1 -> [::6]:15002 arrives at the proxy\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the validation does not say %q, but:\n%s", line, text)
		}
	}
}

//e2e:rounds nftables
func TestPodThatRefusesInjectionFailsItsValidation(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	pod := injectedPod("refusing", "REDIRECT")
	pod.Labels["sidecar.istio.io/inject"] = "false"
	pod.Spec.InitContainers[0].Args = append(pod.Spec.InitContainers[0].Args, "-within=1s")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.create(t, pod)
	pod = s.await(t, pod.Name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	eventually(t, "the validation's complaint", func(ctx context.Context) error {
		text, err := s.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: validation}).DoRaw(ctx)
		if err == nil && !strings.Contains(string(text), "127.0.0.1 -> 127.0.0.6:15002 does not arrive at the proxy") {
			err = errors.New(string(text))
		}
		return err
	})
	wantUntouched(t, pod)
}

// injectedPod is an application as Istio's injector leaves it: a native sidecar, in front of it the validation, and words for
// Istio's CNI plugin in annotations.
func injectedPod(name, mode string) *corev1.Pod {
	pod := newPod(name, map[string]string{
		"istio.io/rev":    "default",
		keyInjected:       `{"initContainers":["istio-validation","istio-proxy"],"containers":null,"volumes":null,"imagePullSecrets":null,"revision":"default"}`,
		keyMode:           mode,
		keyIncludeCIDRs:   "*",
		keyIncludeInbound: "*",
		keyExcludeInbound: "15020",
		"kubectl.kubernetes.io/default-container": "app",
	}, bare(appContainer()))
	pod.Labels = map[string]string{
		"security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": name, "service.istio.io/canonical-revision": "latest",
	}
	always := corev1.ContainerRestartPolicyAlways
	proxy := proxyContainer("istio-proxy", "proxy", "sidecar")
	if mode == "TPROXY" {
		proxy = asRoot(proxyContainer("istio-proxy", "proxy", "sidecar", "-transparent"), "NET_ADMIN")
	}
	proxy.RestartPolicy = &always
	proxy.Env = []corev1.EnvVar{{Name: "ISTIO_META_INTERCEPTION_MODE", Value: mode}}
	proxy.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz/ready", Port: intstr.FromInt32(int32(journalPort))},
	}}
	pod.Spec.InitContainers = []corev1.Container{proxyContainer(validation, "validate"), proxy}
	if mode == "NONE" { // then Istio does not validate
		pod.Spec.InitContainers = pod.Spec.InitContainers[1:]
	}
	return pod
}
