package sidecars

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
)

// The fake node's proxies are HAProxies: none of these is asked.
func (n *fakeNode) Serves(context.Context, podnet.Sandbox, uint32) error { return errServesNot }

func (n *fakeNode) Listens(context.Context, podnet.Sandbox, *profile.Version) error { return nil }

// envoyProfile returns the fake node's profile, for Envoys.
func envoyProfile(t *testing.T, changes ...func(*profile.Spec)) *profile.Version {
	t.Helper()
	object := newNode().profile
	object.Spec.Handover, object.Spec.Args = profile.HandoverEnvoy, []string{"-c", "/etc/sidecar/envoy.yaml"}
	object.Spec.Files = []v1alpha1.File{{Name: "envoy.yaml", Template: "path: {{.AdminSocket}}", Syntax: "yaml"}}
	for _, change := range changes {
		change(&object.Spec)
	}
	p, err := object.compile()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// probe answers for a program, and remembers how it was started.
type printing struct {
	answer string
	err    error
	asked  *sidecar.Spec
}

func (p printing) Output(_ context.Context, spec sidecar.Spec) (string, error) {
	*p.asked = spec
	return p.answer, p.err
}

func TestTakePlace_versions_decide(t *testing.T) {
	running := func(version string) *sidecar.Container {
		return &sidecar.Container{Epoch: 4, Labels: sidecar.Labels{HotRestart: &sidecar.HotRestart{Line: 3, Epoch: 1, Version: version}}}
	}
	replace := func(s *profile.Spec) {
		s.HotRestart = &v1alpha1.EnvoyHotRestart{OnIncompatibleVersion: v1alpha1.IncompatibleReplace}
	}
	keep := func(*profile.Spec) {}
	failed := fmt.Errorf("no such program")
	for name, c := range map[string]struct {
		from    *sidecar.Container
		change  func(*profile.Spec)
		answer  string
		failure error
		want    string // the place, or
		wantErr string
	}{
		"the first of a line":                           {nil, keep, "11.104\n", nil, "5/0/11.104", ""},
		"the first one, whose version is not found out": {nil, keep, "", failed, "5/0/", ""},
		"the same version":                              {running("11.104"), keep, "11.104", nil, "3/2/11.104", ""},
		"another version":                               {running("11.104"), keep, "12.104", nil, "", "has the version 11.104, and that of localhost/haproxy:1 is 12.104"},
		"another version, and connections may be lost":  {running("11.104"), replace, "12.104", nil, "", errReplace.Error()},
		"a version that is not known":                   {running(""), keep, "11.104", nil, "", "has the version unknown"},
		"a proxy of another kind":                       {&sidecar.Container{}, keep, "11.104", nil, "", "has the version unknown"},
		"a program that says something else":            {running("11.104"), keep, "HAProxy version 2.6", nil, "", `answers --hot-restart-version with "HAProxy version 2.6"`},
		"a program that says nothing":                   {running("11.104"), keep, "", nil, "", "which is no version"},
		"an Envoy without hot restart":                  {running("11.104"), replace, "disabled", nil, "", "which is no version"},
		"a program that cannot be started: it is no reason to lose connections": {running("11.104"), replace, "", failed, "", "the running proxy stays"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked sidecar.Spec
			p := envoyProfile(t, c.change)
			key := podnet.Key{PodUID: "u1", Sandbox: "s1"}
			h := home.Homes{Root: t.TempDir()}.Of(key)
			if err := os.MkdirAll(h.Shm(), 0o700); err != nil {
				t.Fatal(err)
			}
			l := launch{instance: profile.Instance{Version: p, Pod: thePod(), Epoch: 5}}
			got, err := joinLine(t.Context(), printing{c.answer, c.failure, &asked}, observed{home: h}, l, c.from)
			if said := fmt.Sprint(err); c.wantErr != "" && !strings.Contains(said, c.wantErr) {
				t.Errorf("error %s, want one with %q", said, c.wantErr)
			}
			if c.want != "" && (err != nil || got.String() != c.want) {
				t.Errorf("%+v, %v; want %s", got, err, c.want)
			}
			if noted := h.Notes().Has(home.Successor, 4); noted != (c.want == "3/2/11.104") {
				t.Errorf("a successor is noted: %t", noted)
			}
			if !slices.Equal(asked.Args, []string{argVersion}) || asked.Mounts != nil || asked.NetAdmin {
				t.Errorf("asked by %+v", asked)
			}
		})
	}
}
