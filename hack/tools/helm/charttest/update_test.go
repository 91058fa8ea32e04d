package charttest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// checkUpdates checks that two pods of the agent can run on one node if the update strategy has both run.
func checkUpdates(t *testing.T, ds appsv1.DaemonSetSpec) {
	t.Helper()
	agent := ds.Template.Spec.Containers[0]
	if len(agent.Ports) > 0 {
		t.Errorf("ports of the node are declared, which one pod can have only: %+v", agent.Ports)
	}
	for name, probe := range map[string]*corev1.Probe{"/healthz": agent.LivenessProbe, "/readyz": agent.ReadinessProbe, "/startz": agent.StartupProbe} {
		var path string
		switch {
		case probe.Exec != nil:
			path = probe.Exec.Command[len(probe.Exec.Command)-1]
			checkSocket(t, ds.Template.Spec, probe.Exec.Command[2])
		case probe.HTTPGet != nil && ds.UpdateStrategy.RollingUpdate == nil:
			path = probe.HTTPGet.Path
		}
		if path != name {
			t.Errorf("%s is asked by %+v", name, probe.ProbeHandler)
		}
	}
}

// checkSocket wants the agent's socket in a directory that no other pod sees.
func checkSocket(t *testing.T, pod corev1.PodSpec, socket string) {
	t.Helper()
	for _, mount := range pod.Containers[0].VolumeMounts {
		dir, file, _ := strings.Cut(strings.TrimPrefix(socket, mount.MountPath), "/")
		if dir != "" || file == "" {
			continue
		}
		for _, volume := range pod.Volumes {
			if volume.Name == mount.Name && volume.EmptyDir != nil && !mount.ReadOnly {
				return
			}
		}
	}
	t.Errorf("%s is in no directory of the pod's own", socket)
}

func TestTheOldAgentLeavesWhenTheNewOneIsReady(t *testing.T) {
	strategy := daemonSet(t, "{}").Spec.UpdateStrategy
	if strategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || strategy.RollingUpdate.MaxSurge.String() != "10%" ||
		strategy.RollingUpdate.MaxUnavailable.String() != "0" {
		t.Errorf("update strategy is %+v", strategy)
	}
}

func TestProbes(t *testing.T) {
	const noSurge = "updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\nhealthAddr: "
	for in, want := range map[string][]string{
		"{}":                                         {"/istio-pod-network-probe", "--socket", "/run/istio-pod-network-health/health.sock", "/readyz"},
		"healthAddr: unix:///run/agent/s":            {"/istio-pod-network-probe", "--socket", "/run/agent/s", "/readyz"},
		noSurge + "127.0.0.1:25078":                  {"127.0.0.1", "25078", "/readyz"},
		noSurge + "':25078'":                         {"127.0.0.1", "25078", "/readyz"},
		noSurge + "'[::]:25078'":                     {"127.0.0.1", "25078", "/readyz"},
		noSurge + "'[fd00::1]:25078'":                {"fd00::1", "25078", "/readyz"},
		"updateStrategy: null\nhealthAddr: ':25078'": {"127.0.0.1", "25078", "/readyz"},
	} {
		probe := daemonSet(t, in).Spec.Template.Spec.Containers[0].ReadinessProbe
		var got []string
		if probe.Exec != nil {
			got = probe.Exec.Command
		} else {
			got = []string{probe.HTTPGet.Host, probe.HTTPGet.Port.String(), probe.HTTPGet.Path}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", in, d)
		}
	}
}

// The API server refuses both, and says so only when everything else is installed.
func TestUpdateStrategy_surgeAndUnavailable_oneIsZero(t *testing.T) {
	for in, said := range map[string]string{
		"maxUnavailable: 1":    "maxSurge=10% and maxUnavailable=1",
		"maxUnavailable: null": "maxSurge=10% and maxUnavailable=1",
		"maxSurge: 0":          "maxSurge=0 and maxUnavailable=0",
	} {
		want := said + ": the API server wants one of them to be 0, and not both"
		if _, err := install(t, "updateStrategy: {rollingUpdate: {"+in+"}}"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", in, err, want)
		}
	}
	daemonSet(t, "updateStrategy: {rollingUpdate: {maxSurge: null, maxUnavailable: null}}")
}

// The agents of a fleet restart for a new program only.
func TestAgentsPods_anotherVersionOfTheChart_areTheSame(t *testing.T) {
	labels := daemonSet(t, "{}").Spec.Template.Labels
	want := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

// Two agents cannot listen at one address of the node: an update would wait for ever.
func TestAnAddressOfTheNodeTakesUpdatesWithoutSurge(t *testing.T) {
	for _, in := range []string{
		"healthAddr: 127.0.0.1:15078", "healthAddr: ':15078'\nupdateStrategy: {rollingUpdate: {maxSurge: 10%, maxUnavailable: 0}}",
	} {
		if _, err := install(t, in); err == nil || !strings.Contains(err.Error(), "two agents of a node cannot both listen there; set maxSurge=0") {
			t.Errorf("%q: %v", in, err)
		}
	}
}
