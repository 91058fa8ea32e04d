package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestTheImage(t *testing.T) {
	digest, version := "sha256:"+strings.Repeat("0a", 32), load(t).Metadata.AppVersion
	for in, want := range map[string]string{
		"image: {repository: r/a}":                                           "r/a:" + version,
		"{image: {repository: r/a}, backend: iptables}":                      "r/a:" + version + "-iptables",
		"image: {repository: r/a, tag: '7'}":                                 "r/a:7",
		"image: {repository: r/a, tag: '7', digest: '" + digest + "'}":       "r/a@" + digest,
		"{image: {repository: r/a, digest: '" + digest + "'}, cni: install}": "r/a@" + digest,
	} {
		pod := daemonSet(t, in).Spec.Template.Spec
		for _, c := range append(append([]corev1.Container{}, pod.InitContainers...), pod.Containers...) {
			if c.Image != want {
				t.Errorf("%s: container %s has %s, want %s", in, c.Name, c.Image, want)
			}
		}
	}
}

// A selector cannot be changed, so what people set may not get into it.
func TestLabels(t *testing.T) {
	const all = "{cni: install, startupTaint: true, platform: openshift, resourceQuota: {enabled: true}, " +
		"sidecars: {enabled: true, untestedPlatform: true, tokenAudiences: [a], shared: [" + minimalShared + "]}, admission: {enabled: true, restrictAgent: true, allowOptOut: false}"
	for _, doc := range documents(t, all+", commonLabels: {example.com/team: mesh}}") {
		var object struct {
			Kind     string
			Metadata struct{ Labels map[string]string }
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		if object.Metadata.Labels["example.com/team"] != "mesh" {
			t.Errorf("a %s has the labels %v", object.Kind, object.Metadata.Labels)
		}
	}
	plain, labelled := daemonSet(t, "{}"), daemonSet(t, "{commonLabels: {a: common, b: common}, podLabels: {b: pod, c: pod}}")
	if diff := cmp.Diff(plain.Spec.Selector, labelled.Spec.Selector); diff != "" {
		t.Errorf("the selector changed (-without +with labels):\n%s", diff)
	}
	want := plain.Spec.Template.Labels
	want["a"], want["b"], want["c"] = "common", "pod", "pod"
	if diff := cmp.Diff(want, labelled.Spec.Template.Labels); diff != "" {
		t.Errorf("labels of the pods (-want +got):\n%s", diff)
	}
}

// Every place that means the account has its name, above all the policies that bound it.
func TestTheAccount(t *testing.T) {
	const all = "cni: install, startupTaint: true, platform: openshift, sidecars: {enabled: true, untestedPlatform: true, tokenAudiences: [a]}, admission: {restrictAgent: true}"
	const user = "system:serviceaccount:" + name + ":"
	text := strings.Join(documents(t, "{"+all+"}"), "\n---\n")
	users := strings.Count(text, user+name+`"`)
	if users < 5 {
		t.Fatalf("%d policies name the account", users)
	}
	renamed := strings.Join(documents(t, "{"+all+", serviceAccount: {name: own, annotations: {a: b}}}"), "\n---\n")
	if got := strings.Count(renamed, user+`own"`); got != users || strings.Contains(renamed, user+name) {
		t.Errorf("%d policies name the account own, want %d", got, users)
	}
	for values, want := range map[string]bool{"{}": true, "serviceAccount: {create: false, name: own}": false} {
		made := slices.ContainsFunc(documents(t, values), func(doc string) bool {
			_, ok := decode(t, doc).(*corev1.ServiceAccount)
			return ok
		})
		if made != want {
			t.Errorf("%s: the account is made: %t, want %t", values, made, want)
		}
	}
	for _, doc := range documents(t, "serviceAccount: {name: own, annotations: {a: b}}") {
		if made, ok := decode(t, doc).(*corev1.ServiceAccount); ok && (made.Name != "own" || made.Annotations["a"] != "b") {
			t.Errorf("the account is %s with %v", made.Name, made.Annotations)
		}
	}
	// Whoever is given rights is the account.
	sets := "{" + all + ", serviceAccount: {create: false, name: own}}"
	if got := account(t, sets); got != "own" {
		t.Errorf("the agent runs as %s", got)
	}
	granted(t, sets)
}

// A connection that is broken without a word is noticed within 15 s, unless somebody wants another time.
func TestEnvironment(t *testing.T) {
	for in, want := range map[string]map[string]string{
		"{}": {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"},
		"extraEnv: [{name: HTTP2_PING_TIMEOUT_SECONDS, value: '7'}, {name: A, value: b}]": {
			"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "7", "A": "b",
		},
	} {
		got := map[string]string{}
		for _, e := range daemonSet(t, in).Spec.Template.Spec.Containers[0].Env {
			if e.ValueFrom == nil {
				got[e.Name] += e.Value
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

func TestMoreVolumes(t *testing.T) {
	const values = "{platform: openshift, extraVolumes: [{name: ca, configMap: {name: a}}, {name: s, secret: {secretName: b}}], extraVolumeMounts: [{name: ca, mountPath: /ca}]}"
	ds := daemonSet(t, values)
	if fault := faultOf(t, ds); fault != "" {
		t.Error(fault)
	}
	mounts := ds.Spec.Template.Spec.Containers[0].VolumeMounts
	if last := mounts[len(mounts)-1]; last.Name != "ca" || last.MountPath != "/ca" {
		t.Errorf("the last mount is %+v", last)
	}
	want := []any{"emptyDir", "hostPath", "projected", "configMap", "secret"}
	if diff := cmp.Diff(want, constraints(t, values)["volumes"]); diff != "" {
		t.Errorf("volumes that OpenShift allows (-want +got):\n%s", diff)
	}
	if _, err := install(t, "extraVolumes: [{name: netns, emptyDir: {}}]"); err == nil || !strings.Contains(err.Error(), "the chart has a volume netns of its own") {
		t.Errorf("a volume of the chart's: %v", err)
	}
}

// Numbers that people write without quotes, or that --set makes of them.
func TestNumbersNeedNoQuotes(t *testing.T) {
	got := arguments(t, "{metricsAddr: 0, pprofAddr: 0, nriIndex: 10}")
	if got["metrics-addr"] != "0" || got["pprof-addr"] != "0" || got["nri-index"] != "10" {
		t.Errorf("arguments are %v", got)
	}
}

// What Artifact Hub reads must be what it can read, and name what the chart renders.
func TestTheChartDescribesItself(t *testing.T) {
	about := load(t).Metadata
	var crds []struct{ Kind, Version, Name, DisplayName, Description string }
	var images []struct{ Name, Image string }
	for key, into := range map[string]any{"crds": &crds, "images": &images, "changes": &[]struct{ Kind, Description string }{}, "links": &[]struct{ Name, URL string }{}} {
		if err := yaml.UnmarshalStrict([]byte(about.Annotations["artifacthub.io/"+key]), into); err != nil {
			t.Errorf("artifacthub.io/%s: %v", key, err)
		}
	}
	if image := daemonSet(t, "{}").Spec.Template.Spec.Containers[0].Image; len(images) != 2 || images[0].Image != image || images[1].Image != image+"-iptables" {
		t.Errorf("images are %v, the chart renders %s", images, image)
	}
	rel, err := install(t, withSidecars)
	if err != nil {
		t.Fatal(err)
	}
	if len(crds) != strings.Count(rel.Manifest, "kind: CustomResourceDefinition") {
		t.Errorf("%d definitions are listed", len(crds))
	}
	for _, crd := range crds {
		if !strings.Contains(rel.Manifest, "name: "+crd.Name+"\n") || !strings.Contains(rel.Manifest, "kind: "+crd.Kind+"\n") {
			t.Errorf("the chart renders no %s %s", crd.Kind, crd.Name)
		}
	}
}
