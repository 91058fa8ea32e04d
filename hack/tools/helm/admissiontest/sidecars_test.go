package admissiontest

import (
	"context"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// definesSidecars installs the definitions, which the API server has to take: it computes what their rules may cost. Then it makes objects.
func (s *server) definesSidecars(t *testing.T) {
	t.Helper()
	s.install(t, "sidecars: {enabled: true}")
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	version := schema.GroupVersion{Group: "pod-network-controller.istio.io", Version: "v1alpha1"}
	profiles, sidecars := client.Resource(version.WithResource("proxyprofiles")), client.Resource(version.WithResource("managedproxies")).Namespace("default")
	eventually(t, "the API server knows the kinds", func(ctx context.Context) error {
		if _, err := profiles.List(ctx, metav1.ListOptions{}); err != nil {
			return err
		}
		_, err := sidecars.List(ctx, metav1.ListOptions{})
		return err
	})
	t.Run("secrets", func(t *testing.T) { takesSecrets(t, profiles, version.WithKind("ProxyProfile")) })
	for _, sample := range []string{"proxy-profile.yaml", "proxy-profile-envoy.yaml", "proxy-profile-nginx.yaml", "proxy-profile-istio.yaml", "proxy-profile-shared-envoy.yaml"} {
		t.Run(sample, func(t *testing.T) { createsSample(t, profiles, sample) })
	}
	t.Run("Envoys", func(t *testing.T) { checksEnvoys(t, profiles, version.WithKind("ProxyProfile")) })
	t.Run("listeners side by side", func(t *testing.T) { checksReusePort(t, profiles, version.WithKind("ProxyProfile")) })
	t.Run("Istio", func(t *testing.T) { checksIstio(t, profiles, version.WithKind("ProxyProfile")) })
	t.Run("shared", func(t *testing.T) { checksShared(t, profiles, version.WithKind("ProxyProfile")) })
	t.Run("counts of proxies", func(t *testing.T) {
		storesOldStatus(t, client, profiles, "haproxy")
		takesCounts(t, profiles)
	})
	t.Run("changes", func(t *testing.T) { changesProfile(t, profiles) })
	const profile, sidecar = "ProxyProfile", "ManagedProxy"
	for name, c := range map[string]struct {
		kind, spec string
		// want is a word of the refusal, or of what was made.
		refused bool
		want    string
	}{
		"a profile, with its defaults": {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}}", want: "outboundPort: 15001"},
		"a profile without an image":   {kind: profile, spec: "{readiness: {tcpPort: 80}}", refused: true, want: "image is missing"},
		"two questions to one proxy":   {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80, socket: s}}", refused: true, want: "exactly one of httpGet, tcpPort and socket"},
		"a handover without arguments": {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, handover: haproxy}", refused: true, want: "set command or args"},
		"a value that is two things": {
			kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, env: [{name: A, value: b, fieldPath: metadata.name}]}", refused: true, want: "exclude each other",
		},
		"a field that there is not":    {kind: profile, spec: "{imgae: a/b, readiness: {tcpPort: 80}}", refused: true, want: `unknown field "spec.imgae"`},
		"a field that a part has not":  {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80, every: 5}}", refused: true, want: `unknown field "spec.readiness.every"`},
		"a proxy that runs as root":    {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, runAsUser: 0}", refused: true, want: "spec.runAsUser"},
		"a proxy in the group of root": {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, runAsGroup: 0}", refused: true, want: "spec.runAsGroup"},
		"a port that there is not":     {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, network: {inboundPort: 70000}}", refused: true, want: "spec.network.inboundPort"},
		"a few nodes at once":          {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {maxNodes: 3, paused: true}}", want: "maxNodes: 3"},
		"one node stays":               {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {partition: 1}}", want: "partition: 1"},
		"most nodes stay":              {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {partition: 90%}}", want: "partition: 90%"},
		"more than all nodes stay":     {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {partition: 101%}}", refused: true, want: "partition is a number of nodes, or a percentage of them from 0% to 100%"},
		"fewer than no node stays":     {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {partition: -1}}", refused: true, want: "partition is a number of nodes, or a percentage of them from 0% to 100%"},
		"no node at once":              {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, rollout: {maxNodes: 0}}", refused: true, want: "spec.rollout.maxNodes"},
		"a file outside its directory": {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, files: [{name: ../x, template: ''}]}", refused: true, want: "spec.files[0].name"},
		"two listeners at one port":    {kind: profile, spec: "{image: a/b, readiness: {tcpPort: 80}, network: {inboundPort: 15001}}", refused: true, want: "are the same"},
		"a pod's proxy":                {kind: sidecar, spec: "{profile: a, pod: b, podUID: c, node: d}", want: "podUID: c"},
		"nobody's":                     {kind: sidecar, spec: "{profile: a}", refused: true, want: "spec.pod"},
	} {
		t.Run(name, func(t *testing.T) {
			to := dynamic.ResourceInterface(profiles)
			if c.kind == sidecar {
				to = sidecars
			}
			refused, text := createSpec(t, to, version.WithKind(c.kind), c.spec)
			if refused != c.refused || !strings.Contains(text, c.want) {
				t.Errorf("refused: %t, want %t and %q in\n%s", refused, c.refused, c.want, text)
			}
		})
	}
}

// createsSample makes a profile that people start from. No field of it may be unknown.
func createsSample(t *testing.T, profiles dynamic.ResourceInterface, name string) {
	t.Helper()
	text, err := os.ReadFile("../../../../config/samples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	sample := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(text, &sample.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := profiles.Create(t.Context(), sample, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Error(err)
	}
}

// takesCounts writes a status as the elected agent does, which is refused once the object has changed.
func takesCounts(t *testing.T, profiles dynamic.ResourceInterface) {
	t.Helper()
	seen, err := profiles.Get(t.Context(), "haproxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(rollout string) error {
		_, err := profiles.Patch(t.Context(), seen.GetName(), types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"`+seen.GetResourceVersion()+`"},"status":{
			"observedGeneration":1,"pods":3,"upgraded":2,"failed":1,"nodeCount":2,"nodesPaused":1,"rollout":`+rollout+`,
			"conditions":[{"type":"Upgraded","status":"False","reason":"Paused","message":"x","observedGeneration":1,"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`),
			metav1.PatchOptions{FieldManager: "agent", FieldValidation: metav1.FieldValidationStrict}, "status")
		return err
	}
	if err := patch(`{"hash":"h1","admitted":65537}`); !apierrors.IsInvalid(err) {
		t.Errorf("more nodes than all: %v", err)
	}
	// No agent could read any profile.
	lower := strings.ReplaceAll(conditions(""), "T03:04:05Z", "t03:04:05z")
	if _, err := profiles.Patch(t.Context(), seen.GetName(), types.MergePatchType, []byte(lower), metav1.PatchOptions{}, "status"); !apierrors.IsInvalid(err) {
		t.Errorf("a time that cannot be decoded: %v", err)
	}
	for _, rollout := range []string{`{"hash":"h1","admitted":65536}`, "null"} {
		if err := patch(rollout); err != nil {
			t.Error(err)
		}
		if err := patch(rollout); !apierrors.IsConflict(err) {
			t.Errorf("computed from an old object: %v", err)
		}
		if seen, err = profiles.Get(t.Context(), "haproxy", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, is, _ := unstructured.NestedMap(seen.Object, "status", "rollout"); is != (rollout != "null") {
			t.Errorf("the status is %v after %s", seen.Object["status"], rollout)
		}
	}
}

// changesProfile changes what the rules of running pods depend on, and to numbers that agents cannot read: both are refused.
func changesProfile(t *testing.T, profiles dynamic.ResourceInterface) {
	t.Helper()
	const stays = "make another profile"
	for patch, want := range map[string]string{
		`{"spec":{"network":{"inboundPort":16006}}}`: stays, `{"spec":{"network":{"transparent":true}}}`: stays, `{"spec":{"runAsUser":1400}}`: stays,
		`{"spec":{"image":"a/b:2"}}`: "", `{"spec":{"network":{"excludeInboundPorts":[15021,9100]}}}`: "",
		`{"spec":{"network":{"excludeInboundPorts":[65616]}}}`: "spec.network.excludeInboundPorts[0]",
		`{"spec":{"rollout":{"partition":2147483648}}}`:        "partition is a number of nodes",
	} {
		_, err := profiles.Patch(t.Context(), "haproxy", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", patch, err, want)
		}
	}
}

// createSpec makes an object with a spec, and returns the refusal or what was made.
func createSpec(t *testing.T, to dynamic.ResourceInterface, kind schema.GroupVersionKind, spec string) (refused bool, text string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("{metadata: {generateName: x-}, spec: "+spec+"}"), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(kind)
	made, err := to.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}) // as kubectl
	if err != nil {
		return true, err.Error()
	}
	raw, err := yaml.Marshal(made.Object)
	if err != nil {
		t.Fatal(err)
	}
	return false, string(raw)
}
