package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The readiness gate needs nobody on the node: a pod that the agent has not seen gets nothing from Services.
//
// Not parallel: it takes the agent away.
//
//e2e:rounds core nftables
func TestServicesSendNothingToAPodWithoutItsRules(t *testing.T) {
	s := newSpace(t, nil)
	client := s.start(t, newPod("client", nil, appContainer()))
	s.awaitPolicy(t)
	back := s.sendAgentAway(t)
	pod := meshPod("gated", asked())
	pod.Labels = map[string]string{"app": "gated"}
	service := s.serve(t, pod)
	s.create(t, pod)
	s.await(t, pod.Name, isRunning)
	s.wantEndpoint(t, false)
	if text, err := s.tryFrom(t, client, "get", "-timeout=1s", "http://"+service.String()+"/"); err == nil {
		t.Errorf("the Service sent a request to a pod without its rules: %s", text)
	}
	back()
	s.wantEndpoint(t, true)
	var first answer
	// kube-proxy hears of the endpoint when this test does, and writes its rules a moment later.
	eventually(t, "the Service answers", func(ctx context.Context) error {
		text, err := s.run(ctx, command{
			namespace: s.name, pod: client.Name, container: "app", argv: []string{"/testapp", "get", "-timeout=1s", "http://" + service.String() + "/"},
		})
		if err == nil {
			first = decode[answer](t, text)
		}
		return err
	})
	if first.Banner != pod.Name || first.peer() != families()[0].passthrough {
		t.Errorf("%s was answered by %q, who was asked by %s", service, first.Banner, first.peer())
	}
}

// serve makes a Service for a pod.
func (s *space) serve(t *testing.T, pod *corev1.Pod) netip.AddrPort {
	t.Helper()
	made, err := s.api.CoreV1().Services(s.name).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Spec:       corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: int32(appPort)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr(made.Spec.ClusterIP), appPort)
}

// wantEndpoint waits until the namespace's one endpoint is ready, or is there and is not.
func (s *space) wantEndpoint(t *testing.T, ready bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("an endpoint with ready=%v", ready), func(ctx context.Context) error {
		list, err := s.api.DiscoveryV1().EndpointSlices(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready == ready {
					return nil
				}
			}
		}
		return errors.New("there is none")
	})
}
