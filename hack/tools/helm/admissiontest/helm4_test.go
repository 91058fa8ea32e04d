package admissiontest

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// everyObject are values with which the chart renders each kind of object that the API server has.
const everyObject = `{hooks.cni.mode: install, redirection.select: either, hooks.startupTaint.enabled: true, fullnameOverride: redirector, agent.priorityQuota: 5000, inspect: {enabled: true},
  monitoring: {secure: true, tlsSecret: tls, dashboard: {enabled: true}, prometheusRule: {enabled: true}, serviceMonitor: {enabled: true,
    endpoint: {relabelings: [{targetLabel: cluster, replacement: a}], metricRelabelings: [{targetLabel: cluster, replacement: a}]}}},
  proxies: {enabled: true, secrets: [registry], istio: {enabled: true, image: a},
    shared: [{profile: edge, image: a, command: [b], lifecycle: {}, env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]}]},
  agent.extraEnv: [{name: A, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}, {name: B, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}],
  admission: {enabled: true, waitContainer: true, requiredPlugins: true, restrictAgent: true, allowOptOut: false}}`

// Helm 4 applies objects by the API server, as the manager helm. Nothing conflicts with what Helm itself has applied, and an upgrade without a change
// changes no object.
func TestHelm4_upgradesWithoutAChange_changeNothing(t *testing.T) {
	s := startServer(t)
	s.namespace(t, release, nil, nil)
	s.namespace(t, "istio-system", nil, nil)
	s.define(t, monitoring)
	helm := s.helm4(t, false)
	made := helm.install(t, everyObject)
	before := s.versions(t, made)
	again, err := helm.upgrade(t, everyObject)
	must(t, err)
	same(t, before, s.versions(t, again), "objects")
}

// versions are the versions of objects on the server, and who manages their fields.
func (s *server) versions(t *testing.T, made []*unstructured.Unstructured) map[string]string {
	t.Helper()
	found, resource := map[string]string{}, s.resources(t)
	for _, object := range made {
		from, err := resource(object)
		if err != nil || from == nil {
			t.Fatalf("%s: %v", object.GetKind(), err)
		}
		stored, err := from.Get(t.Context(), object.GetName(), metav1.GetOptions{})
		must(t, err)
		managers := names(stored.GetManagedFields(), func(f metav1.ManagedFieldsEntry) string {
			return f.Manager + " by " + string(f.Operation) + f.Subresource
		})
		found[object.GetKind()+" "+object.GetName()] = fmt.Sprintf("version %s, generation %d, managed by %q", stored.GetResourceVersion(), stored.GetGeneration(), managers)
	}
	return found
}
