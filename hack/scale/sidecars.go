package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/intent"
)

// Files of the checkout, in which hack/bench.sh starts this program.
const (
	definitions   = "chart/istio-pod-network-controller/templates/crd-*.yaml"
	sampleProfile = "config/samples/proxy-profile.yaml"
)

// sidecars measures what idle proxies cost the agent: the same pods, first redirected only, then half of them with a proxy, then all. The
// halves are compared to tell what each proxy costs: the first ones also cost what does not depend on their number, such as the garbage that
// there may be until the next collection.
func (b bench) sidecars(ctx context.Context, dir string) (rows []row, err error) {
	err = b.withSidecars(ctx, dir, func(n *nodeBench, profile string) error {
		var seen []idleAgent
		for _, proxies := range []int{0, b.proxies / 2, b.proxies} {
			if err := n.choose(ctx, profile, proxies); err != nil {
				return err
			}
			one, err := n.idle(ctx, dir, proxies)
			if err != nil {
				return err
			}
			seen = append(seen, one)
		}
		rows = n.costs(seen[0], seen[1], seen[2])
		return nil
	})
	return rows, err
}

// withSidecars calls f with a node whose pods may choose a profile.
func (b bench) withSidecars(ctx context.Context, dir string, f func(n *nodeBench, profile string) error) (err error) {
	b.here = b.proxies
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return err
	}
	root, shared := filepath.Join(dir, "sidecars"), filepath.Join(dir, "shared")
	defer func() { err = errors.Join(err, n.runtime.stop(), n.server.stop(), unbind(root), unbind(shared)) }()
	if err := errors.Join(memory(root), memory(shared), memory("/var/log")); err != nil { // this program's mounts are its own
		return err
	}
	n.namespaces = 1
	if err := makeNamespaces(ctx, n.server.admin, 1); err != nil {
		return err
	}
	profile, err := n.server.allowSidecars(ctx)
	if err != nil {
		return err
	}
	if err := n.fill(ctx, withoutProxy); err != nil {
		return err
	}
	return f(n, profile)
}

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
func (n *nodeBench) choose(ctx context.Context, profile string, pods int) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{intent.KeySidecar: profile}}})
	if err != nil {
		return err
	}
	return each(ctx, pods, func(ctx context.Context, i int) error {
		_, err := n.server.admin.CoreV1().Pods(namespaceName(0)).Patch(ctx, fmt.Sprintf("pod-%05d", i), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// idleAgent is what an agent takes that has nothing to do.
type idleAgent struct {
	rss, inUse, load float64
	// Calls of the runtime, questions to proxies, and requests to the API server, a minute.
	calls, asked, requests float64
}

// idle has an agent with the proxy manager make so many proxies, and measures the next one, which finds them, when it is calm.
func (n *nodeBench) idle(ctx context.Context, dir string, proxies int) (seen idleAgent, err error) {
	maker, err := n.manage(ctx, dir, proxies)
	if err != nil {
		return seen, err
	}
	if err := maker.stop(syscall.SIGTERM); err != nil {
		return seen, err
	}
	a, err := n.manage(ctx, dir, proxies)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, a.stop(syscall.SIGTERM)) }()
	if err := n.settle(ctx, settled); err != nil {
		return seen, err
	}
	if seen.inUse, err = a.inUse(ctx, n.collections()); err != nil {
		return seen, err
	}
	if n.profiles != "" {
		if err := a.profile(ctx, "heap", fmt.Sprintf("%s/heap-%d-proxies.pprof", n.profiles, proxies)); err != nil {
			return seen, err
		}
	}
	r := n.runtime.containers
	before, err := a.usage()
	if err != nil {
		return seen, err
	}
	calls, asked := r.calls.Load(), r.asked.Load()
	said, err := a.metrics(ctx)
	if err != nil {
		return seen, err
	}
	if err := n.settle(ctx, idleWindow); err != nil {
		return seen, err
	}
	after, err := a.usage()
	if err != nil {
		return seen, err
	}
	now, err := a.metrics(ctx)
	seen.requests = (now.requests() - said.requests()) * float64(time.Minute) / float64(idleWindow)
	seen.rss, seen.load = after.rss, after.load(before)
	seen.calls, seen.asked = perMinute(r.calls.Load()-calls), perMinute(r.asked.Load()-asked)
	return seen, err
}

// manage starts an agent with the proxy manager, and waits until so many proxies are ready.
func (n *nodeBench) manage(ctx context.Context, dir string, proxies int) (*agent, error) {
	a, err := startAgent(ctx, n.server, n.runtime, n.agent,
		"--sidecars", "--sidecar-root="+filepath.Join(dir, "sidecars"), "--sidecar-secrets="+dir, "--shared-root="+filepath.Join(dir, "shared"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(a.awaitProgrammed(ctx, n.here), n.awaitProxies(ctx, proxies)); err != nil {
		return nil, errors.Join(err, a.stop(syscall.SIGKILL))
	}
	return a, nil
}

// idleWindow is long enough for two of the agent's looks at all containers.
const idleWindow = time.Minute

func perMinute(n int64) float64 { return float64(n) * float64(time.Minute) / float64(idleWindow) }

// readyPatience is how long the node's proxies may take until they are ready.
const readyPatience = 2 * time.Minute

// awaitProxies waits until so many ManagedProxies say that their proxies are ready.
func (n *nodeBench) awaitProxies(ctx context.Context, proxies int) error {
	objects, err := n.server.objects()
	if err != nil {
		return err
	}
	return eventually(ctx, readyPatience, fmt.Sprintf("%d proxies are ready", proxies), func(ctx context.Context) error {
		list, err := objects.Resource(v1alpha1.GroupVersion().WithResource("managedproxies")).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready, why := 0, ""
		for _, s := range list.Items {
			if is, _, _ := unstructured.NestedBool(s.Object, "status", "ready"); is {
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

// objects returns a client for kinds that have no type here.
func (s *server) objects() (dynamic.Interface, error) {
	config := s.config(s.adminToken)
	config.ContentType = "application/json"
	return dynamic.NewForConfig(config)
}

// allowSidecars makes the proxy manager's kinds, gives agents what the chart gives them for it, and makes the sample's profile, for
// every namespace. It returns the profile's name.
func (s *server) allowSidecars(ctx context.Context) (profile string, err error) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sidecars"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"proxyprofiles"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"managedproxies"}, Verbs: []string{"create", "patch", "delete"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"managedproxies/status", "proxyprofiles/status"}, Verbs: []string{"patch"}},
	}}
	if err := s.allow(ctx, role); err != nil {
		return "", err
	}
	files, err := filepath.Glob(definitions)
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("there is no %s here: start this in the checkout (%w)", definitions, err)
	}
	for _, file := range files {
		if _, err := s.create(ctx, file, schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}); err != nil {
			return "", err
		}
	}
	err = eventually(ctx, time.Minute, "the API server has the proxy manager's kinds", func(ctx context.Context) (err error) {
		profile, err = s.create(ctx, sampleProfile, v1alpha1.GroupVersion().WithResource("proxyprofiles"))
		return err
	})
	return profile, err
}

// create makes the object of a file, which may be a template without anything to be filled in but labels. It returns its name.
func (s *server) create(ctx context.Context, file string, kind schema.GroupVersionResource) (name string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var plain strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "{{") || file == sampleProfile {
			plain.WriteString(line)
		}
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(plain.String()), &object.Object); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	if spec, ok := object.Object["spec"].(map[string]any); ok && file == sampleProfile {
		spec["namespaceSelector"] = map[string]any{}
		spec["rollout"] = map[string]any{"maxParallel": int64(rolledAtOnce)}
	}
	objects, err := s.objects()
	if err != nil {
		return "", err
	}
	_, err = objects.Resource(kind).Create(ctx, object, metav1.CreateOptions{})
	return object.GetName(), err
}

func (n *nodeBench) costs(without, half, with idleAgent) []row {
	of := fmt.Sprintf("%d idle proxies", n.proxies)
	more := float64(n.proxies - n.proxies/2)
	return []row{
		newRow("heap and stacks in use by the agent for an idle proxy, of "+of, "KiB", (with.inUse-half.inUse)/more, 0, "< 10"),
		newRow("RSS of the agent for an idle proxy, of "+of, "KiB", (with.rss-half.rss)*1024/more, 0, "< 20"),
		newRow(fmt.Sprintf("RSS of the agent with %d idle proxies, against the same pods without", n.proxies/2), "MiB", half.rss, without.rss, "reported"),
		newRow("RSS of the agent with "+of+", against the same pods without", "MiB", with.rss, without.rss, "reported"),
		newRow("CPU with "+of+", against the same pods without", "% of a core", with.load, without.load, "reported"),
		newRow("calls of the runtime with "+of+", against the same pods without", "a minute", with.calls, without.calls, "reported"),
		newRow("requests to the API server with "+of+", against the same pods without", "a minute", with.requests, without.requests, "reported"),
		newRow("questions to an idle proxy whether it is ready", "a minute", with.asked/float64(n.proxies), 0, "<= 6"),
	}
}
