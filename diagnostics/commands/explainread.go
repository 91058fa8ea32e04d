package commands

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/sidecars/istio"
)

// Bounds of what `explain` reads.
const (
	maxManifests = 16 * cmdline.MaxManifest // of all files
	maxWorkloads = 5000
)

// workload is a pod, or what makes pods.
type workload struct {
	kind     string
	pod      corev1.Pod // with the namespace and name of the object
	warnings []string
	fault    error // why pod could not be read
}

// manifests is what was found in files.
type manifests struct {
	workloads  []workload
	namespaces map[string]*corev1.Namespace
	profiles   map[string]v1alpha1.ProxyProfileSpec
	configMaps map[string]*corev1.ConfigMap // by NAMESPACE/NAME
	// proxyConfigs are Istio's objects for a mesh, a namespace or some pods.
	proxyConfigs []istio.ProxyConfig
	ignored      map[string]bool // other kinds
	// passed are objects of other kinds that have containers where nobody looks.
	passed []passedOver
}

// passedOver is an object whose pods `explain` does not know.
type passedOver struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// At is the path of its first container.
	At string `json:"at"`
}

// others names the ignored kinds.
func (m manifests) others() string {
	if len(m.ignored) == 0 {
		return ""
	}
	return " (found: " + strings.Join(slices.Sorted(maps.Keys(m.ignored)), ", ") + ")"
}

// readWorkloads reads all objects of the files. Objects without a namespace belong to the given one, or the manifests' only Namespace, or default.
func readWorkloads(in io.Reader, files []string, namespace string) (manifests, error) {
	out := manifests{
		namespaces: map[string]*corev1.Namespace{}, profiles: map[string]v1alpha1.ProxyProfileSpec{}, configMaps: map[string]*corev1.ConfigMap{},
		ignored: map[string]bool{},
	}
	left := maxManifests
	for _, file := range files {
		data, err := cmdline.ReadFile(in, file, left, fmt.Sprintf("the manifests are larger than %d bytes in all", maxManifests))
		if err != nil {
			return out, fmt.Errorf("--filename: %w", err)
		}
		left -= len(data)
		if err := out.addAll(data); err != nil {
			return out, fmt.Errorf("--filename: read %s: %w", file, err)
		}
	}
	for i := range out.workloads {
		if w := &out.workloads[i]; w.pod.Namespace == "" {
			w.pod.Namespace = cmp.Or(namespace, out.usualNamespace())
		}
	}
	return out, nil
}

func (m manifests) usualNamespace() string {
	if len(m.namespaces) == 1 {
		for name := range m.namespaces {
			return name
		}
	}
	return metav1.NamespaceDefault
}

// addAll adds the documents of one file.
func (m *manifests) addAll(data []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = m.addDocument(document)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

// addDocument adds the objects of one document. Of a key that is there twice the last one counts, as for kubectl.
func (m *manifests) addDocument(document []byte) error {
	object, err := yaml.YAMLToJSON(document)
	if err != nil || string(object) == "null" {
		return err
	}
	before := len(m.workloads)
	if err := m.add(object); err != nil {
		return err
	}
	if _, err := yaml.YAMLToJSONStrict(document); err != nil {
		for i := range m.workloads[before:] {
			w := &m.workloads[before+i]
			w.warnings = append(w.warnings, "a key is there twice, and the last one counts: "+strings.Join(strings.Fields(cause(err)), " "))
		}
	}
	return nil
}

// add adds an object, or each object of a List.
func (m *manifests) add(data []byte) error {
	var object unstructured.Unstructured
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return fmt.Errorf("it is no object of Kubernetes: %w", err)
	}
	if len(m.workloads) >= maxWorkloads {
		return fmt.Errorf("there are more than %d pods and workloads", maxWorkloads)
	}
	kind, apiVersion, name := object.GetKind(), object.GetAPIVersion(), cmp.Or(object.GetName(), object.GetGenerateName())
	items, isList := object.Object["items"].([]any)
	switch {
	case kind == "":
		return errors.New("it has no kind")
	case strings.HasSuffix(kind, "List") && isList:
		return m.addItems(items)
	case kind == "Namespace" && apiVersion == "v1":
		var ns corev1.Namespace
		if err := decode(data, object.Object, &ns); err != nil {
			return fmt.Errorf("namespace %q: %w", name, err)
		}
		m.namespaces[ns.Name] = &ns
	case kind == "ProxyProfile" && apiVersion == v1alpha1.GroupVersion().String():
		var profile v1alpha1.ProxyProfile
		if err := decode(data, object.Object, &profile); err != nil {
			return fmt.Errorf("ProxyProfile %q: %w", name, err)
		}
		m.profiles[profile.Name] = profile.Spec
	case object.GroupVersionKind() == istio.ProxyConfigKind:
		var config istio.ProxyConfig
		if err := json.Unmarshal(data, &config); err != nil {
			return fmt.Errorf("ProxyConfig %q: %w", name, err)
		}
		m.proxyConfigs = append(m.proxyConfigs, config)
	case ofKind(apiVersion, kind) != nil, templated(object.Object):
		w := readWorkload(data, object)
		w.pod.Namespace, w.pod.Name = object.GetNamespace(), name
		m.workloads = append(m.workloads, w)
	default:
		m.ignored[kind] = true
		if at := containersAt(object.Object, ""); at != "" && len(m.passed) < maxWorkloads {
			m.passed = append(m.passed, passedOver{Kind: kind, Namespace: object.GetNamespace(), Name: name, At: at})
		}
		var found corev1.ConfigMap
		if kind == "ConfigMap" && json.Unmarshal(data, &found) == nil { // Istio's, if a pod's proxy needs it
			m.configMaps[found.Namespace+"/"+found.Name] = &found
		}
	}
	return nil
}

func (m *manifests) addItems(items []any) error {
	for _, item := range items {
		data, err := json.Marshal(item)
		if err == nil {
			err = m.add(data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
