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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// The proxy manager's part of the contract with users.
const (
	keySidecar     = "pod-network-controller.istio.io/sidecar"
	managedProxy   = "managed-proxy"
	sidecarRoot    = "run/istio-pod-network-controller/sidecars"
	profilesRoot   = "var/lib/istio-pod-network-controller/profiles"
	missingImage   = "localhost/no-such-image:1"
	sidecarsImage  = "localhost/haproxy:1"
	proxyNotReady  = "ProxyNotReady"
	proxyRefused   = "ProxyRefused"
	proxyFailed    = "ProxyFailed"
	sidecarVersion = "v1alpha1"
)

// sidecarKind returns the resource of one of the proxy manager's kinds.
func sidecarKind(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "pod-network-controller.istio.io", Version: sidecarVersion, Resource: plural}
}

// managed is a namespace whose pods have proxies of a profile of their own.
type managed struct {
	*space
	profile string
	objects dynamic.Interface
}

// newManaged makes a namespace and a profile for its pods alone: the sample's, as changed.
func newManaged(t testing.TB, change ...func(spec map[string]any)) managed {
	t.Helper()
	return newManagedFrom(t, "proxy-profile.yaml", change...)
}

// newManagedFrom is newManaged with another sample.
func newManagedFrom(t testing.TB, sample string, change ...func(spec map[string]any)) managed {
	t.Helper()
	s := newSpace(t, nil)
	objects, err := dynamic.NewForConfig(s.rest)
	must(t, err)
	m := managed{s, s.name, objects}
	m.createProfileFrom(t, sample, change...)
	t.Cleanup(func() { m.deleteProfile(t) })
	s.annotateSelf(t, map[string]any{keySidecar: s.name})
	return m
}

func (m managed) deleteProfile(t testing.TB) {
	t.Helper()
	err := m.objects.Resource(sidecarKind("proxyprofiles")).Delete(context.WithoutCancel(t.Context()), m.profile, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

func (m managed) createProfile(t testing.TB, change ...func(spec map[string]any)) {
	t.Helper()
	m.createProfileFrom(t, "proxy-profile.yaml", change...)
}

// createProfileFrom makes the profile: that of a sample, as changed. The changes get what it says of its kind of proxy, and the network.
func (m managed) createProfileFrom(t testing.TB, sample string, change ...func(spec map[string]any)) {
	t.Helper()
	text, err := os.ReadFile(sampleFile(sample))
	must(t, err)
	profile := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal(text, &profile.Object))
	profile.SetName(m.profile)
	spec := profile.Object["spec"].(map[string]any)
	spec["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": m.name}}
	kind, settings := settingsOf(spec)
	settings["network"] = spec["network"]
	for _, f := range change {
		f(settings)
	}
	if spec["network"] = settings["network"]; spec["network"] == nil {
		delete(spec, "network")
	}
	delete(settings, "network")
	// On busy cores a start takes its time, and one that is given up is followed by another epoch than the tests wait for.
	if readiness, _ := settings["readiness"].(map[string]any); kind != "shared" && readiness["startSeconds"] == nil {
		readiness["startSeconds"] = int64(patience / time.Second)
	}
	_, err = m.objects.Resource(sidecarKind("proxyprofiles")).Create(t.Context(), profile, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	must(t, err)
}

// settingsOf returns which kind of proxy a profile is for, and what it says of it.
func settingsOf(spec map[string]any) (kind string, settings map[string]any) {
	for _, kind = range []string{"container", "istio", "shared"} {
		if settings, is := spec[kind].(map[string]any); is {
			return kind, settings
		}
	}
	return "", nil
}

// updateOf returns how the proxies of a profile are upgraded.
func updateOf(settings map[string]any) map[string]any {
	if settings["update"] == nil {
		settings["update"] = map[string]any{}
	}
	return settings["update"].(map[string]any)
}

// handsOver has the proxies hand over in a way without settings.
func handsOver(settings map[string]any, way string) {
	updateOf(settings)["handover"] = map[string]any{way: map[string]any{}}
}

// drainsLong lets old proxies finish their connections for ten minutes.
func drainsLong(settings map[string]any) { updateOf(settings)["drainSeconds"] = int64(600) }

// patchProfile changes what the profile says of its kind of proxy.
func (m managed) patchProfile(t testing.TB, settings map[string]any) {
	t.Helper()
	profile, err := m.objects.Resource(sidecarKind("proxyprofiles")).Get(t.Context(), m.profile, metav1.GetOptions{})
	must(t, err)
	kind, _ := settingsOf(profile.Object["spec"].(map[string]any))
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{kind: settings}})
	must(t, err)
	_, err = m.objects.Resource(sidecarKind("proxyprofiles")).Patch(t.Context(), m.profile, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// newVersion changes the profile so that its proxies are upgraded.
func (m managed) newVersion(t testing.TB, version string) {
	t.Helper()
	m.patchProfile(t, map[string]any{"env": []any{map[string]any{"name": "VERSION", "value": version}}})
}

// sidecar returns the status of a pod's ManagedProxy.
func (m managed) sidecar(ctx context.Context, pod string) (map[string]any, error) {
	sidecar, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	status, _, err := unstructured.NestedMap(sidecar.Object, "status")
	return status, err
}

// awaitSidecar waits until a pod's ManagedProxy is as check wants it.
func (m managed) awaitSidecar(t testing.TB, pod string, check func(status map[string]any) error) {
	t.Helper()
	eventually(t, "the ManagedProxy "+pod, func(ctx context.Context) error {
		status, err := m.sidecar(ctx, pod)
		if err != nil {
			return err
		}
		return check(status)
	})
}

// isServing wants a proxy of an epoch to serve, and no other state.
func isServing(epoch int64) func(map[string]any) error {
	return func(status map[string]any) error {
		if status["state"] != "Running" || status["ready"] != true || status["epoch"] != epoch {
			return fmt.Errorf("it says %v", status)
		}
		return nil
	}
}

// says wants a message with some words, and the proxy to be ready or not.
func says(ready bool, words ...string) func(map[string]any) error {
	return func(status map[string]any) error {
		text := fmt.Sprint(status["message"])
		for _, word := range words {
			if !strings.Contains(text, word) || status["ready"] != ready {
				return fmt.Errorf("want ready %t and %q, it says %v", ready, word, status)
			}
		}
		return nil
	}
}

// plainPod has nothing of the mesh in its spec but the readiness gate.
func plainPod(name string) *corev1.Pod {
	pod := newPod(name, nil, appContainer())
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: condition}}
	return pod
}

// startManaged makes a pod and waits until it is ready.
func (m managed) startManaged(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	m.create(t, pod)
	return m.await(t, pod.Name, isReadyNow)
}

func isReadyNow(pod *corev1.Pod) error {
	if !isReady(pod) {
		return fmt.Errorf("it is not ready: %v", pod.Status.Conditions)
	}
	return nil
}

// awaitListening waits until the pod's application listens: the kubelet calls a container without probes ready as soon as it runs.
func (m managed) awaitListening(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	sockets := fmt.Sprintf("/proc/%d/net/tcp6", m.containerPID(t, pod, "app"))
	listener := fmt.Sprintf(":%04X %032d:0000 0A", appPort, 0)
	eventually(t, "the application of "+pod.Name, func(context.Context) error {
		text, err := os.ReadFile(sockets)
		if err == nil && !strings.Contains(string(text), listener) {
			err = errors.New("it does not listen")
		}
		return err
	})
}

// wantProxied wants connections of both directions to pass the proxy.
func (m managed) wantProxied(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	f := families()[0]
	m.awaitListening(t, pod)
	var a answer
	must(t, request(t.Context(), at(pod, f, appPort), "/", &a))
	if a.Banner != pod.Name || a.peer() != f.passthrough {
		t.Errorf("%s answered and saw %s, want the proxy", a.Banner, a.Peer)
	}
	lines := func() int { return strings.Count(m.proxyLog(t, pod), "outbound epoch=") } // logs of proxies that failed may go meanwhile
	before := lines()
	if a = m.askFrom(t, pod, f.at(1, worldPort)); a.Banner != "world" {
		t.Errorf("%q answered, want the world", a.Banner)
	}
	eventually(t, "the proxy's line", func(context.Context) error {
		if lines() <= before {
			return errors.New("there is none")
		}
		return nil
	})
}

// proxyLog joins the logs of a pod's proxies.
func (m managed) proxyLog(t testing.TB, pod *corev1.Pod) string {
	t.Helper()
	return m.containerLog(t, pod, managedProxy)
}

// containerLog joins the logs of a container of a pod, those of its earlier starts first.
func (c *cluster) containerLog(t testing.TB, pod *corev1.Pod, name string) string {
	t.Helper()
	return c.logs(t, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), name)
}

// logs joins the logs of a container of the pods whose directories match a pattern.
func (c *cluster) logs(t testing.TB, pods, container string) (out string) {
	t.Helper()
	files := c.logFiles(t, pods, container)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		out += files[file]
	}
	return out
}

// logFiles returns the logs of a container of the pods whose directories match a pattern, by file.
func (c *cluster) logFiles(t testing.TB, pods, container string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.node.NodeRoot, "var/log/pods", pods, container, "*.log"))
	must(t, err)
	out := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) { // removed just now
			continue
		}
		must(t, err)
		out[file] = string(text)
	}
	return out
}

// proxies returns the containers of the proxies of the namespace's pods, in any state.
func (m managed) proxies(ctx context.Context) ([]*criv1.Container, error) {
	list, err := m.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.namespace": m.name, "io.kubernetes.container.name": managedProxy},
	}})
	return list.GetContainers(), err
}

// wantNothingLeft waits until no container, directory, object and cgroup of the namespace's proxies is left. uids are those of its pods.
func (m managed) wantNothingLeft(t *testing.T, uids []types.UID) {
	t.Helper()
	eventually(t, "the end of all proxies", func(ctx context.Context) error {
		containers, err := m.proxies(ctx)
		if err != nil || len(containers) > 0 {
			return fmt.Errorf("%d containers are left, error %w", len(containers), err)
		}
		objects, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).List(ctx, metav1.ListOptions{})
		if err != nil || len(objects.Items) > 0 {
			return fmt.Errorf("%d ManagedProxies are left, error %w", len(objects.Items), err)
		}
		homes, err := os.ReadDir(filepath.Join(m.node.NodeRoot, sidecarRoot))
		for _, home := range homes {
			for _, uid := range uids {
				if strings.HasPrefix(home.Name(), string(uid)) {
					return fmt.Errorf("directory %s is left", home.Name())
				}
			}
		}
		return errors.Join(err, m.strayCgroups(ctx, uids))
	})
}

// An application without anything in its spec runs in the mesh.
//
//e2e:rounds core nri
func TestSidecarTakesTheConnectionsOfAPlainPod(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := m.startManaged(t, plainPod("plain"))
	m.awaitSidecar(t, "plain", isServing(0))
	if n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers); n != 1 {
		t.Errorf("the pod has %d containers in its spec", n)
	}
	m.wantProxied(t, pod)
	m.wantRefused(t, pod, families()[1])
}
