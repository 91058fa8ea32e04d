package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The ports on which the application listens are captured, and reported; a connection to another one is refused by the kernel, not by the proxy.
//
//e2e:rounds nftables iptables
func TestListeningPortsAreCapturedAndReported(t *testing.T) {
	t.Parallel()
	s := newSpace(t, map[string]string{keyInitialize: "true", keyInboundPorts: "listening"})
	pod := s.startMesh(t, meshPod("listening", nil))
	for _, f := range families() {
		wantInbound(t, pod, f, appPort, true)
		wantInbound(t, pod, f, appOtherPort, true)
		wantClosed(t, pod, f, 7777)
	}
	s.awaitListening(t, pod, fmt.Sprint(appPort))
	s.awaitEvent(t, pod.Name, "ListeningPorts", fmt.Sprint(appPort))

	s.annotate(t, pod.Name, map[string]any{keyInboundPorts: "all"})
	s.awaitListening(t, pod, "")
	if err := request(t.Context(), at(pod, families()[0], 7777), "/", nil); errors.Is(err, syscall.ECONNREFUSED) {
		t.Error("a port on which nobody listens is not captured, although all are")
	}
}

func wantClosed(t *testing.T, pod *corev1.Pod, f family, port uint16) {
	t.Helper()
	if err := request(t.Context(), at(pod, f, port), "/", nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s to port %d of %s, on which nobody listens: error %v", f.name, port, pod.Name, err)
	}
}

// awaitListening waits until the pod's details name a port among those that are captured, or none at all.
func (s *space) awaitListening(t *testing.T, pod *corev1.Pod, port string) {
	t.Helper()
	s.await(t, pod.Name, func(pod *corev1.Pod) error {
		d, err := detailsOf(pod)
		if err != nil {
			return err
		}
		if named := strings.Split(d.Listening, ","); (port == "") != (d.Listening == "") || port != "" && !slices.Contains(named, port) {
			return fmt.Errorf("the details name %q, want port %q", d.Listening, port)
		}
		return nil
	})
}
