package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const (
	withIstio   = "{sidecars: {enabled: true, istio: {enabled: true, image: 'localhost/proxyv2:1', namespace: mesh}}, admission: {restrictAgent: true}}"
	profileKind = "pod-network-controller.istio.io/v1alpha1/ProxyProfile"
)

// istioIn reports whether values have the agent run Istio's own proxies.
func istioIn(values map[string]any) bool {
	part, _ := values["sidecars"].(map[string]any)
	istio, _ := part["istio"].(map[string]any)
	return sidecarsIn(values) && istio["enabled"] == true
}

// The definitions are among the chart's own objects: Helm takes no profile before the cluster has them, and says what to do then.
func TestIstio_profile_isMadeWhereTheKindIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		kinds  []string
		want   string // the profile's spec, "" is no profile
	}{
		"the first installation": {values: withIstio},
		"later": {
			withIstio, []string{profileKind},
			"{handover: reuse-port, image: 'localhost/proxyv2:1', istio: {namespace: mesh, revision: ''}, " +
				"namespaceSelector: {matchLabels: {sidecar-profile: istio}}, readiness: {startSeconds: 60}}",
		},
		"more of its spec": {
			strings.Replace(withIstio, "namespace: mesh", "revision: 1-31, namespaceSelector: {matchLabels: null}, spec: {handover: none, readiness: {startSeconds: 9}, rollout: {maxNodes: 1}}", 1),
			[]string{profileKind},
			"{handover: none, image: 'localhost/proxyv2:1', istio: {namespace: istio-system, revision: 1-31}, " +
				"namespaceSelector: {}, readiness: {startSeconds: 9}, rollout: {maxNodes: 1}}",
		},
		"off": {values: strings.Replace(withIstio, "istio: {enabled: true", "istio: {enabled: false", 1), kinds: []string{profileKind}},
	} {
		t.Run(name, func(t *testing.T) {
			rel, err := install(t, c.values, c.kinds...)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for doc := range strings.SplitSeq(rel.Manifest, "\n---\n") {
				object := valuesMap(t, doc)
				if object["kind"] == "ProxyProfile" {
					text, err := yaml.Marshal(object["spec"])
					if err != nil {
						t.Fatal(err)
					}
					got = string(text)
				}
			}
			if diff := cmp.Diff(valuesMap(t, c.want), valuesMap(t, got)); diff != "" {
				t.Errorf("profile (-want +got):\n%s", diff)
			}
			if says := strings.Contains(rel.Info.Notes, "Run the same `helm upgrade` once more"); says != (c.kinds == nil) {
				t.Errorf("notes:\n%s", rel.Info.Notes)
			}
		})
	}
}

// Names that the values give as well are there once.
func TestIstio_rights_areThoseOfItsProxy(t *testing.T) {
	values := strings.Replace(withIstio, "enabled: true, istio", "enabled: true, configMaps: [ca, istio-ca-root-cert], tokenAudiences: [istio-ca, vault], istio", 1)
	if got := arguments(t, values)["sidecar-token-audiences"]; got != "istio-ca,vault" {
		t.Errorf("--sidecar-token-audiences=%s", got)
	}
	var named []string
	namespace := ""
	for _, doc := range documents(t, values) {
		switch o := decode(t, doc).(type) {
		case *rbacv1.ClusterRole:
			for _, r := range o.Rules {
				if slices.Contains(r.Resources, "configmaps") {
					named = append(named, r.ResourceNames...)
				}
			}
		case *rbacv1.Role:
			if strings.HasSuffix(o.Name, "-istio") {
				namespace = o.Namespace
			}
		}
	}
	if !slices.Equal(named, []string{"ca", "istio-ca-root-cert"}) || namespace != "mesh" {
		t.Errorf("ConfigMaps %v; those of the control plane in %q", named, namespace)
	}
}
