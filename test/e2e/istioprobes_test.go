package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// statusPort is pilot-agent's, whichever of two proxies serves.
	statusPort uint16 = 15020
	// probedUpgrades is the number of upgrades during probes and scrapes.
	probedUpgrades = 20
)

// The kubelet's probes of a namespace that takes mTLS alone succeed, and fail if the application does. Neither they nor scrapes see upgrades.
func (o outside) probes(t *testing.T) {
	m := o.mesh(t)
	m.apply(t, strict)
	by := func(port intstr.IntOrString) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Ports[0].Name = "web"
			c.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}}
			c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: port}}}
			c.LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 2, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(meshPort))}}}
		}
	}
	start := func(version string, change ...func(*corev1.Pod)) {
		pod := m.member(t, "probed", version)
		for _, f := range change {
			f(pod)
		}
		m.create(t, pod)
	}
	web := intstr.FromString("web")
	start("v1", by(web))
	start("asis", by(web), func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"sidecar.istio.io/rewriteAppHTTPProbers": "false"}
	})
	start("silent", by(intstr.FromInt32(9999)))
	pod := m.await(t, "probed-v1", isReadyNow)
	eventually(t, "the refusal of a client without a certificate", func(ctx context.Context) error { return refused(fromOutside(ctx, pod)) })
	m.awaitEvent(t, "probed-asis", "Unhealthy", "probe failed")
	m.awaitEvent(t, "probed-silent", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500")
	before := readySince(pod)
	scraped := m.scrapes(t, pod)
	for i := range probedUpgrades {
		status, err := m.sidecar(t.Context(), pod.Name)
		must(t, err)
		m.patchProfile(t, version(i))
		m.awaitSidecar(t, pod.Name, isUpgraded(status))
	}
	scraped.end(t)
	pod = m.await(t, pod.Name, isReadyNow)
	if after := readySince(pod); after != before || pod.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("ready since %s, want %s; %d restarts", after, before, pod.Status.ContainerStatuses[0].RestartCount)
	}
}

// readySince is since when the probes of a pod's containers have succeeded.
func readySince(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.ContainersReady {
			return fmt.Sprint(c.Status, c.LastTransitionTime)
		}
	}
	return ""
}

// scrapes asks the proxy's metrics of a pod, by a new connection each, until end.
func (m managed) scrapes(t *testing.T, pod *corev1.Pod) *looks {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://%s/stats/prometheus", at(pod, families()[0], statusPort))
	return look(t, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", response.Status)
		}
		return nil
	})
}
