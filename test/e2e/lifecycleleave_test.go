package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// What docs/removal.md says is left of an installation with proxies and the CNI plugin.
const (
	leftPlugin    = "/opt/cni/bin/istio-pod-network-cni"
	leftDirectory = "/run/istio-pod-network-controller"
)

// Each way to leave is gone, one after the other, on one installation: a profile is removed, the proxies are switched off while one runs, the
// chart is removed, its definitions are. After each the node is compared with what it was before the chart was ever installed.
//
// Not parallel: it is alone on the node.
//
//e2e:rounds lifecycle
func TestLifecycleEachWayToLeave(t *testing.T) {
	began := time.Now()
	step := func(what string) { t.Helper(); t.Logf("%s (after %s)", what, time.Since(began).Round(time.Second)) }
	r := newRelease(t)
	s := newQuietSpace(t, nil)
	s.remove(t, r)
	// What proxies of other tests have left, shared ones too.
	if cleaned := finish(t, program, cleaning(s.node.NodeRoot, s.node.RuntimeSocket)...); cleaned.code != 0 {
		t.Errorf("clean: %+v", cleaned)
	}
	fresh := freshTraces(t)
	documented := []string{leftPlugin, leftDirectory, leftDirectory + "/sidecars", leftDirectory + "/shared", "/run/crio", "/var/lib/istio-pod-network-controller", "/" + profilesRoot}
	quick := fresh.of(kindFiles, kindMounts, kindLinks, kindRules, kindProcesses, kindStrays)
	s.wantTraces(t, "before", quick, documented...) // of the installations of other tests
	r.do(t, "upgrade", r.now, "--install", "--create-namespace", "--set", "hooks.cni.mode=install", "--set", "proxies.enabled=true")
	image := s.agent(t).Spec.Containers[0].Image
	first, second := newManaged(t), newManaged(t)
	first.create(t, plainPod("one"))
	two := second.startManaged(t, plainPod("two"))
	one := first.await(t, "one", isReadyNow)
	second.wantProxied(t, two)

	step("a profile is removed, after its pod was rolled")
	first.roll(t, one)
	first.removeProfile(t)
	first.wantNothingLeft(t, []types.UID{one.UID})

	step("the proxies are switched off, with one that runs")
	r.do(t, "upgrade", r.now, "--reset-then-reuse-values", "--set", "proxies.enabled=false")
	second.wantProxied(t, two)
	s.wantChecked(t, "proxies-unattended", "warn", "proxies.enabled=false): "+second.name+"/two")
	home := second.homeName(t, two)
	s.wantCheckedNode(t, "ok", home)
	second.roll(t, two)
	step("sidecar clean removes what that one has left")
	s.wantClean(t, image, home, second.profile)
	step("nothing else is left of the proxies")
	s.wantTraces(t, "off", fresh.of(kindMounts, kindLinks, kindRules, kindStrays))
	s.wantEmpty(t, sidecarRoot)
	s.wantEmpty(t, profilesRoot)

	step("the chart is removed, and then its definitions")
	s.remove(t, r)
	s.wantChecked(t, "leftover-objects", "warn", "definitions of ProxyProfiles")
	second.removeProfile(t)
	s.removeDefinitions(t, second.objects)
	s.wantCheckedNode(t, "warn", "no agent runs here, and the node has of one: 1 file ("+leftPlugin+")")
	step("nothing is left but what is documented")
	s.wantTraces(t, "removed", fresh, documented...)
}

func (m managed) removeProfile(t *testing.T) {
	t.Helper()
	must(t, m.objects.Resource(sidecarKind("proxyprofiles")).Delete(t.Context(), m.profile, metav1.DeleteOptions{}))
}

// roll replaces a pod by one without the mesh, as a rollout does once the namespace no longer chooses a profile.
func (s *space) roll(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.annotateSelf(t, map[string]any{keySidecar: nil})
	must(t, s.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
	s.start(t, newPod(pod.Name+"-rolled", nil, appContainer()))
	eventually(t, "the end of pod "+pod.Name, func(ctx context.Context) error {
		_, err := s.pods().Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// homeName is the directory of a pod's proxy as the node has it.
func (m managed) homeName(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(m.node.NodeRoot, sidecarRoot, string(pod.UID)+".*"))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("pod %s has the directories %q, want one", pod.Name, found)
	}
	return strings.TrimPrefix(found[0], m.node.NodeRoot)
}

// wantTraces waits until the node has what it had, of the same kinds, and no more files than are allowed: each by its name, so that a directory that
// is allowed must be empty.
func (s *space) wantTraces(t *testing.T, when string, fresh traces, allowed ...string) {
	t.Helper()
	var left []string
	within(t, patience, "the node "+when, func(ctx context.Context) error {
		now, err := s.traces(ctx)
		if err != nil {
			return err
		}
		now = now.of(slices.Collect(maps.Keys(fresh))...)
		var wrong []string
		wrong, left = compare(fresh, now, allowed)
		if len(wrong) > 0 {
			return fmt.Errorf("%d differences: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 20)], "; "))
		}
		return nil
	})
	t.Logf("%s: left, as the docs say: %q", when, left)
}

// wantEmpty wants a directory of the node with nothing in it.
func (s *space) wantEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.node.NodeRoot, dir))
	if err != nil || len(entries) > 0 {
		t.Errorf("%s has %v, error %v", dir, entries, err)
	}
}

// compare returns what differs, and what is allowed to be left.
func compare(before, after traces, allowed []string) (wrong, left []string) {
	for _, kind := range slices.Sorted(maps.Keys(after)) {
		for _, name := range slices.Sorted(maps.Keys(after[kind])) {
			was, there := before[kind][name]
			switch {
			case !there && kind == kindFiles && slices.Contains(allowed, name):
				left = append(left, name)
			case !there:
				wrong = append(wrong, fmt.Sprintf("%s: %q is left (%s)", kind, name, after[kind][name]))
			case was != after[kind][name]:
				wrong = append(wrong, fmt.Sprintf("%s: %q is %s, was %s", kind, name, after[kind][name], was))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before[kind])) {
			if _, there := after[kind][name]; !there {
				wrong = append(wrong, fmt.Sprintf("%s: %q is gone", kind, name))
			}
		}
	}
	return wrong, left
}

// wantChecked wants `check` to say something.
func (s *space) wantChecked(t *testing.T, name, level, words string) {
	t.Helper()
	wantResult(t, name, level, words, "check", "-o", "json")
}

// wantCheckedNode wants `check --node` to name something that is left, or in use.
func (s *space) wantCheckedNode(t *testing.T, level, words string) {
	t.Helper()
	wantResult(t, "node-leftovers", level, words, "check", "--node", "--root", s.node.NodeRoot, "-o", "json")
}

func wantResult(t *testing.T, name, level, words string, args ...string) {
	t.Helper()
	eventually(t, strings.Join(args, " "), func(context.Context) error {
		got := finish(t, program, args...) //nolint:contextcheck // it has the test's
		var report struct {
			Results []struct{ Check, Level, Message string }
		}
		if err := json.Unmarshal([]byte(got.out), &report); err != nil {
			return fmt.Errorf("%w: %s%s", err, got.out, got.errOut)
		}
		for _, r := range report.Results {
			if r.Check == name && r.Level == level && strings.Contains(r.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("want %s: %s with %q: %s", level, name, words, got.out)
	})
}

// wantClean wants `sidecar clean` to remove what a proxy has left, and nothing else: by a command as docs/removal.md has it, and dry before.
func (s *space) wantClean(t *testing.T, image, home, profile string) {
	t.Helper()
	routes, good, root := "/"+sidecarRoot+"/routes", "/"+profilesRoot+"/"+profile+".json", s.node.NodeRoot
	dry := finish(t, program, append(cleaning(root, s.node.RuntimeSocket), "--dry-run")...)
	if want := fmt.Sprintf("would be removed: %[1]s%[2]s\nwould be removed: %[1]s%[3]s\nwould be removed: %[1]s%[4]s\n", root, home, routes, good); dry.out != want {
		t.Errorf("dry: %+v, want %s", dry, want)
	}
	if _, err := os.Stat(root + home); err != nil {
		t.Errorf("after a dry run: %v", err)
	}
	if out, want := s.onNode(t, image, cleaning("/host", s.node.RuntimeSocket)...), fmt.Sprintf("removed /host%s\nremoved /host%s\nremoved /host%s\n", home, routes, good); out != want {
		t.Errorf("clean: %s, want %s", out, want)
	}
}

// cleaning is the command that removes what proxies have left on the node whose root is there.
func cleaning(root, socket string) []string {
	return []string{
		"sidecar", "clean", "--runtime-endpoint", "unix://" + root + socket,
		"--sidecar-root", root + "/" + sidecarRoot, "--shared-root", root + leftDirectory + "/shared", "--sidecar-profiles", root + "/" + profilesRoot,
	}
}

// onNode runs the agent's program on the node in a pod that `kubectl debug` makes, and returns what it has printed.
func (s *space) onNode(t *testing.T, image string, args ...string) string {
	t.Helper()
	made := finish(t, "kubectl", append([]string{
		"debug", "-n", s.name, "node/" + s.node.NodeName, "--profile=sysadmin", "--image-pull-policy=IfNotPresent", "--image=" + image, "--", "/" + agentName,
	}, args...)...)
	_, name, _ := strings.Cut(made.out+made.errOut, "debugging pod ")
	name, _, _ = strings.Cut(name, " ")
	if made.code != 0 || name == "" {
		t.Fatalf("kubectl debug: %+v", made)
	}
	defer func() {
		must(t, s.pods().Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
	}()
	s.await(t, name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	raw, err := s.pods().GetLogs(name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	must(t, err)
	return string(raw)
}

// removeDefinitions removes the proxy manager's kinds, as docs/removal.md says.
func (s *space) removeDefinitions(t *testing.T, objects dynamic.Interface) {
	t.Helper()
	for _, kind := range []string{"proxyprofiles", "managedproxies"} {
		definitions := objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		must(t, definitions.Delete(t.Context(), kind+".pod-network-controller.istio.io", metav1.DeleteOptions{}))
	}
}
