package profile

import (
	"errors"
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
)

func sharedSpec(files ...v1alpha1.File) Spec {
	return Spec{Shared: &Reload{}, Files: files, Network: v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006}}
}

func TestNew_namesOfOtherKind_areRefused(t *testing.T) {
	for name, c := range map[string]struct {
		shared     bool
		text, says string
	}{
		"the epoch of a shared proxy":     {true, `x {{ .Epoch }}`, `file "f": .Epoch is for containers`},
		"the pod in a condition":          {true, `{{ if eq .Pod.Name "x" }}{{ end }}`, `.Pod is for containers`},
		"the root in a loop":              {true, `{{ range .Pods }}{{ $.AdminSocket }}{{ end }}`, `.AdminSocket is for containers`},
		"in the else of a loop":           {true, `{{ range .Pods }}{{ else }}{{ .HandoverSocket }}{{ end }}`, `.HandoverSocket`},
		"in brackets":                     {true, `{{ (print .Epoch) }}`, `.Epoch`},
		"the pods in a container":         {false, `{{ range .Pods }}{{ end }}`, `.Pods is for shared proxies`},
		"the version in a container":      {false, `{{ .Version }}`, `.Version is for shared proxies`},
		"a label that is called so":       {false, `{{ with .Pod.Labels }}{{ .Version }}{{ end }}`, ``},
		"a label by its path":             {false, `{{ .Pod.Labels.Version }}`, ``},
		"all that a shared template sees": {true, `{{ .Node }}{{ .Version }}{{ .Network.InboundPort }}{{ range .Pods }}{{ .Node }}{{ .NetNS }}{{ end }}`, ``},
		"nothing":                         {true, ``, ``},
		"a comment alone":                 {true, `{{/* .Epoch */}}`, ``},
	} {
		spec := sharedSpec(v1alpha1.File{Name: "f", Template: c.text})
		if !c.shared {
			spec.Shared = nil
		}
		_, err := New("edge", spec)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRenderShared_pods_allAreInTheFile(t *testing.T) {
	text := `version {{ .Version }}
{{ range .Pods }}bind :{{ $.Network.InboundPort }} namespace {{ .NetNS }} # {{ .Namespace }}/{{ .Name }} {{ index .Annotations "a" }}
{{ end }}`
	p, err := New("edge", sharedSpec(v1alpha1.File{Name: "f", Template: text, Syntax: syntaxHAProxy}))
	if err != nil {
		t.Fatal(err)
	}
	pods := []SharedPod{
		{PodData{Name: "a", Namespace: "shop"}, "cni-1"},
		{PodData{Name: "b", Namespace: "shop", Annotations: map[string]string{"a": "' user root '"}}, "cni-2"},
	}
	files, err := RenderShared(p, SharedData{Pods: pods, Version: "7"})
	want := "version '7'\nbind :15006 namespace 'cni-1' # 'shop'/'a' ''\nbind :15006 namespace 'cni-2' # 'shop'/'b' ''\\'' user root '\\'''\n"
	if err != nil || files["f"] != want {
		t.Errorf("got %q, error %v", files["f"], err)
	}
	for range 40_000 {
		pods = append(pods, pods[0])
	}
	if _, err := RenderShared(p, SharedData{Pods: pods}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than 1 MiB: %v", err)
	}
}
