package commands

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/internal/intent"
)

// kinds are the kinds of Kubernetes that are, or make, pods, with the group of their API. An object of any other kind counts as one of them if it has
// a pod template where they have theirs.
func kinds() map[string]string {
	return map[string]string{
		"Pod": "", "ReplicationController": "",
		"Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "DaemonSet": "apps",
		"Job": "batch", "CronJob": "batch",
	}
}

func workloadKinds() string { return strings.Join(slices.Sorted(maps.Keys(kinds())), ", ") }

// ofKind returns a new object of a kind, or nil for a kind without pods.
func ofKind(apiVersion, kind string) any {
	version, err := schema.ParseGroupVersion(apiVersion)
	if group, ok := kinds()[kind]; err != nil || !ok || group != version.Group {
		return nil
	}
	object, err := scheme.Scheme.New(schema.GroupVersionKind{Group: version.Group, Version: "v1", Kind: kind})
	if err != nil {
		return nil
	}
	return object
}

// templated reports whether an object has a pod template at spec.template.
func templated(object map[string]any) bool {
	containers, _, err := unstructured.NestedFieldNoCopy(object, "spec", "template", "spec", "containers")
	list, _ := containers.([]any)
	return err == nil && len(list) > 0
}

// containersAt returns the path of the first container in an object of any kind, or "": a list "containers" of objects, or an object "container"
// with an image.
func containersAt(tree any, path string) string {
	switch tree := tree.(type) {
	case []any:
		for i, item := range tree {
			if found := containersAt(item, fmt.Sprintf("%s[%d]", path, i)); found != "" {
				return found
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(tree)) {
			at := strings.TrimPrefix(path+"."+name, ".")
			if isContainers(name, tree[name]) {
				return at
			}
			if found := containersAt(tree[name], at); found != "" {
				return found
			}
		}
	}
	return ""
}

func isContainers(name string, value any) bool {
	switch value := value.(type) {
	case []any:
		if len(value) == 0 || name != "containers" && name != "initContainers" {
			return false
		}
		_, is := value[0].(map[string]any)
		return is
	case map[string]any:
		_, is := value["image"].(string)
		return is && name == "container"
	}
	return false
}

// podOf returns the pod that an object is, or makes.
func podOf(kind string, data []byte) (pod corev1.Pod, err error) {
	if kind == "Pod" {
		err = json.Unmarshal(data, &pod)
		return pod, err
	}
	var maker struct {
		Spec struct {
			Template    corev1.PodTemplateSpec  `json:"template"`
			JobTemplate batchv1.JobTemplateSpec `json:"jobTemplate"` // a CronJob's
		} `json:"spec"`
	}
	err = json.Unmarshal(data, &maker)
	template := maker.Spec.Template
	if kind == "CronJob" {
		template = maker.Spec.JobTemplate.Spec.Template
	}
	return corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, err
}

// readWorkload reads a pod, or what makes pods. The caller sets its namespace and name.
func readWorkload(data []byte, object unstructured.Unstructured) workload {
	kind := object.GetKind()
	w := workload{kind: kind}
	known := ofKind(object.GetAPIVersion(), kind)
	if w.fault = decode(data, object.Object, cmp.Or[any](known, &corev1.PodTemplate{})); w.fault != nil { // of another kind, the fields do not matter
		return w
	}
	if w.pod, w.fault = podOf(kind, data); w.fault != nil {
		return w
	}
	for _, key := range slices.Sorted(maps.Keys(object.GetAnnotations())) {
		if kind != "Pod" && intent.Reads(key) {
			w.warnings = append(w.warnings, fmt.Sprintf("annotation %s is on the %s itself, where it has no effect: move it to the pod template's metadata.annotations", key, kind))
		}
	}
	if len(w.pod.Spec.Containers) == 0 {
		w.warnings = append(w.warnings, "it has no containers: the API server would refuse it")
	}
	if known == nil {
		return w
	}
	if err := yaml.UnmarshalStrict(data, ofKind(object.GetAPIVersion(), kind)); err != nil {
		w.warnings = append(w.warnings, "a field that nobody knows: "+cause(err))
	}
	return w
}

// decode decodes an object, of which tree is the same JSON. Annotations and labels that are no strings, the usual mistake, are named by their path.
func decode(data []byte, tree map[string]any, into any) error {
	if faults := notStrings(tree, ""); len(faults) > 0 {
		return fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s", cause(err))
	}
	return nil
}

// cause returns the message of an error of decoding without the names of our libraries.
func cause(err error) string {
	message := err.Error()
	for _, words := range []string{"error unmarshaling JSON: ", "while decoding JSON: ", "json: "} {
		message = strings.ReplaceAll(message, words, "")
	}
	return message
}

// notStrings returns a sentence for each annotation and label that is no string, in an object at a path.
func notStrings(object map[string]any, path string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		inner, _ := object[name].(map[string]any)
		if name != "metadata" {
			out = append(out, notStrings(inner, at)...)
			continue
		}
		for _, field := range []string{"annotations", "labels"} {
			values, _ := inner[field].(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if kind := notString(values[key]); kind != "" {
					out = append(out, fmt.Sprintf("%s.%s[%s]: value %v is %s: want a string, so quote it", at, field, key, values[key], kind))
				}
			}
		}
	}
	return out
}

// notString returns what a value is, or "" for a string.
func notString(value any) string {
	switch value.(type) {
	case string, nil: // null counts as an empty text
		return ""
	case bool:
		return "a bool"
	case float64:
		return "a number"
	}
	return "a list or an object"
}
