package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const (
	apiGroup     = "pod-network-controller.istio.io"
	sidecarRoot  = "/run/istio-pod-network-controller/sidecars"
	withSidecars = "sidecars: {enabled: true}"
	// sidecarSecrets is where the chart mounts the Secrets that profiles may use.
	sidecarSecrets = "/etc/istio-pod-network-controller/secrets" //nolint:gosec // a path
)

// sidecarsOn reports whether values switch on what runs proxies.
func sidecarsOn(t *testing.T, values string) bool {
	t.Helper()
	return sidecarsIn(valuesMap(t, values))
}

func sidecarsIn(values map[string]any) bool {
	part, _ := values["sidecars"].(map[string]any)
	return part["enabled"] == true
}

// Whoever does not ask for sidecars gets what they got before there were any.
func TestSidecarsOffChangeNothing(t *testing.T) {
	for name, values := range cases(t) {
		if sidecarsOn(t, values) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			unsaid, err := install(t, values)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := install(t, values+"\nsidecars: {enabled: false}")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(unsaid.Manifest, rel.Manifest); diff != "" {
				t.Errorf("switched off explicitly (-unsaid +got):\n%s", diff)
			}
			for _, word := range []string{apiGroup + "]", "--sidecar", "CustomResourceDefinition", sidecarRoot, sharedRoot, "KILL"} {
				if strings.Contains(rel.Manifest, word) {
					t.Errorf("%q is rendered although sidecars are off", word)
				}
			}
		})
	}
}

// Proxies are signalled by the node's process IDs. The runtime makes them from paths that the agent writes to, so both must see the same.
func TestWhatTheAgentGetsForSidecars(t *testing.T) {
	before, after := daemonSet(t, "{}").Spec.Template.Spec, daemonSet(t, withSidecars).Spec.Template.Spec
	if before.HostPID || !after.HostPID {
		t.Errorf("hostPID %t without and %t with sidecars", before.HostPID, after.HostPID)
	}
	agent := after.Containers[0]
	if got := added(before.Containers[0].Args, agent.Args); !slices.Equal(got, []string{"--sidecars=true"}) {
		t.Errorf("additional arguments %q", got)
	}
	add := added(before.Containers[0].SecurityContext.Capabilities.Add, agent.SecurityContext.Capabilities.Add)
	if !slices.Equal(add, []corev1.Capability{"KILL", "CHOWN", "DAC_OVERRIDE"}) {
		t.Errorf("additional capabilities %v", add)
	}
	wantMounts := []corev1.VolumeMount{
		{Name: "sidecars", MountPath: sidecarRoot}, {Name: "shared", MountPath: sharedRoot}, {Name: "pod-logs", MountPath: "/var/log/pods"},
	}
	if diff := cmp.Diff(wantMounts, agent.VolumeMounts[len(before.Containers[0].VolumeMounts)-1:len(agent.VolumeMounts)-1]); diff != "" {
		t.Errorf("additional mounts (-want +got):\n%s", diff)
	}
	wantTypes := map[string]corev1.HostPathType{
		sidecarRoot: corev1.HostPathDirectoryOrCreate, sharedRoot: corev1.HostPathDirectoryOrCreate, "/var/log/pods": corev1.HostPathDirectory,
	}
	got := map[string]corev1.HostPathType{}
	for _, volume := range after.Volumes {
		if volume.HostPath != nil && wantTypes[volume.HostPath.Path] != "" {
			got[volume.HostPath.Path] = *volume.HostPath.Type
		}
	}
	if diff := cmp.Diff(wantTypes, got); diff != "" || len(after.Volumes) != len(before.Volumes)+len(wantTypes) {
		t.Errorf("%d volumes, before %d; types (-want +got):\n%s", len(after.Volumes), len(before.Volumes), diff)
	}
}

// added are the items of a list that another one does not have.
func added[T comparable](before, after []T) []T {
	return slices.DeleteFunc(slices.Clone(after), func(item T) bool { return slices.Contains(before, item) })
}

func TestSidecarsNeedARuntimeWithCRI(t *testing.T) {
	_, err := install(t, withSidecars+"\ncontainerRuntime: docker")
	if err == nil || !strings.Contains(err.Error(), "sidecars.enabled=true with containerRuntime=docker: Docker has no CRI") {
		t.Errorf("error %v", err)
	}
	for _, runtime := range []string{"auto", "containerd", "crio"} {
		if _, err := install(t, withSidecars+"\ncontainerRuntime: "+runtime); err != nil {
			t.Errorf("%s: %v", runtime, err)
		}
	}
}

// definitions are the CustomResourceDefinitions by name, decoded strictly.
func definitions(t *testing.T, values string) map[string]apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	found := map[string]apiextensionsv1.CustomResourceDefinition{}
	for _, doc := range documents(t, values) {
		if !strings.Contains(doc, "\nkind: CustomResourceDefinition\n") {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(doc), &crd); err != nil {
			t.Fatalf("decode: %v\n%s", err, doc)
		}
		found[crd.Name] = crd
	}
	return found
}

// With a definition the API server deletes all objects of its kind: removing the chart must not do that.
func TestDefinitionsStayWhenTheChartIsRemoved(t *testing.T) {
	found := definitions(t, withSidecars)
	for plural, want := range map[string]struct {
		kind  string
		scope apiextensionsv1.ResourceScope
	}{
		"proxyprofiles":  {"ProxyProfile", apiextensionsv1.ClusterScoped},
		"managedproxies": {"ManagedProxy", apiextensionsv1.NamespaceScoped},
	} {
		crd, ok := found[plural+"."+apiGroup]
		if !ok {
			t.Errorf("no definition of %s", plural)
			continue
		}
		if got := crd.Annotations["helm.sh/resource-policy"]; got != "keep" {
			t.Errorf("%s: Helm's policy is %q, want keep", plural, got)
		}
		if crd.Spec.Group != apiGroup || crd.Spec.Names.Kind != want.kind || crd.Spec.Scope != want.scope || crd.Labels["app.kubernetes.io/instance"] != name {
			t.Errorf("%s is a %s of group %s, %s, labels %v", plural, crd.Spec.Names.Kind, crd.Spec.Group, crd.Spec.Scope, crd.Labels)
		}
		if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != "v1alpha1" {
			t.Errorf("%s: versions %+v, want v1alpha1", plural, crd.Spec.Versions)
		} else if sub := crd.Spec.Versions[0].Subresources; sub == nil || sub.Status == nil {
			t.Errorf("%s: subresources %+v, want a status", plural, sub)
		}
	}
	if len(found) != 2 {
		t.Errorf("%d definitions, want 2", len(found))
	}
}

// The agent takes the numbers as they are: 65616 would be port 80.
func TestDefinitions_ports_areBounded(t *testing.T) {
	var ports int
	var walk func(path string, s apiextensionsv1.JSONSchemaProps)
	walk = func(path string, s apiextensionsv1.JSONSchemaProps) {
		if s.Type == "integer" && strings.Contains(strings.ToLower(path[strings.LastIndex(path, ".")+1:]), "port") {
			if ports++; s.Minimum == nil || *s.Minimum != 1 || s.Maximum == nil || *s.Maximum != 65535 {
				t.Errorf("%s is not bounded by 1 and 65535", path)
			}
		}
		for name, property := range s.Properties {
			walk(path+"."+name, property)
		}
		if s.Items != nil && s.Items.Schema != nil {
			walk(path, *s.Items.Schema)
		}
	}
	walk("", *definitions(t, withSidecars)["proxyprofiles."+apiGroup].Spec.Versions[0].Schema.OpenAPIV3Schema)
	if ports < 5 {
		t.Errorf("%d ports were found", ports)
	}
}

// The API's comments become descriptions: braces in them are text, which Helm must leave alone.
func TestDescriptionsAreLeftAlone(t *testing.T) {
	spec := definitions(t, withSidecars)["proxyprofiles."+apiGroup].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if got := spec.Properties["namespaceSelector"].Description; !strings.Contains(got, "an empty selector\n({}) selects all") {
		t.Errorf("description of namespaceSelector is %q", got)
	}
}

// forPeople reports whether a role is for people, who are bound to it by others.
func forPeople(role *rbacv1.ClusterRole) bool {
	return strings.HasSuffix(role.Name, "-profiles-edit") || strings.HasSuffix(role.Name, "-sidecars-view") || strings.HasSuffix(role.Name, "-metrics-reader")
}

// The author of a profile can run any program on every node: none of the cluster's roles may come to include that.
func TestWhoMayWriteProfiles(t *testing.T) {
	const aggregated = "rbac.authorization.k8s.io/aggregate-to-"
	look := []string{"get", "list", "watch"}
	want := map[string][]rbacv1.PolicyRule{
		name + "-profiles-edit": {{
			APIGroups: []string{apiGroup}, Resources: []string{"proxyprofiles"}, Verbs: append(slices.Clone(look), "create", "update", "patch", "delete"),
		}},
		name + "-sidecars-view": {{APIGroups: []string{apiGroup}, Resources: []string{"proxyprofiles", "managedproxies"}, Verbs: look}},
	}
	got := map[string][]rbacv1.PolicyRule{}
	var parts []string
	for _, doc := range documents(t, withSidecars) {
		switch o := decode(t, doc).(type) {
		case *rbacv1.ClusterRole:
			if forPeople(o) {
				got[o.Name] = o.Rules
			}
			for label, value := range o.Labels {
				if role, ok := strings.CutPrefix(label, aggregated); ok {
					parts = append(parts, o.Name+" is part of "+role+": "+value)
				}
			}
		case *rbacv1.ClusterRoleBinding:
			if want[o.RoleRef.Name] != nil {
				t.Errorf("%s is bound to %+v", o.RoleRef.Name, o.Subjects)
			}
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("roles for people (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{name + "-sidecars-view is part of view: true"}, parts); diff != "" {
		t.Errorf("parts of the cluster's roles (-want +got):\n%s", diff)
	}
}
