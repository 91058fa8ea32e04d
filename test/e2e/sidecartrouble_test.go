package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// A version that cannot be started leaves what runs alone, and says why where people look.
//
//e2e:rounds nri
func TestSidecarWithABadImageKeepsTheOldProxy(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("kept"))
	m.patchProfile(t, map[string]any{"image": missingImage})
	m.awaitSidecar(t, "kept", says(true, missingImage, "cannot be pulled"))
	m.awaitWarning(t, pod, proxyFailed)
	m.awaitCounts(t, map[string]any{"pods": int64(1), "upgraded": int64(0), "failed": int64(1), "nodeCount": int64(1), "nodesPaused": int64(1)})
	m.wantProxied(t, pod)
	if now := m.await(t, "kept", isReadyNow); conditionOf(now).Reason != "Initialized" {
		t.Errorf("the condition is %+v", conditionOf(now))
	}
	m.patchProfile(t, map[string]any{"image": sidecarsImage, "env": []any{map[string]any{"name": "MENDED", "value": "1"}}})
	m.awaitSidecar(t, "kept", isServing(1))
	m.awaitCounts(t, map[string]any{"pods": int64(1), "upgraded": int64(1), "failed": int64(0), "nodeCount": int64(1), "nodesPaused": int64(0)})
}

// awaitCounts waits until the profile's status counts so of its present version.
func (m managed) awaitCounts(t *testing.T, want map[string]any) {
	t.Helper()
	eventually(t, "the profile's status", func(ctx context.Context) error {
		profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(ctx, m.profile, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, err := unstructured.NestedMap(profile.Object, "status")
		if err != nil {
			return err
		}
		for key, value := range want {
			if status[key] != value || status["observedGeneration"] != profile.GetGeneration() {
				return fmt.Errorf("want %v of generation %d, it says %v", want, profile.GetGeneration(), status)
			}
		}
		return nil
	})
}

// awaitWarning waits for a warning about a pod.
func (s *space) awaitWarning(t *testing.T, pod *corev1.Pod, reason string) {
	t.Helper()
	eventually(t, "the event "+reason, func(ctx context.Context) error {
		list, err := s.api.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID) + ",reason=" + reason})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}

//e2e:rounds nri
func TestSidecarThatCrashesComesBack(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("crashing"))
	for i := range int64(2) {
		m.killProxy(t, pod)
		m.awaitSidecar(t, "crashing", func(status map[string]any) error {
			return errors.Join(isServing(i+1)(status), says(true, "exit code 137")(status), equal(status["restarts"], i+1))
		})
	}
	m.await(t, "crashing", isReadyNow)
	m.wantProxied(t, pod)
}

func equal(got any, want int64) error {
	if got != want {
		return fmt.Errorf("got %v, want %d", got, want)
	}
	return nil
}

// A profile that is taken away by mistake takes nothing else away.
//
//e2e:rounds nri
func TestSidecarOutlivesItsProfile(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("orphan"))
	profiles := m.objects.Resource(sidecarKind("proxyprofiles"))
	must(t, profiles.Delete(t.Context(), m.profile, metav1.DeleteOptions{}))
	m.awaitSidecar(t, "orphan", says(true, "there is no ProxyProfile"))
	m.annotate(t, "orphan", map[string]any{keyExcludeInbound: "9100"}) // the agent looks at the pod
	late := m.create(t, plainPod("late"))
	m.await(t, "late", hasReason(proxyRefused))
	m.wantProxied(t, pod)
	if now := m.await(t, "orphan", isReadyNow); conditionOf(now).Reason != "Initialized" {
		t.Errorf("the condition is %+v", conditionOf(now))
	}
	m.createProfile(t, func(spec map[string]any) { spec["env"] = []any{map[string]any{"name": "SECOND", "value": "1"}} })
	m.awaitSidecar(t, "orphan", isServing(1))
	m.await(t, late.Name, isReadyNow)
}

func hasReason(reason string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if got := conditionOf(pod); got.Reason != reason {
			return fmt.Errorf("the condition is %+v", got)
		}
		return nil
	}
}

// What cannot have a proxy starts without one, is not ready, and says what to do.
//
//e2e:rounds nri
func TestSidecarIsRefused(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	id := int64(1337)
	for name, change := range map[string]func(*corev1.Pod){
		"proxy-user": func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &id} },
		"host-pid":   func(pod *corev1.Pod) { pod.Spec.HostPID = true },
		"taken-port": func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 15006}} },
		"no-profile": func(pod *corev1.Pod) { pod.Annotations = map[string]string{keySidecar: "no-such-profile"} },
		"elsewhere":  func(pod *corev1.Pod) { pod.Annotations = map[string]string{keySidecar: otherProfile(t)} },
	} {
		pod := plainPod(name)
		change(pod)
		m.create(t, pod)
	}
	for _, name := range []string{"proxy-user", "host-pid", "taken-port", "no-profile", "elsewhere"} {
		pod := m.await(t, name, hasReason(proxyRefused))
		m.await(t, name, isRunning)
		m.awaitWarning(t, pod, proxyRefused)
		m.wantNoRules(t, pod)
	}
	if containers, err := m.proxies(t.Context()); err != nil || len(containers) > 0 {
		t.Errorf("%d proxies were made, error %v", len(containers), err)
	}
}

// otherProfile makes a profile that another namespace may use, and returns its name.
func otherProfile(t *testing.T) string {
	t.Helper()
	return newManaged(t).profile
}

//e2e:rounds nri
func TestSidecarNoneOptsOut(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("leaving"))
	never := plainPod("never")
	never.Annotations = map[string]string{keySidecar: "none"}
	out := m.startManaged(t, never)
	m.wantNoRules(t, out)

	m.annotate(t, "leaving", map[string]any{keySidecar: "none"})
	m.await(t, "leaving", hasStatus(statusRemoved))
	m.wantNoRules(t, pod)
	var a answer
	must(t, request(t.Context(), at(pod, families()[0], appPort), "/", &a))
	if a.peer() == families()[0].passthrough {
		t.Error("the proxy still takes connections")
	}
	m.awaitNoProxies(t)
	m.wantNothingLeft(t, []types.UID{pod.UID})
	m.await(t, "leaving", isReadyNow)
	m.annotate(t, "leaving", map[string]any{keySidecar: nil})
	m.awaitSidecar(t, "leaving", isServing(0))
	m.await(t, "leaving", isReadyNow)
	m.wantProxied(t, pod)
}

// sidecarChurn is how many pods with proxies come and go, unless E2E_SIDECAR_CHURN says otherwise.
const sidecarChurn = 10

// Whatever pods come and go, and whenever: nothing stays.
//
//e2e:rounds nri
func TestSidecarsOfDeletedPodsLeaveNothing(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	const atOnce = 10
	var uids []types.UID
	n, now := amount(t, "E2E_SIDECAR_CHURN", sidecarChurn), int64(0)
	for made := 0; made < n; made += atOnce {
		var wave []*corev1.Pod
		for i := range min(atOnce, n-made) {
			wave = append(wave, m.create(t, plainPod(fmt.Sprintf("brief-%d", made+i))))
		}
		for i, pod := range wave {
			uids = append(uids, pod.UID)
			if i%2 == 0 { // the others are deleted whatever they have come to
				m.await(t, pod.Name, isReadyNow)
			}
			if len(uids) == n-1 { // its profile is gone as well
				must(t, m.objects.Resource(sidecarKind("proxyprofiles")).Delete(t.Context(), m.profile, metav1.DeleteOptions{}))
			} else if i%4 == 0 && len(uids) < n { // in the middle of an upgrade
				m.newVersion(t, fmt.Sprint(made+i))
			}
			must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
		}
	}
	m.wantNothingLeft(t, uids)
	t.Logf("%d pods came and went", n)
}

// A sandbox that is made anew gets rules and a proxy of its own.
//
//e2e:rounds nri
func TestSidecarInANewSandbox(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("reborn"))
	old, home := m.sandboxOf(t, pod), m.home(t, pod)
	m.killSandbox(t, old)
	m.awaitSidecar(t, "reborn", func(status map[string]any) error {
		if status["sandbox"] == old.ID || status["ready"] != true {
			return fmt.Errorf("it says %v", status)
		}
		return equal(status["restarts"], 0)
	})
	eventually(t, "the end of the old sandbox's directory", func(context.Context) error {
		if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is left: %w", home, err)
		}
		return nil
	})
	pod = m.awaitAnswer(t, "reborn")
	m.await(t, "reborn", isReadyNow)
	m.wantProxied(t, pod)
}
