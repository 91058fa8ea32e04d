package admissiontest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// reporter writes what agents show of proxies. The profile is "shown".
type reporter struct{ profiles, sidecars dynamic.ResourceInterface }

func (s *server) reporter(t *testing.T, token string) reporter {
	t.Helper()
	client, version := s.dynamicClient(t, token), schema.GroupVersion{Group: apiGroup, Version: "v1alpha1"}
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
	s.install(t, "proxies: {enabled: true}")
	s.podOn(t, release, "reporter", "n1", release)
	agent, unbound, other := s.reporter(t, s.token(t, "reporter")), s.reporter(t, s.token(t, "")), s.reporter(t, s.config.BearerToken)
	// More than the chart gives, so that the policy and not RBAC has to deny.
	s.grant(t, "", release+"/"+release, allowed(apiGroup, "get patch delete", "proxyprofiles", "managedproxies"))
	eventually(t, "the API server knows the kinds", func(ctx context.Context) error {
		return apply(ctx, other.profiles, "shown", "admin", `{"apiVersion": "pod-network-controller.istio.io/v1alpha1", "kind": "ProxyProfile",
			"metadata": {"name": "shown"}, "spec": {"container": {"image": "a/b", "readiness": {"tcpPort": 80}}}}`)
	})
	must(t, errors.Join(other.sidecar(t.Context(), "there", "n2"), other.sidecar(t.Context(), "kept", "n1")))
	untilDenied(t, func(ctx context.Context) error {
		return errors.Join(unbound.status(ctx, "there"), unbound.profile(ctx, conditions(""), "status"))
	}, release+"-sidecars", release+"-profiles")
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
	const node, own = "the ManagedProxy is not of the agent's node n1", "a ManagedProxy only that has its pod's name and is owned by it"
	const meta = "no finalizer, no annotation, and no label of a ManagedProxy but its own two"
	const profile = "the agent may change a profile's status only"
	for name, c := range map[string]struct {
		pod, node string
		change    []string // of the text that the agent applies: what is replaced, and by what
		want      string
	}{
		"a ManagedProxy of another node":       {"mine", "n2", nil, node},
		"another node's ManagedProxy":          {"there", "n2", []string{"shown", "other"}, node},
		"a ManagedProxy without an owner":      {"mine", "n1", []string{`{"apiVersion": "v1", "kind": "Pod", "name": "POD", "uid": "uid-POD"}`, ""}, own},
		"a ManagedProxy that another pod owns": {"mine", "n1", []string{`"uid": "uid-POD"`, `"uid": "x"`}, own},
		// Such an owner the garbage collector cannot look up: the object would stay.
		"a ManagedProxy that a Pod of another API owns": {"mine", "n1", []string{`{"apiVersion": "v1", "kind": "Pod"`, `{"apiVersion": "example.com/v1", "kind": "Pod"`}, own},
		"a ManagedProxy of another name":                {"mine", "n1", []string{`"pod": "POD"`, `"pod": "x"`}, own},
		"an owner that waits for it":                    {"mine", "n1", []string{`"uid": "uid-POD"}`, `"uid": "uid-POD", "blockOwnerDeletion": true}`}, own},
		"a finalizer":                                   {"mine", "n1", []string{`"labels"`, `"finalizers": ["a/b"], "labels"`}, meta},
		"an annotation":                                 {"mine", "n1", []string{`"labels"`, `"annotations": {"a": "b"}, "labels"`}, meta},
		"a label more":                                  {"kept", "n1", []string{`"labels": {`, `"labels": {"a": "b", `}, meta},
	} {
		t.Run(name, func(t *testing.T) { expectDenied(t, agent.sidecar(t.Context(), c.pod, c.node, c.change...), c.want) })
	}
	withoutLabel := func(ctx context.Context) error {
		_, err := agent.sidecars.Patch(ctx, "kept", types.MergePatchType, []byte(`{"metadata": {"labels": {"team": null}}}`), metav1.PatchOptions{})
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"how another node's proxy is":               {agent.status(t.Context(), "there"), node},
		"another node's ManagedProxy taken away":    {agent.sidecars.Delete(t.Context(), "there", metav1.DeleteOptions{}), node},
		"another's label taken away":                {withoutLabel(t.Context()), meta},
		"a condition more":                          {agent.profile(t.Context(), conditions("Ready"), "status"), "no conditions of a profile but its own"},
		"the profile itself":                        {agent.profile(t.Context(), `{"spec": {"container": {"image": "c/d"}}}`), profile},
		"the profile taken away":                    {agent.profiles.Delete(t.Context(), "shown", metav1.DeleteOptions{}), profile},
		"a ManagedProxy, by a token without a node": {unbound.sidecar(t.Context(), "mine", "n1"), "bound to a node"},
		"a condition, by a token without a node":    {unbound.profile(t.Context(), conditions(""), "status"), "bound to a node"},
	} {
		t.Run(name, func(t *testing.T) { expectDenied(t, c.err, c.want) })
	}
	t.Run("the profile itself, by way of its status", func(t *testing.T) {
		must(t, agent.profile(t.Context(), `{"spec": {"container": {"image": "c/d"}}, "metadata": {"labels": {"a": "b"}, "finalizers": ["a/b"]}}`, "status"))
		got, err := agent.profiles.Get(t.Context(), "shown", metav1.GetOptions{})
		if image, _, _ := unstructured.NestedString(got.Object, "spec", "container", "image"); err != nil || image != "a/b" || len(got.GetLabels())+len(got.GetFinalizers()) > 0 {
			t.Errorf("profile %v, error %v", got, err)
		}
	})
}

// reports does all that agents do, with objects that others have changed.
func (r reporter) reports(t *testing.T, other reporter) {
	const foreign = `{"metadata": {"labels": {"team": "a"}, "annotations": {"team": "a"}, "ownerReferences": [
		{"apiVersion": "v1", "kind": "Pod", "name": "kept", "uid": "uid-kept"}, {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]}}`
	if _, err := other.sidecars.Patch(t.Context(), "kept", types.MergePatchType, []byte(foreign), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		must(t, errors.Join(r.sidecar(t.Context(), "here", "n1"), r.status(t.Context(), "here")))
	}
	must(t, r.sidecars.Delete(t.Context(), "here", metav1.DeleteOptions{}))
	must(t, errors.Join(r.sidecar(t.Context(), "kept", "n1", "shown", "next"), r.status(t.Context(), "kept")))
	must(t, errors.Join(r.profile(t.Context(), `{"status": {"pods": 3, "upgraded": 2, "nodeCount": 1}}`, "status"), r.profile(t.Context(), conditions(""), "status")))
}
