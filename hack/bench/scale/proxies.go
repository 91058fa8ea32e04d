package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/internal/intent"
)

const (
	// Files of the checkout, in which hack/bench.sh starts this program.
	definitions   = "chart/istio-pod-network-controller/crds/*.yaml"
	sampleProfile = "config/samples/proxy-profile.yaml"
	// rolledAtOnce is how many proxies are upgraded at once.
	rolledAtOnce = 5
	// idleWindow is long enough for two of the agent's looks at all containers.
	idleWindow = time.Minute
	// proxyPatience is how long the node's proxies may take until they are ready, or of a new version.
	proxyPatience = 5 * time.Minute
)

// Proxies measures what proxies cost the agent: the same pods, first redirected only, then half of them with a proxy, then all, and at last a roll-out
// over these. The halves are compared to tell what each idle proxy costs: the first ones also cost what does not depend on their number, such as the
// garbage that there may be until the next collection.
func (b *Bench) Proxies(ctx context.Context) ([]table.Row, error) {
	return b.onNode(ctx, 1, false, func(n *node) (rows []table.Row, err error) {
		for _, dir := range []string{n.root(), n.shared(), "/var/log"} { // in memory; this program's mounts are its own
			if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
				return nil, fmt.Errorf("mount memory on %s: %w", dir, err)
			}
			defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
		}
		profile, err := n.server.allowSidecars(ctx)
		if err != nil {
			return nil, err
		}
		if err := n.fill(ctx, n.proxies, withoutProxy); err != nil {
			return nil, err
		}
		var seen []idleAgent
		for _, proxies := range []int{0, n.proxies / 2, n.proxies} {
			if err := n.choose(ctx, profile, proxies); err != nil {
				return nil, err
			}
			one, err := n.idle(ctx, proxies)
			if err != nil {
				return nil, err
			}
			seen = append(seen, one)
		}
		rows, err = n.rollOut(ctx, profile)
		return append(n.costs(seen[0], seen[1], seen[2]), rows...), err
	})
}

func (n *node) root() string   { return filepath.Join(n.runtime.Dir, "sidecars") }
func (n *node) shared() string { return filepath.Join(n.runtime.Dir, "shared") }

// withoutProxy has a pod ask by itself, and gives it no proxy in its spec.
func withoutProxy(pod *corev1.Pod) {
	pod.Annotations[intent.KeyInitialize] = "true"
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == intent.ProxyContainer {
			c.Name = "helper"
		}
	}
}

// choose has so many pods choose a profile.
func (n *node) choose(ctx context.Context, profile string, pods int) error {
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, intent.KeySidecar, profile)
	return each(ctx, pods, func(ctx context.Context, i int) error {
		_, err := n.server.admin.CoreV1().Pods(namespaceName(0)).Patch(ctx, podName(i), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// idleAgent is what an agent takes that has nothing to do: KiB of memory in use, and, a minute, calls of the runtime and requests to the API server.
type idleAgent struct {
	usage
	inUse, load, calls, requests float64
}

// idle has an agent with the proxy manager make so many proxies, and measures the next one, which finds them, when it is calm.
func (n *node) idle(ctx context.Context, proxies int) (seen idleAgent, err error) {
	maker, err := n.manage(ctx, proxies)
	if err != nil {
		return seen, err
	}
	if err := maker.stop(); err != nil {
		return seen, err
	}
	a, err := n.manage(ctx, proxies)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	if err := n.settle(ctx, settled); err != nil {
		return seen, err
	}
	inUse, err := a.inUse(ctx)
	if err != nil {
		return seen, err
	}
	before, errBefore := n.look(ctx, a)
	errSettle := n.settle(ctx, idleWindow)
	seen, err = n.look(ctx, a)
	seen.inUse, seen.load = inUse, seen.usage.load(before.usage)
	seen.calls, seen.requests = (seen.calls-before.calls)/idleWindow.Minutes(), (seen.requests-before.requests)/idleWindow.Minutes()
	return seen, errors.Join(errBefore, errSettle, err)
}

// look returns what an agent has used so far.
func (n *node) look(ctx context.Context, a *agent) (seen idleAgent, err error) {
	m, errMetrics := a.metrics(ctx)
	seen.usage, err = a.usage()
	seen.calls, seen.requests = float64(n.runtime.Calls.Load()), m.requests()
	return seen, errors.Join(errMetrics, err)
}

// manage starts an agent with the proxy manager, and waits until so many proxies are ready.
func (n *node) manage(ctx context.Context, proxies int) (*agent, error) {
	a, err := n.startAgent(ctx, "--sidecars", "--sidecar-root="+n.root(), "--sidecar-secrets="+n.runtime.Dir, "--shared-root="+n.shared())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(a.awaitProgrammed(ctx, n.made), n.awaitProxies(ctx, proxies, 0)); err != nil {
		return nil, errors.Join(err, a.stop())
	}
	return a, nil
}

// awaitProxies waits until so many ManagedProxies say that their proxies of at least an epoch are ready.
func (n *node) awaitProxies(ctx context.Context, proxies int, epoch int64) error {
	objects, err := n.server.objects()
	if err != nil {
		return err
	}
	return eventually(ctx, proxyPatience, fmt.Sprintf("%d proxies are ready", proxies), func(ctx context.Context) error {
		list, err := objects.Resource(v1alpha1.GroupVersion().WithResource("managedproxies")).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready, why := 0, ""
		for _, s := range list.Items {
			is, _, _ := unstructured.NestedBool(s.Object, "status", "ready")
			if of, _, _ := unstructured.NestedInt64(s.Object, "status", "epoch"); is && of >= epoch {
				ready++
			} else {
				why, _, _ = unstructured.NestedString(s.Object, "status", "message")
			}
		}
		if ready != proxies {
			return fmt.Errorf("%d are: %s", ready, why)
		}
		return nil
	})
}

// rollOut changes the profile, and counts what the agent asks the runtime until all proxies are of the new version, and the old ones gone.
func (n *node) rollOut(ctx context.Context, profile string) (rows []table.Row, err error) {
	a, err := n.manage(ctx, n.proxies)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	if err := n.settle(ctx, settled); err != nil {
		return nil, err
	}
	objects, err := n.server.objects()
	if err != nil {
		return nil, err
	}
	before, errBefore := n.look(ctx, a)
	patch := []byte(`{"spec": {"container": {"env": [{"name": "VERSION", "value": "2"}]}}}`)
	_, err = objects.Resource(v1alpha1.GroupVersion().WithResource("proxyprofiles")).Patch(ctx, profile, types.MergePatchType, patch, metav1.PatchOptions{})
	if err := errors.Join(errBefore, err); err != nil {
		return nil, err
	}
	err = eventually(ctx, proxyPatience, "the old proxies are gone", func(context.Context) error {
		if old, all := n.runtime.Versions(); old > 0 || all != n.proxies {
			return fmt.Errorf("%d of %d are not", old, all)
		}
		return nil
	})
	err = errors.Join(err, n.awaitProxies(ctx, n.proxies, 1))
	after, errAfter := n.look(ctx, a)
	of := fmt.Sprintf("a roll-out of %d proxies, %d at once", n.proxies, rolledAtOnce)
	return []table.Row{
		table.New(of+": calls of the runtime for a proxy", "count", (after.calls-before.calls)/float64(n.proxies), 0),
		table.New(of+": CPU of the agent for a proxy", "ms", milliseconds(after.cpu-before.cpu)/float64(n.proxies), 0),
		table.New(of+": duration", "s", after.at.Sub(before.at).Seconds(), 0),
	}, errors.Join(err, errAfter)
}

// objects returns a client for kinds that have no type here.
func (s *server) objects() (dynamic.Interface, error) { return dynamic.NewForConfig(s.plane.Config) }

// allowSidecars makes the proxy manager's kinds, gives agents what the chart gives them for it, and makes the sample's profile, for
// every namespace. It returns the profile's name.
func (s *server) allowSidecars(ctx context.Context) (profile string, err error) {
	err = s.allow(ctx, "sidecars", []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"proxyprofiles"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"managedproxies"}, Verbs: []string{"create", "patch", "delete"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"managedproxies/status", "proxyprofiles/status"}, Verbs: []string{"patch"}},
	})
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(definitions)
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("there is no %s here: start this in the checkout (%w)", definitions, err)
	}
	for _, file := range files {
		kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		if _, err := s.create(ctx, file, kind, nil); err != nil {
			return "", err
		}
	}
	err = eventually(ctx, time.Minute, "the API server has the proxy manager's kinds", func(ctx context.Context) (err error) {
		profile, err = s.create(ctx, sampleProfile, v1alpha1.GroupVersion().WithResource("proxyprofiles"), map[string]any{
			"namespaceSelector": map[string]any{}, "container.update.maxParallel": int64(rolledAtOnce),
		})
		return err
	})
	return profile, err
}

// create makes the object of a file, with other fields of spec, by their paths, as far as they are given. It returns its name.
func (s *server) create(ctx context.Context, file string, kind schema.GroupVersionResource, spec map[string]any) (name string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	for key, value := range spec {
		if err := unstructured.SetNestedField(object.Object, value, strings.Split("spec."+key, ".")...); err != nil {
			return "", err
		}
	}
	objects, err := s.objects()
	if err != nil {
		return "", err
	}
	_, err = objects.Resource(kind).Create(ctx, object, metav1.CreateOptions{})
	return object.GetName(), err
}

func (n *node) costs(without, half, with idleAgent) []table.Row {
	of := fmt.Sprintf("%d idle proxies", n.proxies)
	more := float64(n.proxies - n.proxies/2)
	return []table.Row{
		table.New("heap and stacks in use by the agent for an idle proxy, of "+of, "KiB", (with.inUse-half.inUse)/more, 0).To("< 10"),
		table.New("RSS of the agent for an idle proxy, of "+of, "KiB", (with.rss-half.rss)*1024/more, 0).To("< 20"),
		table.New("RSS of the agent with "+of+", against the same pods without", "MiB", with.rss, without.rss),
		table.New("CPU with "+of+", against the same pods without", "% of a core", with.load, without.load),
		table.New("calls of the runtime with "+of+", against the same pods without", "a minute", with.calls, without.calls),
		table.New("requests to the API server with "+of+", against the same pods without", "a minute", with.requests, without.requests),
	}
}
