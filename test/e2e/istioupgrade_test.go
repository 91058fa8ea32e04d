package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// shoppers make new connections all the time, each through its own proxy and that of one of the stores.
	shoppers, stores = 2, 2
	// shopEvery is the time between two connections of a shopper.
	shopEvery = 20 * time.Millisecond
)

// Every proxy is replaced, again and again, while applications make new connections by mTLS: none is lost. The control plane is restarted
// meanwhile, and is away when an upgrade begins: the new proxies wait for it, and the old ones serve.
func (o outside) upgrades(t *testing.T) {
	m := o.mesh(t, allAtOnce)
	m.apply(t, strict)
	var pods []*corev1.Pod
	for i := range stores {
		pods = append(pods, m.create(t, m.member(t, "store", fmt.Sprint("v", i))))
	}
	for i := range shoppers {
		pods = append(pods, m.create(t, m.shopper(t, fmt.Sprint("v", i), "store")))
	}
	m.wantIdentities(t, pods)
	buying := pods[stores:]
	m.awaitMore(t, buying)
	t.Cleanup(func() { o.istiod(t, "scale", "--replicas=1"); o.istiod(t, "rollout", "status", "--timeout=1m") })
	restart := func() { o.istiod(t, "rollout", "restart"); o.istiod(t, "rollout", "status", "--timeout=1m") }
	for i, meanwhile := range []func(){
		func() {},
		restart,
		func() {
			m.awaitSidecar(t, pods[0].Name, hasState("Upgrading"))
			m.awaitMore(t, buying) // the old proxies serve
			o.istiod(t, "scale", "--replicas=1")
			o.istiod(t, "rollout", "status", "--timeout=1m")
		},
	} {
		before, err := m.sidecar(t.Context(), pods[0].Name)
		must(t, err)
		if i == 2 {
			o.istiod(t, "scale", "--replicas=0")
			o.mustKubectl(t, "wait", "pods", "-n", "istio-system", "--selector", "app=istiod", "--for=delete", "--timeout=1m")
		}
		began := time.Now()
		m.newVersion(t, fmt.Sprint("upgrade ", i))
		meanwhile()
		for _, pod := range pods {
			m.awaitSidecar(t, pod.Name, isUpgraded(before))
		}
		t.Logf("upgrade %d: %d proxies in %s", i, len(pods), time.Since(began).Round(time.Millisecond))
		m.awaitMore(t, buying)
	}
	restart()
	m.awaitMore(t, buying)
	must(t, m.eachDials(t.Context(), buying, func(s summary) error {
		t.Logf("%d new connections, %d lost", s.OK+s.Failed, s.Failed)
		if s.Failed > 0 {
			return fmt.Errorf("of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
	for _, pod := range pods {
		if now := m.await(t, pod.Name, isReadyNow); now.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("the application of %s was restarted", pod.Name)
		}
	}
	m.wantIdentities(t, pods)
}

// allAtOnce has a node's proxies upgraded at the same time.
func allAtOnce(spec map[string]any) { spec["rollout"] = map[string]any{"maxParallel": int64(10)} }

// shopper makes connections to another application from when it is answered first, and counts them.
func (m managed) shopper(t *testing.T, version, from string) *corev1.Pod {
	t.Helper()
	pod := m.member(t, "shopper", version)
	target := meshURL(from)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "dials", Image: "localhost/tools:1", Command: []string{"sh", "-c", fmt.Sprintf(
		"until testapp get %s; do usleep 200000; done; exec testapp dial -report 200ms -every %s %s", target, shopEvery, target)}})
	return pod
}

// awaitMore waits until each of the pods has been answered more often than before.
func (m managed) awaitMore(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	const more = 20
	least := map[int]int{}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		i := -1
		return m.eachDials(ctx, pods, func(s summary) error {
			i++
			if _, known := least[i]; !known {
				least[i] = s.OK + more
			}
			return atLeast(s.OK, least[i])
		})
	})
}

// istiod runs kubectl for the control plane's Deployment.
func (o outside) istiod(t *testing.T, args ...string) {
	t.Helper()
	verb, flags := args[:1], args[1:]
	if args[0] == "rollout" {
		verb, flags = args[:2], args[2:]
	}
	o.mustKubectl(t, append(append(append([]string{}, verb...), "deployment/istiod", "-n", "istio-system"), flags...)...)
}

func hasState(want string) func(map[string]any) error {
	return func(status map[string]any) error {
		if status["state"] != want {
			return fmt.Errorf("it says %v, want %s", status, want)
		}
		return nil
	}
}

// A pod that is deleted in the middle of an upgrade leaves nothing, and a Job ends.
func (o outside) ends(t *testing.T) {
	m := o.mesh(t, allAtOnce)
	pods := []*corev1.Pod{m.create(t, m.member(t, "store", "v1")), m.create(t, m.member(t, "store", "v2"))}
	m.wantIdentities(t, pods)

	job := m.member(t, "job", "v1")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Spec.Containers[0].Image, job.Spec.Containers[0].Args = "localhost/tools:1", nil
	job.Spec.Containers[0].Command = []string{"sh", "-c", "until testapp get " + meshURL("store") + "; do usleep 200000; done"}
	job = m.create(t, job)
	m.await(t, job.Name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	m.awaitSidecar(t, job.Name, func(status map[string]any) error {
		return errors.Join(hasState("Ended")(status), equal(status["restarts"], 0))
	})
	must(t, m.pods().Delete(t.Context(), job.Name, metav1.DeleteOptions{}))

	m.newVersion(t, "in the middle")
	m.awaitSidecar(t, pods[0].Name, hasState("Upgrading"))
	uids := []types.UID{job.UID}
	for _, pod := range pods {
		uids = append(uids, pod.UID)
		must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	}
	m.wantNothingLeft(t, uids)
}
