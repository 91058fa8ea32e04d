package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// documents splits a file.
func documents(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	text, err := os.ReadFile(sampleFile(file))
	must(t, err)
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		all = append(all, document)
	}
}

// readSample reads the objects of a file, in which no field may be unknown.
func readSample(t *testing.T, file string) (objects []runtime.Object) {
	t.Helper()
	kinds := map[string]func() runtime.Object{
		"Deployment": func() runtime.Object { return &appsv1.Deployment{} },
		"Pod":        func() runtime.Object { return &corev1.Pod{} },
		"Service":    func() runtime.Object { return &corev1.Service{} },
	}
	for _, document := range documents(t, file) {
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal(document, &kind))
		made := kinds[kind.Kind]
		if made == nil {
			t.Fatalf("%s: nobody knows how to run a %s", file, kind.Kind)
		}
		object := made()
		must(t, yaml.UnmarshalStrict(document, object))
		objects = append(objects, object)
	}
	return objects
}

// localize replaces what a sample has of its readers: namespace and images. An application becomes the test's, and the proxy is injected where
// the sample leaves that to Istio.
func (s *space) localize(t *testing.T, meta *metav1.ObjectMeta, spec *corev1.PodSpec, proxyArgs []string) {
	t.Helper()
	meta.Namespace = ""
	if meta.Name != "" {
		meta.Namespace = s.name
	}
	_, managed := meta.Annotations[keySidecar]
	proxied := managed
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			proxied = proxied || list[i].Name == "istio-proxy"
			s.localizeContainer(t, &list[i])
		}
	}
	if !proxied {
		proxy := proxyContainer("istio-proxy", append([]string{"proxy", "sidecar"}, proxyArgs...)...)
		if meta.Annotations[keyMode] == "TPROXY" {
			proxy = asRoot(proxyContainer("istio-proxy", append(proxy.Args, "-transparent")...), "NET_ADMIN")
		}
		spec.Containers = append(spec.Containers, proxy)
	}
	second := int64(1)
	spec.TerminationGracePeriodSeconds = &second
}

func (s *space) localizeContainer(t *testing.T, c *corev1.Container) {
	t.Helper()
	switch {
	case c.Name == "istio-proxy":
		c.Image = proxyImage
	case strings.HasPrefix(c.Image, "registry.example.com/mesh/"+agentName+":"):
		agent := s.agent(t)
		c.Image = agent.Spec.Containers[0].Image
	case strings.HasPrefix(c.Image, "registry.example.com/bookinfo/"):
		// The test finds the application by the name of its container.
		c.Name, c.Image, c.Args = "app", "localhost/testapp:1", []string{"serve", "-http=9080,9100,8080"}
	default:
		t.Fatalf("container %s has an image of nobody's: %s", c.Name, c.Image)
	}
}

// appliesSample has the API server check every object of a file, and keep none.
func appliesSample(t *testing.T, file string) {
	t.Helper()
	s := newSpace(t, nil)
	var text string
	for _, document := range documents(t, file) {
		text += "---\n" + string(document) + "\n"
	}
	// Nobody makes the samples' namespaces here.
	text = strings.NewReplacer("namespace: bookinfo", "namespace: "+s.name, "namespace: agents", "namespace: "+s.name).Replace(text)
	cmd := exec.CommandContext(t.Context(), "kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", file, err, out)
	}
}

// istioValues are the values of istiod's chart that its sample may have.
type istioValues struct {
	Pilot struct {
		CNI struct {
			Enabled  bool   `json:"enabled"`
			Provider string `json:"provider"`
		} `json:"cni"`
		Taint struct {
			Enabled bool `json:"enabled"`
		} `json:"taint"`
	} `json:"pilot"`
}

func readsIstioValues(t *testing.T, file string) {
	t.Helper()
	var got, want istioValues
	readStrictly(t, file, &got)
	want.Pilot.CNI.Enabled, want.Pilot.CNI.Provider = true, "default"
	if got != want {
		t.Errorf("%s is %+v, want %+v", file, got, want)
	}
}

// readsIstioOperator wants the same for istioctl. Tests in test/istio render it.
func readsIstioOperator(t *testing.T, file string) {
	t.Helper()
	var got struct {
		metav1.TypeMeta `json:",inline"`

		Spec struct {
			Components struct {
				CNI struct {
					Enabled *bool `json:"enabled"`
				} `json:"cni"`
			} `json:"components"`
			UnvalidatedValues istioValues `json:"unvalidatedValues"`
		} `json:"spec"`
	}
	readStrictly(t, file, &got)
	var want istioValues
	want.Pilot.CNI.Enabled, want.Pilot.CNI.Provider = true, "default"
	if cni := got.Spec.Components.CNI.Enabled; cni == nil || *cni || got.Spec.UnvalidatedValues != want {
		t.Errorf("%s is %+v, want %+v and no istio-cni", file, got, want)
	}
}

// nodePool has the fields of Karpenter's kind that its sample may have.
type nodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Template struct {
			Spec struct {
				StartupTaints []corev1.Taint                   `json:"startupTaints"`
				Requirements  []corev1.NodeSelectorRequirement `json:"requirements"`
				NodeClassRef  struct {
					Group string `json:"group"`
					Kind  string `json:"kind"`
					Name  string `json:"name"`
				} `json:"nodeClassRef"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

func readsNodePool(t *testing.T, file string) {
	t.Helper()
	var pool nodePool
	readStrictly(t, file, &pool)
	want := corev1.Taint{Key: keyStartupTaint, Effect: corev1.TaintEffectNoSchedule}
	if got := pool.Spec.Template.Spec.StartupTaints; !slices.Equal(got, []corev1.Taint{want}) {
		t.Errorf("the startup taints are %v, want %v", got, want)
	}
}

func readsAutoscalerValues(t *testing.T, file string) {
	t.Helper()
	var values struct {
		ExtraArgs map[string]string `json:"extraArgs"`
	}
	readStrictly(t, file, &values)
	if got := values.ExtraArgs["startup-taint"]; got != keyStartupTaint || len(values.ExtraArgs) != 1 {
		t.Errorf("the arguments are %v, want startup-taint=%s", values.ExtraArgs, keyStartupTaint)
	}
}

// rendersChart wants the chart to accept a sample's values, and to render a text with them.
func rendersChart(want string) func(*testing.T, string) {
	return func(t *testing.T, file string) {
		t.Helper()
		if out := helm(t, "template", agentName, "chart/"+agentName, "-f", filepath.Join("config/samples", file)); !strings.Contains(out, want) {
			t.Errorf("the chart renders no %q", want)
		}
	}
}

func readStrictly(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(sampleFile(file))
	must(t, err)
	must(t, yaml.UnmarshalStrict(text, into))
}
