package charttest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	apiGroup        = "pod-network-controller.istio.io"
	sidecarRoot     = "/run/istio-pod-network-controller/sidecars"
	sidecarProfiles = "/var/lib/istio-pod-network-controller/profiles"
	withSidecars    = "proxies: {enabled: true}"
	withSecrets     = "proxies: {enabled: true, secrets: [registry, mesh.example.com]}"                                           //nolint:gosec // names
	withTokens      = "{proxies: {enabled: true, tokenAudiences: [istio-ca, 'spiffe://mesh']}, admission: {restrictAgent: true}}" //nolint:gosec // it opens nothing
	withIstio       = "{proxies: {enabled: true, istio: {enabled: true, image: 'localhost/proxyv2:1', namespace: mesh}}, admission: {restrictAgent: true}}"
	// sidecarSecrets is where the chart mounts the Secrets that profiles may use.
	sidecarSecrets = "/etc/istio-pod-network-controller/secrets" //nolint:gosec // a path
)

// Whoever does not ask for sidecars gets nothing of them, whatever else the values say about them.
func TestSidecarsOffChangeNothing(t *testing.T) {
	const off = ", proxies: {enabled: false, required: true, secrets: [registry], tokenAudiences: [a], configMaps: [a], istio: {image: a}}}"
	for _, values := range []string{"{kubernetesDistribution: openshift", "{hooks.cni.mode: install, hooks.startupTaint.enabled: true, admission: {enabled: true, restrictAgent: true, allowOptOut: false}"} {
		same(t, rendering(t, values+"}").Manifest, rendering(t, values+off).Manifest, "%s: switched off explicitly", values)
	}
}

// definitions are those that Helm makes at a first installation, before all else, and never deletes.
func definitions(t *testing.T) (found []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	files, err := filepath.Glob(chartDir + "/crds/*.yaml")
	must(t, err)
	for _, file := range files {
		// `helm show crds`, whose output people apply, prints the files one behind the other.
		if !strings.HasPrefix(read(t, file), "---\n") {
			t.Errorf("%s does not begin a document", file)
		}
		crd, is := decode(t, read(t, file)).(*apiextensionsv1.CustomResourceDefinition)
		if !is {
			t.Fatalf("%s is no definition", file)
		}
		found = append(found, crd)
	}
	return found
}

// With a definition the API server deletes all objects of its kind: nothing that removes the chart must do that, Argo CD included. One in a template
// would be a second one: Helm refuses an object that it has just made from crds. The API's comments become descriptions, with their braces.
func TestDefinitionsStayWhenTheChartIsRemoved(t *testing.T) {
	scopes := map[string]apiextensionsv1.ResourceScope{}
	if made := rendering(t, withSidecars); len(all[*apiextensionsv1.CustomResourceDefinition](made.objects)) > 0 {
		t.Error("a template renders definitions, which are in crds")
	}
	for _, crd := range definitions(t) {
		scopes[crd.Name+" "+crd.Spec.Names.Kind] = crd.Spec.Scope
		if crd.Annotations["helm.sh/resource-policy"] != "keep" || crd.Spec.Group != apiGroup || crd.Labels["app.kubernetes.io/name"] != name {
			t.Errorf("%s of group %s has the annotations %v, labels %v", crd.Name, crd.Spec.Group, crd.Annotations, crd.Labels)
		}
		version := crd.Spec.Versions[0]
		if len(crd.Spec.Versions) != 1 || version.Name != "v1alpha1" || version.Subresources == nil || version.Subresources.Status == nil {
			t.Errorf("%s: versions %+v, want v1alpha1 with a status", crd.Name, crd.Spec.Versions)
		}
		spec := version.Schema.OpenAPIV3Schema.Properties["spec"].Properties["namespaceSelector"]
		if crd.Spec.Names.Kind == "ProxyProfile" && !strings.Contains(spec.Description, "an empty selector\n({}) selects all") {
			t.Errorf("description of namespaceSelector is %q", spec.Description)
		}
	}
	want := map[string]apiextensionsv1.ResourceScope{
		"proxyprofiles." + apiGroup + " ProxyProfile": apiextensionsv1.ClusterScoped, "managedproxies." + apiGroup + " ManagedProxy": apiextensionsv1.NamespaceScoped,
	}
	same(t, want, scopes, "definitions")
}

// The agent takes the numbers as they are: 65616 would be port 80.
func TestDefinitions_ports_areBounded(t *testing.T) {
	ports := 0
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
	for _, crd := range definitions(t) {
		walk("", *crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
	if ports < 5 {
		t.Errorf("%d ports were found", ports)
	}
}

// A Secret that is missing keeps no agent from starting. Only root reads them, and no other container of the pod.
func TestSecretsThatProfilesMayUse(t *testing.T) {
	pod, yes, mode := rendering(t, withSecrets).agent(t), true, int32(0o400)
	for _, secret := range []string{"registry", "mesh.example.com"} {
		volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret })
		if volume < 0 {
			t.Errorf("there is no volume of the Secret %s", secret)
			continue
		}
		same(t, &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: &mode, Optional: &yes}, pod.Volumes[volume].Secret, "volume of %s", secret)
		want := corev1.VolumeMount{Name: pod.Volumes[volume].Name, MountPath: sidecarSecrets + "/" + secret, ReadOnly: true}
		if !mounts(pod, want) {
			t.Errorf("%s is mounted otherwise: %+v", secret, pod.Containers[0].VolumeMounts)
		}
	}
}

// mounts reports whether a pod's first container has a mount.
func mounts(pod corev1.PodSpec, mount corev1.VolumeMount) bool {
	return slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return cmp.Equal(m, mount) })
}

// One installation is enough: Helm makes the definitions before it looks for the profile's kind.
func TestIstio_profile_isMadeAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		want   string // the profile's spec
	}{
		"as it is": {
			withIstio,
			"{istio: {image: 'localhost/proxyv2:1', namespace: mesh, revision: ''}, namespaceSelector: {matchLabels: {sidecar-profile: istio}}}",
		},
		"more of its spec": {
			strings.Replace(withIstio, "namespace: mesh", "revision: 1-31, namespaceSelector: {matchLabels: null}, spec: {istio: {readiness: {startSeconds: 9}, update: {maxNodes: 1}}, network: {outboundPort: 7}}", 1),
			"{istio: {image: 'localhost/proxyv2:1', namespace: istio-system, revision: 1-31, readiness: {startSeconds: 9}, update: {maxNodes: 1}}, namespaceSelector: {}, network: {outboundPort: 7}}",
		},
		"off": {values: strings.Replace(withIstio, "istio: {enabled: true", "istio: {enabled: false", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			made := rendering(t, c.values)
			spec, _ := at(made.custom(t, "ProxyProfile", ""), "spec").(map[string]any)
			same(t, parse(t, c.want), spec, "profile")
			expectWords(t, made.Notes, false, "once more")
		})
	}
}

// Names that the values give as well are there once.
func TestIstio_names_areThereOnce(t *testing.T) {
	made := rendering(t, strings.Replace(withIstio, "enabled: true, istio", "enabled: true, configMaps: [ca, istio-ca-root-cert], tokenAudiences: [istio-ca, vault], istio", 1))
	var named []string
	for _, r := range granted(t, made.objects)[name+"/"+name] {
		if r.resource == "configmaps" && r.verb == "list" {
			named = append(named, r.object)
		}
	}
	if got := made.arguments(t)["sidecar-token-audiences"]; got != "istio-ca,vault" || !slices.Equal(named, []string{"ca", "istio-ca-root-cert", "istio-ca-crl"}) {
		t.Errorf("--sidecar-token-audiences=%s, ConfigMaps %v", got, named)
	}
}
