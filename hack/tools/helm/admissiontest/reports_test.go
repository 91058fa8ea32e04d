package admissiontest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// reporter writes what agents show of proxies. The profile is "shown".
type reporter struct{ profiles, sidecars dynamic.ResourceInterface }

func (s *server) reporter(t *testing.T, token string) reporter {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.BearerToken = token
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version := schema.GroupVersion{Group: "pod-network-controller.istio.io", Version: "v1alpha1"}
	return reporter{client.Resource(version.WithResource("proxyprofiles")), client.Resource(version.WithResource("managedproxies")).Namespace("silent")}
}

// sidecar applies the ManagedProxy of a pod on a node, as an agent does, after a change to it.
func (r reporter) sidecar(ctx context.Context, pod, node string, change ...string) error {
	text := `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ManagedProxy",
		"metadata": {"name": "POD", "labels": {"pod-network-controller.istio.io/node": "NODE", "pod-network-controller.istio.io/profile": "shown"},
			"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "POD", "uid": "uid-POD"}]},
		"spec": {"profile": "shown", "pod": "POD", "podUID": "uid-POD", "node": "NODE"}}`
	text = strings.NewReplacer(append(change, "POD", pod, "NODE", node)...).Replace(text)
	return apply(ctx, r.sidecars, pod, "agent", text)
}

// status applies how the proxy is.
func (r reporter) status(ctx context.Context, pod string) error {
	return apply(ctx, r.sidecars, pod, "agent", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ManagedProxy",
		"metadata": {"name": "`+pod+`"}, "status": {"state": "Running", "ready": true, "epoch": 1, "restarts": 0}}`, "status")
}

// profile merges into the profile, or a part of it.
func (r reporter) profile(ctx context.Context, text string, part ...string) error {
	_, err := r.profiles.Patch(ctx, "shown", types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "agent"}, part...)
	return err
}

// apply does not state the object's version, as it is done by agents.
func apply(ctx context.Context, to dynamic.ResourceInterface, name, owner, text string, part ...string) error {
	force := true
	_, err := to.Patch(ctx, name, types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: owner, Force: &force}, part...)
	return err
}

// conditions are all of a profile, with one more type, and which nodes may use its version.
func conditions(more string) string {
	var list []map[string]any
	for _, kind := range []string{"Upgraded", "Progressing", "Failed", more} {
		if kind != "" {
			list = append(list, map[string]any{"type": kind, "status": "True", "reason": "Upgraded", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"})
		}
	}
	text, _ := json.Marshal(list)
	return `{"status": {"rollout": {"hash": "h1", "admitted": 3}, "conditions": ` + string(text) + `}}`
}

// restrictsReports has the agent's account write what it must not about proxies, each for one reason alone, and what it must.
func (s *server) restrictsReports(t *testing.T) {
	t.Helper()
	s.install(t, "sidecars: {enabled: true}")
	s.podOn(t, release, "reporter", "n1", release)
	agent, unbound, other := s.reporter(t, s.token(t, "reporter")), s.reporter(t, s.token(t, "")), s.reporter(t, s.config.BearerToken)
	s.tempt(t)
	eventually(t, "the API server knows the kinds", func(ctx context.Context) error {
		return apply(ctx, other.profiles, "shown", "admin", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ProxyProfile",
			"metadata": {"name": "shown"}, "spec": {"image": "a/b", "readiness": {"tcpPort": 80}}}`)
	})
	for _, err := range []error{
		other.sidecar(t.Context(), "there", "n2"), other.sidecar(t.Context(), "kept", "n1"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the API server follows the policies for reports", func(ctx context.Context) error {
		err := errors.Join(unbound.status(ctx, "there"), unbound.profile(ctx, conditions(""), "status"))
		if err == nil || !strings.Contains(err.Error(), release+"-sidecars") || !strings.Contains(err.Error(), release+"-profiles") {
			return fmt.Errorf("not denied by the policies: %w", errors.Join(errNotYet, err))
		}
		return nil
	})
	t.Run("what the agent is for", func(t *testing.T) { agent.reports(t, other) })
	t.Run("a time that agents cannot read", func(t *testing.T) {
		err := apply(t.Context(), agent.sidecars, "kept", "agent", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ManagedProxy",
			"metadata": {"name": "kept"}, "status": {"lastUpgrade": "2026-01-02t03:04:05z"}}`, "status")
		if !apierrors.IsInvalid(err) {
			t.Error(err)
		}
	})
	testReportDenials(t, agent, unbound)
}

func testReportDenials(t *testing.T, agent, unbound reporter) {
	t.Helper()
	const node, own = "the ManagedProxy is not of the agent's node n1", "a ManagedProxy only that has its pod's name and is owned by it"
	const meta = "no finalizer, no annotation, and no label of a ManagedProxy but its own two"
	const profile = "the agent may change a profile's status only"
	for name, c := range map[string]struct {
		try  func(context.Context) error
		want string
	}{
		"a ManagedProxy of another node":         {func(ctx context.Context) error { return agent.sidecar(ctx, "mine", "n2") }, node},
		"another node's ManagedProxy":            {func(ctx context.Context) error { return agent.sidecar(ctx, "there", "n2", "shown", "other") }, node},
		"how another node's proxy is":            {func(ctx context.Context) error { return agent.status(ctx, "there") }, node},
		"another node's ManagedProxy taken away": {func(ctx context.Context) error { return agent.sidecars.Delete(ctx, "there", metav1.DeleteOptions{}) }, node},
		"a ManagedProxy without an owner": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "POD", "uid": "uid-POD"}]`, `"ownerReferences": []`)
		}, own},
		"a ManagedProxy that another pod owns": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `"uid": "uid-POD"`, `"uid": "x"`)
		}, own},
		// Such an owner the garbage collector cannot look up: the object would stay.
		"a ManagedProxy that a Pod of another API owns": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `{"apiVersion": "v1", "kind": "Pod"`, `{"apiVersion": "example.com/v1", "kind": "Pod"`)
		}, own},
		"a ManagedProxy of another name": {func(ctx context.Context) error { return agent.sidecar(ctx, "mine", "n1", `"pod": "POD"`, `"pod": "x"`) }, own},
		"an owner that waits for it": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `"uid": "uid-POD"}`, `"uid": "uid-POD", "blockOwnerDeletion": true}`)
		}, own},
		"a finalizer": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `"labels"`, `"finalizers": ["a/b"], "labels"`)
		}, meta},
		"an annotation": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "mine", "n1", `"labels"`, `"annotations": {"a": "b"}, "labels"`)
		}, meta},
		"a label more": {func(ctx context.Context) error {
			return agent.sidecar(ctx, "kept", "n1", `"labels": {`, `"labels": {"a": "b", `)
		}, meta},
		"another's label taken away": {func(ctx context.Context) error {
			_, err := agent.sidecars.Patch(ctx, "kept", types.MergePatchType, []byte(`{"metadata": {"labels": {"team": null}}}`), metav1.PatchOptions{})
			return err
		}, meta},
		"a condition more":                          {func(ctx context.Context) error { return agent.profile(ctx, conditions("Ready"), "status") }, "no conditions of a profile but its own"},
		"the profile itself":                        {func(ctx context.Context) error { return agent.profile(ctx, `{"spec": {"image": "c/d"}}`) }, profile},
		"the profile taken away":                    {func(ctx context.Context) error { return agent.profiles.Delete(ctx, "shown", metav1.DeleteOptions{}) }, profile},
		"a ManagedProxy, by a token without a node": {func(ctx context.Context) error { return unbound.sidecar(ctx, "mine", "n1") }, "bound to a node"},
		"a condition, by a token without a node":    {func(ctx context.Context) error { return unbound.profile(ctx, conditions(""), "status") }, "bound to a node"},
	} {
		t.Run(name, func(t *testing.T) { expectDenied(t, c.try(t.Context()), c.want) })
	}
	t.Run("the profile itself, by way of its status", func(t *testing.T) {
		if err := agent.profile(t.Context(), `{"spec": {"image": "c/d"}, "metadata": {"labels": {"a": "b"}, "finalizers": ["a/b"]}}`, "status"); err != nil {
			t.Fatal(err)
		}
		got, err := agent.profiles.Get(t.Context(), "shown", metav1.GetOptions{})
		if err != nil || got.Object["spec"].(map[string]any)["image"] != "a/b" || len(got.GetLabels())+len(got.GetFinalizers()) > 0 {
			t.Errorf("profile %v, error %v", got, err)
		}
	})
}

// reports does all that agents do, with objects that others have changed.
func (r reporter) reports(t *testing.T, other reporter) {
	t.Helper()
	const foreign = `{"metadata": {"labels": {"team": "a"}, "annotations": {"team": "a"}, "ownerReferences": [
		{"apiVersion": "v1", "kind": "Pod", "name": "kept", "uid": "uid-kept"}, {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]}}`
	if _, err := other.sidecars.Patch(t.Context(), "kept", types.MergePatchType, []byte(foreign), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func() error{
		"ManagedProxy": func() error {
			for range 2 {
				if err := errors.Join(r.sidecar(t.Context(), "here", "n1"), r.status(t.Context(), "here")); err != nil {
					return err
				}
			}
			return r.sidecars.Delete(t.Context(), "here", metav1.DeleteOptions{})
		},
		"ManagedProxy with others' labels": func() error {
			return errors.Join(r.sidecar(t.Context(), "kept", "n1", "shown", "next"), r.status(t.Context(), "kept"))
		},
		"counts and conditions": func() error {
			return errors.Join(r.profile(t.Context(), `{"status": {"pods": 3, "upgraded": 2, "nodeCount": 1}}`, "status"), r.profile(t.Context(), conditions(""), "status"))
		},
	} {
		if err := try(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// tempt gives the agent's account a right to profiles that the chart does not, so that the policy and not RBAC has to deny.
func (s *server) tempt(t *testing.T) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "profiles"}
	_, err := s.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"pod-network-controller.istio.io"}, Resources: []string{"proxyprofiles", "managedproxies"}, Verbs: []string{"get", "patch", "delete"},
	}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: release, Name: release}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
