package profile

import (
	"errors"
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
)

func sharedProfile(files ...v1alpha1.File) *v1alpha1.ProxyProfile {
	p := *usual()
	p.Spec.Mode, p.Spec.Files = v1alpha1.ModeShared, files
	return &p
}

func TestCompile_namesOfOtherMode_areRefused(t *testing.T) {
	for name, c := range map[string]struct {
		mode       v1alpha1.Mode
		text, says string
	}{
		"the epoch in mode shared":        {v1alpha1.ModeShared, `x {{ .Epoch }}`, `file "f": .Epoch is of mode perPod`},
		"the pod in a condition":          {v1alpha1.ModeShared, `{{ if eq .Pod.Name "x" }}{{ end }}`, `.Pod is of mode perPod`},
		"the root in a loop":              {v1alpha1.ModeShared, `{{ range .Pods }}{{ $.AdminSocket }}{{ end }}`, `.AdminSocket is of mode perPod`},
		"in the else of a loop":           {v1alpha1.ModeShared, `{{ range .Pods }}{{ else }}{{ .HandoverSocket }}{{ end }}`, `.HandoverSocket`},
		"in brackets":                     {v1alpha1.ModeShared, `{{ (print .Epoch) }}`, `.Epoch`},
		"the pods in mode perPod":         {v1alpha1.ModePerPod, `{{ range .Pods }}{{ end }}`, `.Pods is of mode shared`},
		"the version without a mode":      {"", `{{ .Version }}`, `.Version is of mode shared`},
		"a label that is called so":       {v1alpha1.ModePerPod, `{{ with .Pod.Labels }}{{ .Version }}{{ end }}`, ``},
		"a label by its path":             {v1alpha1.ModePerPod, `{{ .Pod.Labels.Version }}`, ``},
		"all that a shared template sees": {v1alpha1.ModeShared, `{{ .Node }}{{ .Version }}{{ .Network.InboundPort }}{{ range .Pods }}{{ .Node }}{{ .NetNS }}{{ end }}`, ``},
		"nothing":                         {v1alpha1.ModeShared, ``, ``},
		"a comment alone":                 {v1alpha1.ModeShared, `{{/* .Epoch */}}`, ``},
	} {
		p := sharedProfile(v1alpha1.File{Name: "f", Template: c.text})
		p.Spec.Mode = c.mode
		_, err := Compile(p)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRenderShared_pods_allAreInTheFile(t *testing.T) {
	text := `version {{ .Version }}
{{ range .Pods }}bind :{{ $.Network.InboundPort }} namespace {{ .NetNS }} # {{ .Namespace }}/{{ .Name }} {{ index .Annotations "a" }}
{{ end }}`
	p, err := Compile(sharedProfile(v1alpha1.File{Name: "f", Template: text, Syntax: syntaxHAProxy}))
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
