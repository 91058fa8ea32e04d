package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The test's own proxy was written beside the rules. One that was not shows that neither leans on the other.
//
//e2e:rounds nftables iptables
func TestHAProxyFindsTheOriginalDestination(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, haproxyPod("haproxy", nil, sampleConfig(t, s, "haproxy-config.yaml"), haproxyContainer()))
	f := families()[0]
	in, out := at(pod, f, appPort), f.at(1, worldPort)

	var a answer
	must(t, request(t.Context(), in, "/", &a))
	if a.peer() != f.passthrough {
		t.Errorf("the application saw %s, want the proxy", a.Peer)
	}
	s.wantLogged(t, pod, "inbound", f.client, in)

	if a = s.askFrom(t, pod, out); a.Banner != "world" {
		t.Errorf("%q answered, want the world", a.Banner)
	}
	s.wantLogged(t, pod, "outbound", in.Addr(), out)
}

// haproxyPod is an application beside a real proxy, whose configuration is in a ConfigMap.
func haproxyPod(name string, annotations map[string]string, config string, proxy corev1.Container) *corev1.Pod {
	pod := newPod(name, annotations, appContainer(), proxy)
	pod.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: config}},
	}}}
	return pod
}

// haproxyContainer wants the volume of haproxyPod.
func haproxyContainer() corev1.Container {
	return corev1.Container{
		Name: "istio-proxy", Image: "localhost/haproxy:1",
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/haproxy"}},
	}
}

// sampleConfig makes a ConfigMap of the cluster's samples and gives its name.
func sampleConfig(t *testing.T, s *space, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../hack/cluster/samples/" + file)
	must(t, err)
	var config corev1.ConfigMap
	must(t, yaml.Unmarshal(text, &config))
	return s.keepConfig(t, &config)
}

func (s *space) keepConfig(t *testing.T, config *corev1.ConfigMap) (name string) {
	t.Helper()
	_, err := s.api.CoreV1().ConfigMaps(s.name).Create(t.Context(), config, metav1.CreateOptions{})
	must(t, err)
	return config.Name
}

// wantLogged waits for HAProxy's line about a connection that it has made.
func (s *space) wantLogged(t *testing.T, pod *corev1.Pod, direction string, peer netip.Addr, dst netip.AddrPort) {
	t.Helper()
	prefix, rest := fmt.Sprintf("%s peer=%s:", direction, peer), fmt.Sprintf(" original-dst=%s:%d state=--", dst.Addr(), dst.Port())
	eventually(t, "a line of HAProxy", func(ctx context.Context) error {
		text, err := s.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: "istio-proxy"}).DoRaw(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, rest) {
				return nil
			}
		}
		return fmt.Errorf("no line %q with %q in:\n%s", prefix, rest, text)
	})
}
