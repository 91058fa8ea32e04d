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

func TestTrafficPassesTheProxyInBothFamilies(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := s.startMesh(t, meshPod("meshed", nil))
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			wantInbound(t, pod, f, appPort, true)
			s.wantOutbound(t, pod, f.at(1, worldPort), true)
			wantDirectToItself(t, s, pod, f)
		})
	}
}

// wantDirectToItself wants an application that calls itself to meet no proxy.
func wantDirectToItself(t *testing.T, s *space, pod *corev1.Pod, f family) {
	t.Helper()
	before := counts(t, pod)
	for _, ip := range []netip.Addr{at(pod, f, 0).Addr(), f.loopback} {
		if a := s.askFrom(t, pod, netip.AddrPortFrom(ip, appPort)); a.peer() != ip {
			t.Errorf("the application asked itself at %s and saw %s", ip, a.Peer)
		}
	}
	if after := counts(t, pod); after[inbound] != before[inbound] || after[outbound] != before[outbound] {
		t.Errorf("the proxy counts %+v, before the application asked itself %+v", after, before)
	}
}

func TestTrafficBetweenPodsPassesBothProxies(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	client, server := s.startMesh(t, meshPod("client", nil)), s.startMesh(t, meshPod("server", nil))
	for _, f := range families() {
		dst := at(server, f, appPort)
		left, entered := took(t, client, outbound, dst), took(t, server, inbound, dst)
		a := s.askFrom(t, client, dst)
		if a.Banner != "server" || a.peer() != f.passthrough {
			t.Errorf("%s: %q answered, and saw %s; want server, and its proxy", f.name, a.Banner, a.Peer)
		}
		if took(t, client, outbound, dst) != left+1 || took(t, server, inbound, dst) != entered+1 {
			t.Errorf("%s: not both proxies took the connection to %s: %+v, %+v", f.name, dst, journal(t, client), journal(t, server))
		}
	}
}

func TestHAProxyFindsTheOriginalDestination(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	pod := newPod("haproxy", nil, appContainer(), haproxyContainer())
	pod.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: haproxyConfig(t, s)}},
	}}}
	pod = s.startMesh(t, pod)
	f := families()[0]
	in, out := at(pod, f, appPort), f.at(1, worldPort)

	var a answer
	must(t, request(t.Context(), in, "/", &a))
	if a.peer() != f.passthrough {
		t.Errorf("the application saw %s, want the proxy", a.Peer)
	}
	s.wantLogged(t, pod, "inbound peer="+f.client.String()+":", fmt.Sprintf(" original-dst=%s ", in))

	if a = s.askFrom(t, pod, out); a.Banner != "world" {
		t.Errorf("%q answered, want the world", a.Banner)
	}
	s.wantLogged(t, pod, "outbound peer="+in.Addr().String()+":", fmt.Sprintf(" original-dst=%s ", out))
}

// wantLogged waits for a line of the proxy that starts with prefix and has part in it.
func (s *space) wantLogged(t *testing.T, pod *corev1.Pod, prefix, part string) {
	t.Helper()
	eventually(t, "a line of HAProxy", func(ctx context.Context) error {
		text, err := s.pods().GetLogs(pod.Name, &corev1.PodLogOptions{Container: "istio-proxy"}).DoRaw(ctx)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, part) {
				return nil
			}
		}
		return fmt.Errorf("no line %q with %q in:\n%s", prefix, part, text)
	})
}

// haproxyConfig makes the ConfigMap of the cluster's samples and gives its name.
func haproxyConfig(t *testing.T, s *space) string {
	t.Helper()
	text, err := os.ReadFile("../../hack/cluster/samples/haproxy-config.yaml")
	must(t, err)
	var config corev1.ConfigMap
	must(t, yaml.Unmarshal(text, &config))
	_, err = s.api.CoreV1().ConfigMaps(s.name).Create(t.Context(), &config, metav1.CreateOptions{})
	must(t, err)
	return config.Name
}
