package admissiontest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	optOut = `{"metadata": {"annotations": {"` + initialize + `": "false"}}}`
	// keySidecar is the annotation that names a profile; the namespace "meshed" names one.
	keySidecar = apiGroup + "/sidecar"
)

// wantForbidden wants an error that says so, or none.
func wantForbidden(t *testing.T, err error, want bool) {
	t.Helper()
	if want != apierrors.IsForbidden(err) || !want && err != nil {
		t.Errorf("error %v, want it forbidden: %t", err, want)
	}
}

// optsOut lets people without and with the verb have pods opt out, in every way that writes annotations of a pod. A tenant may do everything with
// pods of the namespaces, and a trusted one may have them opt out, too. So may the account batch.
func (s *server) optsOut(t *testing.T) {
	pods, opt := allowed("", "*", "*"), allowed(apiGroup, "opt-out", "redirection")
	for _, account := range []string{"tenant", "trusted", "batch"} {
		s.account(t, "asking", account)
	}
	for _, namespace := range []string{"asking", "silent", "meshed"} {
		s.grant(t, namespace, "asking/tenant", pods)
		s.grant(t, namespace, "asking/trusted", pods, opt)
		s.grant(t, namespace, "asking/batch", opt)
	}
	tenant, trusted := s.client(t, s.tokenOf(t, "asking", "tenant", "")), s.client(t, s.tokenOf(t, "asking", "trusted", ""))
	before, errBefore := s.create(t.Context(), podWithAnnotation("asking", "default", "false"), false)
	asks, errAsks := s.create(t.Context(), podWithAnnotation("asking", "default", "true"), false)
	must(t, errors.Join(errBefore, errAsks))
	s.install(t, "{redirection.excludeNamespaces: [kube-system], admission: {allowOptOut: false}}")
	create := func(ctx context.Context, who kubernetes.Interface, namespace, account, value string) error {
		_, err := who.CoreV1().Pods(namespace).Create(ctx, podWithAnnotation(namespace, account, value), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	untilDenied(t, func(ctx context.Context) error { return create(ctx, tenant, "asking", "default", "false") }, "forbidden")
	for name, c := range map[string]struct {
		who                       kubernetes.Interface
		namespace, account, value string
		denied                    bool
	}{
		"a tenant":                                  {tenant, "asking", "default", "false", true},
		"a tenant, a pod that asks":                 {tenant, "asking", "default", "true", false},
		"a tenant, a pod that says nothing":         {tenant, "asking", "default", "", false},
		"a tenant, a value that means nothing":      {tenant, "asking", "default", "False", false},
		"a tenant, a pod of an account that may":    {tenant, "asking", "batch", "false", false},
		"a tenant, where the namespace says naught": {tenant, "silent", "default", "false", false},
		"one who may":                               {trusted, "asking", "default", "false", false},
		"an administrator":                          {s.admin, "asking", "default", "false", false},
	} {
		t.Run(name, func(t *testing.T) {
			wantForbidden(t, create(t.Context(), c.who, c.namespace, c.account, c.value), c.denied)
		})
	}
	t.Run("a pod that runs", func(t *testing.T) { s.optsOutLater(t, tenant, trusted, asks.Name, before.Name) })
	t.Run("leaving a proxy", func(t *testing.T) { s.leavesProxies(t, tenant) })
}

// optsOutLater changes pods that are there: asks has not opted out, and before had before there was a policy.
func (s *server) optsOutLater(t *testing.T, tenant, trusted kubernetes.Interface, asks, before string) {
	dryRun := []string{metav1.DryRunAll}
	change := func(who kubernetes.Interface, pod, text string, parts ...string) error {
		_, err := who.CoreV1().Pods("asking").Patch(t.Context(), pod, types.MergePatchType, []byte(text), metav1.PatchOptions{DryRun: dryRun}, parts...)
		return err
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: asks, Annotations: map[string]string{initialize: "false"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n1"},
	}
	const label = `{"metadata": {"labels": {"a": "b"}}}`
	for name, c := range map[string]struct {
		err    error
		denied bool
	}{
		"the pod":                  {change(tenant, asks, optOut), true},
		"its status":               {change(tenant, asks, optOut, "status"), true},
		"its binding":              {tenant.CoreV1().Pods("asking").Bind(t.Context(), binding, metav1.CreateOptions{DryRun: dryRun}), true},
		"its binding, the old way": {tenant.CoreV1().RESTClient().Post().Namespace("asking").Resource("bindings").Body(binding).Do(t.Context()).Error(), true},
		"one who may":              {change(trusted, asks, optOut), false},
		"another change":           {change(tenant, asks, label), false},
		"another change of one that had opted out": {change(tenant, before, label), false},
		"the status of one that had opted out":     {change(tenant, before, `{"status": {"message": "a"}}`, "status"), false},
		"asking again":                             {change(tenant, before, `{"metadata": {"annotations": {"`+initialize+`": "true"}}}`), false},
	} {
		t.Run(name, func(t *testing.T) { wantForbidden(t, c.err, c.denied) })
	}
}

// leavesProxies lets a tenant's pods choose: with the profile of the namespace they wait for their proxy, and they may not choose less.
func (s *server) leavesProxies(t *testing.T, tenant kubernetes.Interface) {
	s.install(t, "{redirection.excludeNamespaces: [kube-system], proxies: {enabled: true}, admission: {allowOptOut: false}}")
	create := func(ctx context.Context, namespace, profile, asks string, dry ...string) (*corev1.Pod, error) {
		pod := shape{namespace: namespace}.pod()
		pod.Annotations = map[string]string{}
		for key, value := range map[string]string{keySidecar: profile, initialize: asks} {
			if value != "" {
				pod.Annotations[key] = value
			}
		}
		return tenant.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: dry})
	}
	untilDenied(t, func(ctx context.Context) error {
		pod, err := create(ctx, "meshed", "", "", metav1.DryRunAll)
		if err != nil || !hasGate(pod) {
			return fmt.Errorf("no gate yet: %w", err)
		}
		_, err = create(ctx, "meshed", "none", "", metav1.DryRunAll)
		return err
	}, "forbidden")
	for name, c := range map[string]struct {
		namespace, profile, asks string
		denied, gate             bool
	}{
		"nothing":                     {namespace: "meshed", gate: true},
		"the namespace's own":         {namespace: "meshed", profile: "edge", gate: true},
		"another profile":             {namespace: "meshed", profile: "other", denied: true},
		"none":                        {namespace: "meshed", profile: "none", denied: true},
		"no redirection":              {namespace: "meshed", asks: "false", denied: true},
		"a profile, in no mesh":       {namespace: "silent", profile: "edge", gate: true},
		"none, in no mesh":            {namespace: "silent", profile: "none"},
		"no redirection, in no mesh":  {namespace: "silent", profile: "edge", asks: "false"},
		"none, where proxies are its": {namespace: "asking", profile: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := create(t.Context(), c.namespace, c.profile, c.asks, metav1.DryRunAll)
			if wantForbidden(t, err, c.denied); err == nil && hasGate(pod) != c.gate {
				t.Errorf("gates %+v, want ours: %t", pod.Spec.ReadinessGates, c.gate)
			}
		})
	}
	pod, err := create(t.Context(), "meshed", "", "")
	must(t, err)
	for patch, denied := range map[string]bool{
		`{"metadata":{"annotations":{"` + keySidecar + `":"none"}}}`: true, optOut: true, `{"metadata":{"labels":{"a":"b"}}}`: false,
	} {
		_, err := tenant.CoreV1().Pods("meshed").Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		wantForbidden(t, err, denied)
	}
}

// podWithAnnotation is a pod of an account, with a value of the annotation; empty means none.
func podWithAnnotation(namespace, account, value string) *corev1.Pod {
	pod := shape{namespace: namespace, change: changes(container("istio-proxy"))}.pod()
	pod.Spec.ServiceAccountName = account
	if value != "" {
		annotate(initialize, value)(pod)
	}
	return pod
}
