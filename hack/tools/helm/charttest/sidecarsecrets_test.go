package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

const withSecrets = "sidecars: {enabled: true, secrets: [registry, mesh.example.com]}" //nolint:gosec // names

// A Secret that is missing keeps no agent from starting. Only root reads them.
func TestSecretsThatProfilesMayUse(t *testing.T) {
	pod := daemonSet(t, withSecrets).Spec.Template.Spec
	optional, mode := true, int32(0o400)
	want := []corev1.SecretVolumeSource{
		{SecretName: "registry", DefaultMode: &mode, Optional: &optional}, {SecretName: "mesh.example.com", DefaultMode: &mode, Optional: &optional}, //nolint:gosec // names
	}
	var got []corev1.SecretVolumeSource
	volumes := map[string]string{}
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			got = append(got, *v.Secret)
			volumes[v.Name] = v.Secret.SecretName
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	mounted := map[string]bool{}
	for _, m := range pod.Containers[0].VolumeMounts {
		secret, ok := volumes[m.Name]
		if ok && (m.MountPath != sidecarSecrets+"/"+secret || !m.ReadOnly) {
			t.Errorf("Secret %s is mounted at %s, read-only: %t", secret, m.MountPath, m.ReadOnly)
		}
		mounted[secret] = true
	}
	for _, secret := range volumes {
		if !mounted[secret] {
			t.Errorf("Secret %s is not mounted", secret)
		}
	}
	for _, other := range pod.InitContainers {
		if slices.ContainsFunc(other.VolumeMounts, func(m corev1.VolumeMount) bool { return volumes[m.Name] != "" }) {
			t.Errorf("container %s has a Secret mounted", other.Name)
		}
	}
}

func TestSecretsAreMountedOnlyIntoAnAgentThatRunsProxies(t *testing.T) {
	rel, err := install(t, "sidecars: {enabled: false, secrets: [registry]}")
	if err != nil || strings.Contains(rel.Manifest, "registry") {
		t.Errorf("rendered with registry, error %v", err)
	}
	for values, want := range map[string]bool{withSidecars: false, withSecrets: true} {
		scc := constraints(t, "platform: openshift\n"+strings.Replace(values, "enabled: true", "enabled: true, untestedPlatform: true", 1))
		if got := slices.Contains(scc["volumes"].([]any), any("secret")); got != want {
			t.Errorf("%s: OpenShift lets the agent mount Secrets: %t, want %t", values, got, want)
		}
	}
}

const withTokens = "{sidecars: {enabled: true, tokenAudiences: [istio-ca, 'spiffe://mesh']}, admission: {restrictAgent: true}}" //nolint:gosec // it opens nothing

// tokensIn reports whether values have the agent create tokens.
func tokensIn(values map[string]any) bool {
	part, _ := values["sidecars"].(map[string]any)
	audiences, _ := part["tokenAudiences"].([]any)
	return sidecarsIn(values) && (len(audiences) > 0 || istioIn(values))
}

// Without the policy the right to create tokens is one to every account of the cluster.
func TestTokensNeedThePolicyThatNarrowsThem(t *testing.T) {
	const policy = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
	for cluster, c := range map[string]struct {
		restrict string
		kinds    []string
		ok       bool
	}{
		"asked for":                      {"true", nil, true},
		"where the cluster has it":       {"auto", []string{policy}, true},
		"where the cluster has none":     {"auto", nil, false},
		"where the user wants no policy": {"false", []string{policy}, false},
	} {
		t.Run(cluster, func(t *testing.T) {
			rel, err := install(t, "{sidecars: {enabled: true, tokenAudiences: [istio-ca]}, admission: {restrictAgent: "+c.restrict+"}}", c.kinds...)
			if c.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "without the policy the agent could create tokens of every account") {
				t.Fatalf("error %v", err)
			}
			for _, want := range []string{"-tokens", "-tokens-node"} {
				if c.ok && !strings.Contains(rel.Manifest, "name: "+name+want+"\n") {
					t.Error("no policy " + want)
				}
			}
		})
	}
	if got := arguments(t, withTokens)["sidecar-token-audiences"]; got != "istio-ca,spiffe://mesh" {
		t.Errorf("--sidecar-token-audiences=%s", got)
	}
}

// The volumes replace the right to read Secrets.
func TestTheAgentMayReadNoSecretOverTheAPI(t *testing.T) {
	for _, doc := range documents(t, withSecrets) {
		rules := []rbacv1.PolicyRule{}
		switch o := decode(t, doc).(type) {
		case *rbacv1.ClusterRole:
			rules = o.Rules
		case *rbacv1.Role:
			rules = o.Rules
		}
		for _, r := range rules {
			if slices.ContainsFunc(r.Resources, func(resource string) bool { return resource == "secrets" || resource == "*" }) {
				t.Errorf("a role has %+v", r)
			}
		}
	}
}
