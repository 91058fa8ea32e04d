package sidecars

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/standins/envoystandin"
)

// The fake node's proxies are HAProxies: none of these is asked.
func (n *fakeNode) Serves(context.Context, podnet.Sandbox, uint32) error { return errServesNot }

func (n *fakeNode) Listens(context.Context, podnet.Sandbox, *profile.Version) error { return nil }

// envoyProfile returns the fake node's profile, for Envoys.
func envoyProfile(t *testing.T, changes ...func(*v1alpha1.ProxyProfileSpec)) *profile.Version {
	t.Helper()
	object := newNode().profile
	object.Spec.Handover, object.Spec.Args = v1alpha1.HandoverEnvoy, []string{"-c", "/etc/sidecar/envoy.yaml"}
	object.Spec.Files = []v1alpha1.File{{Name: "envoy.yaml", Template: "path: {{.AdminSocket}}", Syntax: "yaml"}}
	for _, change := range changes {
		change(&object.Spec)
	}
	p, err := profile.Compile(&object)
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
	replace := func(s *v1alpha1.ProxyProfileSpec) {
		s.HotRestart = &v1alpha1.HotRestart{OnIncompatibleVersion: v1alpha1.IncompatibleReplace}
	}
	keep := func(*v1alpha1.ProxyProfileSpec) {}
	failed := fmt.Errorf("no such program")
	for name, c := range map[string]struct {
		from    *sidecar.Container
		change  func(*v1alpha1.ProxyProfileSpec)
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
			got, err := joinLine(t.Context(), printing{c.answer, c.failure, &asked}, h, profile.Instance{Version: p, Pod: thePod(), Epoch: 5}.Spec(nil), p, c.from)
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

// memoryOf is what Envoys of a version share.
func memoryOf(size, version, flags uint64) string {
	m := envoystandin.SharedMemory{Size: size, Version: version, Flags: flags}
	for i := range m.LogLock {
		m.LogLock[i], m.AccessLogLock[i] = -1, -1
	}
	return string(append(m.Bytes(), make([]byte, size-104)...))
}

func TestEndInitializing_endedWhileStarting_clearsFlag(t *testing.T) {
	for name, c := range map[string]struct{ memory, want string }{
		"it did":                        {memoryOf(104, 11, 1), memoryOf(104, 11, 0)},
		"it did, beside another flag":   {memoryOf(104, 11, 5), memoryOf(104, 11, 4)},
		"it did not":                    {memoryOf(104, 11, 0), memoryOf(104, 11, 0)},
		"the version is another one":    {memoryOf(104, 12, 1), memoryOf(104, 12, 1)},
		"the size is another one":       {memoryOf(112, 11, 1), memoryOf(112, 11, 1)},
		"the file is not written whole": {"11", "11"},
	} {
		t.Run(name, func(t *testing.T) {
			h := home.Home{Path: t.TempDir()}
			file := filepath.Join(h.Path, "shm", "envoy_shared_memory_0")
			if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.memory), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := endInitializing(h.Shm()); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// The proxy can write to the directory of its memory. What it puts there instead is not followed.
func TestEndInitializing_link_isRefused(t *testing.T) {
	h := home.Home{Path: t.TempDir()}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte(memoryOf(104, 11, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(h.Path, "shm"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(h.Path, "shm", "envoy_shared_memory_0")); err != nil {
		t.Fatal(err)
	}
	if err := endInitializing(h.Shm()); err == nil {
		t.Error("a link is followed")
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != memoryOf(104, 11, 1) {
		t.Errorf("the file outside is now %q, %v", got, err)
	}
	if err := endInitializing(t.TempDir()); err != nil {
		t.Errorf("no memory: %v", err)
	}
}
