package commands

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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

// place is where a document begins: a file's name, - for standard input, and a line.
type place struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

// workload is a pod, or what makes pods.
type workload struct {
	place
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
	place
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
func readWorkloads(cmd *cobra.Command, files []string, namespace string) (manifests, error) {
	out := manifests{
		namespaces: map[string]*corev1.Namespace{}, profiles: map[string]v1alpha1.ProxyProfileSpec{}, configMaps: map[string]*corev1.ConfigMap{},
		ignored: map[string]bool{},
	}
	left := maxManifests
	files, err := withoutDirectories(files)
	errs := []error{err}
	for _, file := range files {
		data, err := cmdline.ReadFile(cmd.Context(), cmd.InOrStdin(), file, left, fmt.Sprintf("the manifests are larger than %d bytes in all", maxManifests))
		if err != nil {
			errs = append(errs, fmt.Errorf("--filename: %w", err))
			continue
		}
		left -= len(data)
		if err := out.addAll(file, data); err != nil {
			errs = append(errs, fmt.Errorf("--filename: read %s: %w", file, err))
		}
	}
	for i := range out.workloads {
		if w := &out.workloads[i]; w.pod.Namespace == "" {
			w.pod.Namespace = cmp.Or(namespace, out.usualNamespace())
		}
	}
	return out, errors.Join(errs...)
}

// withoutDirectories replaces a directory by the manifests in it and below. Names that begin with a dot are left out.
func withoutDirectories(names []string) (files []string, err error) {
	for _, name := range names {
		if info, errStat := os.Stat(name); name == "-" || errStat != nil || !info.IsDir() {
			files = append(files, name)
			continue
		}
		before := len(files)
		root := name + string(filepath.Separator) // name may be a link to a directory
		errWalk := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch hidden := path != root && strings.HasPrefix(entry.Name(), "."); {
			case err != nil:
				return err
			case hidden && entry.IsDir():
				return fs.SkipDir
			case !hidden && !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
				files = append(files, path)
			}
			return nil
		})
		if errWalk == nil && len(files) == before {
			errWalk = fmt.Errorf("%s has no manifests, whose names end with .yaml, .yml or .json", name)
		}
		if errWalk != nil {
			err = errors.Join(err, fmt.Errorf("--filename: %w", errWalk))
		}
	}
	return files, err
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
func (m *manifests) addAll(file string, data []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	line := 1
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		at, workloads, passed := place{file, line + linesBefore(document)}, len(m.workloads), len(m.passed)
		if err == nil {
			err = m.addDocument(document)
		}
		if err != nil {
			return fmt.Errorf("document %d, from line %d: %w", number, at.Line, err)
		}
		for i := range m.workloads[workloads:] {
			m.workloads[workloads+i].place = at
		}
		for i := range m.passed[passed:] {
			m.passed[passed+i].place = at
		}
		line += bytes.Count(document, []byte("\n")) + 1 // the line that ends the document
	}
}

// linesBefore counts the lines of a document before its first key: empty ones, comments, and what separates documents.
func linesBefore(document []byte) (n int) {
	for line := range bytes.Lines(document) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' && !bytes.HasPrefix(text, []byte("---")) {
			return n
		}
		n++
	}
	return 0
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
