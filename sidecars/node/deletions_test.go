package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/test/kerneltest"
)

// A ManagedProxy that somebody deletes comes back, and one that the agent deletes does not.
func TestFollowDeletions_deletedByHand_isWrittenAnew(t *testing.T) {
	object := &v1alpha1.ManagedProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "o1", Labels: map[string]string{v1alpha1.LabelNode: "node-1"}}}
	api, ok := sidecarAPI(t, object).(client.WithWatch)
	if !ok {
		t.Fatal("the stand-in has no watch")
	}
	r := newSidecarReports(api, nil, "node-1")
	watched := r.deletions(api)
	go watched.follow(t.Context())
	r.Report(theSandbox(), sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true})
	workOff(t, r)
	kerneltest.Eventually(t, "it is listed", func() bool {
		watched.mu.Lock()
		defer watched.mu.Unlock()
		return len(watched.known) == 1
	})
	if err := api.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "the report is queued", func() bool { return r.queue.Len() > 0 })
	workOff(t, r)
	if got := shownSandbox(t, api); got != "s1" {
		t.Errorf("it shows the sandbox %q", got)
	}
	r.Retract("u1")
	workOff(t, r)
	r.deleted(client.ObjectKeyFromObject(object))
	if r.queue.Len() > 0 {
		t.Error("what the agent has deleted is written anew")
	}
}
