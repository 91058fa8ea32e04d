package connectivity

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// A pod that goes during the test proves nothing about the node, whoever waits for it.
func TestRun_podDeletedDuringTheTest_isSaid(t *testing.T) {
	lost := []Proof{{Kind: KindOutbound, Family: "IPv4", Why: "connection refused"}}
	for name, tc := range map[string]struct {
		kubelet kubelet
		of      string // the pods that go
		going   bool   // they are being deleted, and not gone
	}{
		"the server, before it runs":        {kubelet{waiting: "ContainerCreating"}, "server-", false},
		"the server is going":               {kubelet{waiting: "ContainerCreating"}, "server-", true},
		"the client, before it ends":        {kubelet{proofs: good()}, "client-", false},
		"the server, while it is asked":     {kubelet{proofs: lost}, "server-", false},
		"the server goes while it is asked": {kubelet{proofs: lost}, "server-", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := tc.kubelet.cluster(node("a", nil))
			asked := false
			c.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				get, ok := action.(clienttesting.GetAction)
				if !ok || !strings.HasPrefix(get.GetName(), tc.of) {
					return false, nil, nil
				}
				if !asked && tc.kubelet.waiting == "" && tc.of == "server-" { // it has run before
					asked = true
					return false, nil, nil
				}
				if !tc.going {
					return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, get.GetName())
				}
				return true, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: get.GetName(), DeletionTimestamp: new(metav1.Now())}}, nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			lines, _ := newTester(c).Run(ctx)
			if len(lines) != 1 || !strings.HasPrefix(lines[0].Why, deletedPod+tc.of) || lines[0].Do != doAgain {
				t.Errorf("%+v", lines)
			}
		})
	}
}
